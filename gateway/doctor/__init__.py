"""`tensor-gateway doctor URL`: finds out what a server speaks, what clients would miss, and a configuration to paste.

It asks in three groups: the way to the server and who it is (`examination`), a first inference straight (`model`), and
all that clients may want, through gateways in front of the server (`through`). Every question has a time limit. Not
here: anything that the gateway needs to serve.
"""

from gateway.doctor.asking import Given
from gateway.doctor.examination import examine

__all__ = ["Given", "examine"]
