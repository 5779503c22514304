"""tritonclient as a party: what it takes from an array of numpy to one, with binary tensors or with JSON."""

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.bench.cases import WrongBytesError

try:
    import tritonclient.http as library
except ImportError:
    library = None

TIMEOUT_S = 120.0


def is_installed() -> bool:
    """Whether tritonclient is there; nothing else works without it."""
    return library is not None


class Client:
    """Sends an FP32 tensor and compares what comes back."""

    def __init__(self, url: str, model: str, output: str, array: npt.NDArray[np.float32], *, is_binary: bool) -> None:
        """*output* is the model's, and has to be what is sent as `x`."""
        self._url = url
        self._model = model
        self._output = output
        self._array = array
        self._is_binary = is_binary

    def spent_s(self, requests: int) -> tuple[float, float]:
        """Time on the wall and processor time of this process, one request after another, of each request."""
        address = self._url.removeprefix("http://")
        with library.InferenceServerClient(address, network_timeout=TIMEOUT_S, connection_timeout=TIMEOUT_S) as client:
            self._infer(client)
            wall, processor = time.perf_counter(), time.process_time()
            for _ in range(requests):
                got = self._infer(client)
            spent = (time.perf_counter() - wall) / requests, (time.process_time() - processor) / requests
        if got.tobytes() != self._array.tobytes():
            raise WrongBytesError(f"{self._model}: the answer is not what was sent")
        return spent

    def _infer(self, client: Any) -> Any:
        sent = library.InferInput("x", list(self._array.shape), "FP32")
        sent.set_data_from_numpy(self._array, binary_data=self._is_binary)
        wanted = [library.InferRequestedOutput(self._output, binary_data=self._is_binary)]
        return client.infer(self._model, [sent], outputs=wanted).as_numpy(self._output)
