"""The model of `tests.servers.Seldon`, with seldon-core 1.18: twice its input, which must have four columns."""

from typing import Any

import numpy as np
from seldon_core.flask_utils import SeldonMicroserviceException


class Doubling:
    def predict(self, x: Any, names: list[str], meta: Any = None) -> Any:
        if np.shape(x)[1] != 4:
            raise SeldonMicroserviceException("four columns are expected", status_code=400, reason="BAD_SHAPE")
        return 2 * np.array(x)
