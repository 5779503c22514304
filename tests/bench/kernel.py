"""K, the yardstick for converting numbers: orjson on the request's array, simdjson on the answer's, in a loop.

This is the fastest way there is in Python without native code of one's own, with everything in memory at once and
nothing checked: no finiteness, no ranges, no brackets. BOOL, which simdjson does not give as a buffer, is made 0
and 1 by `bytes.replace` first.
"""

import time
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import simdjson

from tests.bench.cases import WIRE, Case, printable

_PARSER = simdjson.Parser()


def processor_ns(case: Case, datatype: str, times: int) -> float:
    """Processor time of one conversion both ways, in nanoseconds, as the mean of *times*."""
    array = np.frombuffer(case.client_request[case.header_bytes[0] :], WIRE[datatype])
    answer = bytes(case.backend_answer)
    letter = {"UINT64": "u"}.get(datatype, "d" if datatype[:2] in ("FP", "BF") else "i")
    started = time.process_time_ns()
    for _ in range(times):
        orjson.dumps(printable(array, datatype), option=orjson.OPT_SERIALIZE_NUMPY)
        _to_array(answer, datatype, letter)
    return (time.process_time_ns() - started) / times


def _to_array(answer: bytes, datatype: str, letter: str) -> npt.NDArray[Any]:
    if datatype == "BOOL":
        answer = answer.replace(b"true", b"1").replace(b"false", b"0")
    document: Any = _PARSER.parse(answer)
    numbers = np.frombuffer(document["outputs"][0]["data"].as_buffer(of_type=letter), f"<{letter}8".replace("d", "f"))
    if datatype == "BF16":
        return (numbers.astype("<f4").view("<u4") >> np.uint32(16)).astype("<u2")
    return numbers.astype(WIRE[datatype])
