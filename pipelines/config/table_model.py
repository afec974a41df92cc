"""What the models of all look-up tables have in common. A kind is a module of `config/tables` with a `TABLE`."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, WithJsonSchema

from pipelines.config.base import Effect, Faults, Model, Positive, Size, Text, Whole, Window, matching, ours

TABLE_NAME = r"^[a-z][a-z0-9_]{0,39}$"
TableName = Annotated[
    str,
    AfterValidator(matching(TABLE_NAME, "must be at most 40 of a-z, 0-9 and _, beginning with a-z")),
    Field(json_schema_extra={"pattern": TABLE_NAME}),
]
_SCHEMES = ("file", "s3", "gs", "abfs", "abfss", "hdfs")
_SHORTEST_REFRESH = timedelta(seconds=1)


class KeyRange(Model):
    """Two columns between which a field must lie."""

    between: Annotated[tuple[Text, ...], Field(min_length=2, max_length=2)] = ours(
        ..., "The columns of the beginning and of the end; a null is an open end. The ranges of a key must not overlap."
    )
    includes_end: bool = ours(True, "Whether a value equal to the end is inside; the beginning always is.")


def _parts(value: Any) -> Any:
    return [value] if isinstance(value, str | dict | KeyRange) else value


TableKey = Annotated[
    tuple[Text | KeyRange, ...],
    BeforeValidator(_parts),
    Field(min_length=1, max_length=16),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "object"},
                {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}, "minItems": 1},
            ],
            "x-type": "column, `{between: [FROM, TO]}`, or list of these",
        }
    ),
]


class TableModel(Model):
    """What every look-up table has."""

    key: TableKey = ours(
        ...,
        "The column or columns that identify a row, in the order of the look-ups' own key. At the end of it, or alone, "
        "`{between: [FROM, TO], includes_end: true}`: the field lies between two columns.",
    )
    refresh: Window = ours(timedelta(minutes=10), "Time between two snapshots, at least 1 s.", Effect.RELOAD)
    min_rows: Whole = ours(1, "A snapshot with fewer rows is refused: the table may be in the middle of being loaded.", Effect.RELOAD)
    max_rows: Positive = ours(10_000_000, "A snapshot with more rows is refused.", Effect.RELOAD)
    max_bytes: Size = ours(1024**3, "A snapshot that takes more is refused; every process that looks up holds it in memory.", Effect.RELOAD)
    max_age: Window | None = ours(
        None, "Halt process when the newest snapshot is older. Default: go on with the old one while it cannot be fetched.", Effect.RELOAD
    )

    @property
    def columns_of_key(self) -> tuple[str, ...]:
        """The columns that must equal a field."""
        return tuple(part for part in self.key if isinstance(part, str))

    @property
    def range_of_key(self) -> KeyRange | None:
        return next((part for part in self.key if isinstance(part, KeyRange)), None)

    def attach(self, connections: Mapping[str, Any]) -> None:
        """Take what the rest of the file gives to a table: the connection of the first sink, by the type of the sink."""

    def locate(self, directory: Path) -> None:
        """Note the directory of the pipeline file, for files beside it."""

    def faults(self) -> Faults:
        if any(isinstance(part, KeyRange) for part in self.key[:-1]):
            yield ("key",), "a range must be the last part of the key, and there is one at most"
        names = [name for part in self.key for name in ((part,) if isinstance(part, str) else part.between)]
        if len({*names}) < len(names):
            yield ("key",), "names a column twice"
        if not 0 <= self.min_rows <= self.max_rows:
            yield ("min_rows",), "must be between 0 and max_rows"
        if self.refresh < _SHORTEST_REFRESH:
            yield ("refresh",), "must be at least 1s"
        if self.max_age is not None and self.max_age <= self.refresh:
            yield ("max_age",), "must be longer than `refresh`: a snapshot is that old before the next one is there"


def _uri(uri: str) -> str:
    parts = urlsplit(uri)
    if "://" in uri:
        if parts.scheme not in _SCHEMES or not parts.path.strip("/") or bool(parts.netloc) == (parts.scheme == "file"):
            raise ValueError(f"must be a path beside the pipeline file, file:///path, or a URI of {', '.join(_SCHEMES[1:])} with a path")
        if "@" in parts.netloc and parts.scheme not in ("abfs", "abfss"):
            raise ValueError("must not hold credentials: they come from the environment, such as AWS_ACCESS_KEY_ID or AWS_PROFILE")
    elif Path(uri).is_absolute() or ".." in Path(uri).parts or "\\" in uri:
        raise ValueError("a path without file:// lies below the directory of the pipeline file")
    return uri


class FileTable(TableModel):
    """What the tables in a file have."""

    unshown = frozenset({"uri"})

    uri: Annotated[str, Field(min_length=1), AfterValidator(_uri)] = ours(
        ...,
        "The file: a path below the directory of the pipeline file, `file:///path`, `s3://`, `gs://`, `abfss://` or `hdfs://`, with "
        "PyArrow's options as a query; credentials come from the environment. Replace it as a whole, by renaming another one.",
    )
    _directory: Path | None = PrivateAttr(None)

    def locate(self, directory: Path) -> None:
        self._directory = directory

    @property
    def is_local(self) -> bool:
        """Whether the file is on this host."""
        return "://" not in self.uri or self.uri.startswith("file://")

    @property
    def place(self) -> str:
        """The path on this host, or the URI. Raise ValueError for a file beside a pipeline file that was not read from a disk."""
        if "://" in self.uri:
            return self.uri
        if self._directory is None:
            raise ValueError(f"the file {self.uri} lies beside the pipeline file, which lies in no directory")
        found = (self._directory / self.uri).resolve()
        if not found.is_relative_to(self._directory.resolve()):
            raise ValueError(f"the file {self.uri} does not lie below the directory of the pipeline file")
        return str(found)
