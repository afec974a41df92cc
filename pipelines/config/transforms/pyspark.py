"""The model of a function over DataFrames of Spark."""

from typing import Literal

from pipelines.config.base import Text, ours
from pipelines.config.transform_model import SOURCE_ID, TransformModel
from pipelines.config.transforms.python import FunctionConfig


class PySparkTransform(TransformModel):
    """Calls a function over a DataFrame of Spark: its outputs become fields, and the records that it filters out are dropped."""

    computes = True

    type: Literal["pyspark"] = ours(..., "Kind of transform.")
    source_id: Text | None = ours(None, SOURCE_ID)
    config: FunctionConfig = ours(..., "The function, and its fields.")


TRANSFORM = PySparkTransform
