"""`tensor-gateway doctor URL`: finds out what a server speaks, what clients would miss, and a configuration to paste.

It asks in five groups: the way to the server (`reaching`), who it is (`recognizing`), a trial inference straight and
what the server cannot take (`trials`), and the same through a gateway (`through`). Every question has a time limit.
Not here: anything that the gateway needs to serve.
"""

from gateway.doctor.examination import examine
from gateway.doctor.given import TLS_OPTIONS, Given

__all__ = ["TLS_OPTIONS", "Given", "examine"]
