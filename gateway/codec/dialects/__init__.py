"""Dialects: JSON servers that do not speak V2, one file each.

`dialect` says what a dialect is, `description` what is known of a model, `request` and `answer` have the forms of
requests and answers that the dialects are made of.
"""

from collections.abc import Mapping

from gateway.codec.dialects.dialect import Dialect
from gateway.codec.dialects.mlflow import MLflow
from gateway.codec.dialects.tensorflow import TensorFlow

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (TensorFlow(), MLflow())}
"""Every dialect besides V2 by its name in the configuration."""
