"""What a dialect is: everything by which a server that speaks it differs from a server of V2.

Not here: which dialects there are, and sending anything.
"""

from typing import Protocol

from gateway.codec.dialects.description import UNKNOWN, ModelDescription
from gateway.codec.dialects.paths import AnswerForm
from gateway.codec.dialects.request import Writer


class Dialect(Protocol):
    """A value without state. Paths are raw, as they stand in a request; those of models are percent-encoded."""

    @property
    def name(self) -> str:
        """What the configuration's `dialect` calls it."""

    @property
    def server_name(self) -> str:
        """The `name` in the answer to `GET /v2`, which says nothing else of such servers."""

    @property
    def live_path(self) -> str:
        """What a server answers as long as it runs, see `is_live`; empty: the configuration's `health.path`."""

    @property
    def is_configured(self) -> bool:
        """Whether only models that the configuration describes can be asked."""

    def is_live(self, status: int, text: bytes) -> bool:
        """Whether an answer to `live_path` with *status* and the body *text* comes from a server that runs."""

    def infer_path(self, model: str, version: str | None, description: ModelDescription = UNKNOWN) -> str | None:
        """Where inferences are sent; None if the dialect has no such thing, as versions.

        *description* is what the configuration says of the model.
        """

    def ready_path(self, model: str, version: str | None) -> str | None:
        """What tells whether a model is ready, see `is_ready`; None as for `infer_path`."""

    def is_ready(self, text: bytes) -> bool:
        """Whether the body *text* of an answer to `ready_path` with status 200 says that the model is ready."""

    def description_path(self, model: str, version: str | None) -> str | None:
        """Where the server describes the model; None if it describes none."""

    def read_description(self, text: bytes, signature: str) -> ModelDescription:
        """What the body *text* of an answer to `description_path` says, of *signature* (empty: the usual one).

        Raises `CodecError` if it cannot be read.
        """

    def writer(self, description: ModelDescription) -> Writer:
        """What makes the body of a request to the model."""

    def answer_form(self, description: ModelDescription) -> AnswerForm:
        """How the model's answers are put together."""

    def error_words(self, text: bytes, description: ModelDescription = UNKNOWN) -> str | None:
        """The reason in the body *text* of an error, where it is not found as in every server's; else None.

        *description* is what the configuration says of the model.
        """
