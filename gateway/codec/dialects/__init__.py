"""Dialects: JSON servers that do not speak V2, one file each.

`dialect` says what a dialect is, `description` what is known of a model, `request` what a client has asked for. The
bodies that the dialects make of that are values in the language of `body`, written by `writing`; `answer` reads what
comes back, by a `walk` along the `paths` of its outputs.
"""

from collections.abc import Mapping

from gateway.codec.dialects.dialect import Dialect
from gateway.codec.dialects.mlflow import MLflow
from gateway.codec.dialects.template import TemplateDialect
from gateway.codec.dialects.tensorflow import TensorFlow

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (TensorFlow(), MLflow(), TemplateDialect())}
"""Every dialect besides V2 by its name in the configuration."""
