"""The extremes of every datatype that a numpy array of one row can hold, by the datatype's name."""

from typing import Any

import numpy as np
import numpy.typing as npt

VALUES: dict[str, npt.NDArray[Any]] = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": np.array([[0, 1, 255]], np.uint8),
    "UINT16": np.array([[0, 1, 65535]], np.uint16),
    "UINT32": np.array([[0, 1, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 2**53 + 1, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 0, 127]], np.int8),
    "INT16": np.array([[-(2**15), 0, 2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31), 0, 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 2**53 + 1, 2**63 - 1]], np.int64),
    "FP16": np.array([[-0.0, 6e-8, 65504]], np.float16),
    "FP32": np.array([[0.1, -0.0, 1e-45, 3.4028235e38]], np.float32),
    "FP64": np.array([[0.1, -0.0, 5e-324, 1.7976931348623157e308]], np.float64),
    "BYTES": np.array([[b"a", b"", "é".encode(), b"nul \x00 inside"]], np.object_),
}
