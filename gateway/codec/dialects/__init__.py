"""Dialects: JSON servers that do not speak V2, one file each.

`dialect` says what a dialect is, `description` what is known of a model, `request` what a client has asked for. What is
sent is a template in the language of `body`, from the configuration or the dialect's own, whose places the inputs fill;
`answer` reads what comes back, by a `walk` along the `paths` of its outputs.
"""

from collections.abc import Mapping

from gateway.codec.dialects.dialect import Dialect
from gateway.codec.dialects.mlflow import MLflow
from gateway.codec.dialects.python import PythonDialect
from gateway.codec.dialects.tensorflow import TensorFlow

DIALECTS: Mapping[str, Dialect] = {each.name: each for each in (TensorFlow(), MLflow(), Dialect(), PythonDialect())}
"""Every dialect besides V2 by its name in the configuration."""
