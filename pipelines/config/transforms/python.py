"""The model of a function of the user's own in Python."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr

from pipelines.config.base import Faults, FieldPath, Location, Model, Text, Window, matching, ours, repeated
from pipelines.config.sources import Unit
from pipelines.config.transform_model import SOURCE_ID, Made, TransformConfig, TransformModel
from pipelines.functions import REFERENCE

Reference = Annotated[str, Field(max_length=200), AfterValidator(matching(REFERENCE, "must be package.module:name"))]
OutputType = Literal[
    "string", "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64",
    "float", "float32", "float64", "bool", "bytes", "timestamp",
]  # fmt: skip
FunctionType = Literal[OutputType, "array", "object", "map", "decimal"]


class FunctionOutput(Model):
    """One field that the function returns."""

    name: FieldPath = ours(..., "Name of the field; it replaces a field of this name.")
    type: FunctionType = ours(..., "Type of the field. A value of another type rejects the record.")
    unit: Unit | None = ours(None, "Unit since 1970 of a number that becomes a DateTime or DateTime64. Default: `s`.")


class FunctionConfig(TransformConfig):
    """The function, and its fields."""

    function: Reference = ours(..., "The function, as `package.module:name`; the module lies beside the pipeline file.")
    input: tuple[FieldPath, ...] = ours((), "The fields that the function reads. Default: all fields before it.")
    output: Annotated[tuple[FunctionOutput, ...], Field(min_length=1)] = ours(..., "The fields that it returns; all other fields stay.")
    timeout: Window = ours(timedelta(seconds=30), "Longest time of one call; a record on which it takes longer becomes a dead letter.")
    files: tuple[Text, ...] = ours((), "Further files that the code needs, by their paths below the directory of the pipeline file.")
    _directory: Path | None = PrivateAttr(None)
    _pinned: str = PrivateAttr("")

    @property
    def directory(self) -> Path:
        """The directory of the pipeline file. Raise ValueError for a file that was not read from a disk."""
        if self._directory is None:
            raise ValueError(f"function {self.function}: the pipeline file lies in no directory, so there is no code beside it")
        return self._directory

    @property
    def called_name(self) -> str:
        """What names its code beside that of other functions: the function, and the files that it needs."""
        return " ".join((self.function, *self.files))

    def packed(self) -> str:
        """Keep the archive of its code as it lies beside the file; return its digest, or that which is pinned.

        Raise ValueError if the code cannot be read.
        """
        # Inside the function: other files do without archives.
        from pipelines.functions.code import pack

        return self._pinned or pack(self.directory, self.function.partition(":")[0], self.files)

    def code(self) -> str:
        try:
            return self.packed()
        except ValueError:
            return ""

    def pin(self, code: str) -> None:
        """Let the digest of earlier code stand for what lies beside the file today."""
        self._pinned = code

    def locate(self, directory: Path) -> None:
        self._directory = directory

    def fields_read(self) -> Iterable[tuple[Location, Sequence[str]]]:
        for index, name in enumerate(self.input):
            yield ("input", index), [name]

    def made(self) -> Iterable[Made]:
        for output in self.output:
            yield Made(output.name, output.type, output.unit)

    def origin_of(self, made: Made) -> dict[str, Any]:
        return {"function": self.function}

    def faults(self) -> Faults:
        for index, name in repeated(self.input):
            yield ("input", index), f"the field {name!r} is named twice"
        for index, name in repeated(output.name for output in self.output):
            yield ("output", index, "name"), f"the name {name!r} is given twice"
        for index, output in enumerate(self.output):
            if output.name.startswith("_tf_") or output.name == "_row":
                yield ("output", index, "name"), "the name _row and names that start with _tf_ are reserved"
        if self.timeout < timedelta(milliseconds=1):
            yield ("timeout",), "must be at least 1ms"


class PythonConfig(FunctionConfig):
    """The function, and its fields."""

    mode: Literal["batch", "row"] = ours(
        "batch",
        "What the function takes and returns: a `pyarrow.RecordBatch`, or for each record a dict; `None` for a dict drops the record.",
    )
    rows: Literal["one", "many"] = ours(
        "one", "How many rows it may make of a record: `many` allows a list of dicts, and the same number in `_row` several times."
    )

    @property
    def makes_several(self) -> bool:
        return self.rows == "many"


class PythonTransform(TransformModel):
    """Calls a Python function: its outputs become fields, and the records that it leaves out are dropped."""

    computes = True

    type: Literal["python"] = ours(..., "Kind of transform.")
    source_id: Text | None = ours(None, SOURCE_ID)
    config: PythonConfig = ours(..., "The function, and its fields.")


TRANSFORM = PythonTransform
