"""Published formats of JSON servers, as strict stand-ins, and the judge of what the gateway makes of them.

    python -m tests.formats            # `doctor` alone, every format
    python -m tests.formats --file     # the template or adapter that was written by hand
    python -m tests.formats deepl cog  # some of them, with all that was found

Nothing of the servers' own code is here: their documentation says what a request and an answer look like, and a
stand-in computes an answer from every value that decides.
"""

from tests.formats.homemade import HOMEMADE
from tests.formats.language import LANGUAGE
from tests.formats.media import MEDIA
from tests.formats.model_servers import MODEL_SERVERS
from tests.formats.rankers import RANKERS
from tests.formats.services import SERVICES
from tests.formats.stand_in import Format
from tests.formats.tables import TABLES
from tests.formats.tagging import TAGGING
from tests.formats.vectors import VECTORS

_FAMILIES = (VECTORS, RANKERS, LANGUAGE, MEDIA, TAGGING, TABLES, MODEL_SERVERS, HOMEMADE, SERVICES)

FORMATS: dict[str, Format] = {each.name: each for family in _FAMILIES for each in family}
"""Every format by its name."""

__all__ = ["FORMATS", "Format"]
