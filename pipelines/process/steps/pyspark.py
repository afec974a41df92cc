"""The step that calls a function over a DataFrame of Spark: as that in Python, with the version of pyspark beside the others."""

from dataclasses import dataclass
from typing import ClassVar

from pipelines.functions.spec import Mode, spark_version
from pipelines.process.steps.python import Python


@dataclass(frozen=True)
class PySpark(Python):
    """`pyspark`: the version under which the program was compiled; another one halts the step."""

    name = "pyspark"
    stage = "pyspark"
    modes: ClassVar[tuple[Mode, ...]] = ("pyspark",)

    pyspark: str

    @classmethod
    def versions_here(cls) -> tuple[str, ...]:
        return (*super().versions_here(), spark_version())

    @property
    def planned_versions(self) -> tuple[str, ...]:
        return (*super().planned_versions, self.pyspark)


STEP = PySpark
