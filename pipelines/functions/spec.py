"""What a program says about a function, and the codes of the records on which it fails."""

import re
import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal, get_args

import pyarrow as pa

from pipelines.functions import REFERENCE
from pipelines.types.fields import SOURCE_TYPES

Mode = Literal["batch", "row", "pyspark"]
PYTHON_ERROR, PYTHON_ROWS, PYTHON_TIMEOUT, PYTHON_DIED = "python_error", "python_rows", "python_timeout", "python_died"
CODES = frozenset({PYTHON_ERROR, PYTHON_ROWS, PYTHON_TIMEOUT, PYTHON_DIED})
HOST_CODES = frozenset({PYTHON_TIMEOUT, PYTHON_DIED})
"""Codes of failures that depend on the host, too: a plan must decide them before their dead letters are written."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Function:
    """A function, its code by digest, and its fields as (name, source type). Raise ValueError for what cannot be called.

    `makes_several`: it may make several rows of a record.
    """

    reference: str
    code: str
    mode: Mode
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    timeout_ms: int
    makes_several: bool = False

    @property
    def stage(self) -> str:
        """The stage of the dead letters of its records."""
        return "pyspark" if self.mode == "pyspark" else "python"

    def __post_init__(self) -> None:
        if not re.fullmatch(REFERENCE, self.reference):
            raise ValueError(f"{self.reference!r} is no function: write package.module:name")
        if (
            not _DIGEST.fullmatch(self.code)
            or self.mode not in get_args(Mode)
            or self.timeout_ms <= 0
            or not self.inputs
            or not self.outputs
        ):
            raise ValueError(f"{self.reference}: its code, mode, timeout, inputs or outputs are no such thing")
        if self.makes_several and self.mode == "pyspark":
            raise ValueError(f"{self.reference}: a function over DataFrames makes one row of a record at most")
        for name, kind in (*self.inputs, *self.outputs):
            if kind not in SOURCE_TYPES or name.startswith("_tf_"):
                raise ValueError(f"{self.reference}: {name!r} as {kind!r} is no field of a function")

    @property
    def input_schema(self) -> pa.Schema:
        return pa.schema([(name, SOURCE_TYPES[kind].arrow) for name, kind in self.inputs])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([(name, SOURCE_TYPES[kind].arrow) for name, kind in self.outputs])


def spark_version() -> str:
    """Return the version of PySpark, without importing it."""
    return version("pyspark")


def versions() -> tuple[str, str]:
    """Return the versions of Python and of pyarrow, as far as they may decide results."""
    return f"{sys.version_info.major}.{sys.version_info.minor}", str(pa.__version__)
