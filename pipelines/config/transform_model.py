"""What the models of all transforms have in common. A model of its own is a module of `config/transforms` with a `TRANSFORM`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pipelines.config.base import Location, Model, ours

SOURCE_ID = (
    "The source that the transform applies to. Optional with one source; with a join, a filter or a stateless transform without it "
    "applies after the join."
)
Language = Literal["sql", "expr"]


@dataclass(frozen=True)
class Asked:
    """An expression of a transform, at `at` in its `config`.

    `name`: the field that its value becomes, empty for a condition. `type`: the type that the value must have, None if any will do.
    `unit`: the unit of a number since 1970, if it is one.
    """

    at: Location
    text: str
    name: str = ""
    type: str | None = None
    unit: str | None = None


@dataclass(frozen=True)
class Made:
    """A field that a transform makes without an expression. `unit`: as of `Asked`."""

    name: str
    type: str
    unit: str | None = None


class TransformConfig(Model):
    """The `config` of a transform."""

    keeps_fields: ClassVar[bool] = True
    """False if only the computed fields remain."""

    def fields_read(self) -> Iterable[tuple[Location, Sequence[str]]]:
        """Yield where the config names fields of the record, and which. Also called over a `Partial`, so it only reads attributes."""
        yield from ()

    def expressions(self) -> Iterable[Asked]:
        """Yield the expressions in the file's order. Also called over a `Partial`."""
        yield from ()

    def made(self) -> Iterable[Made]:
        """Yield the fields that have no expression. Also called over a `Partial`."""
        yield from ()

    def origin_of(self, made: Made) -> dict[str, Any]:
        """Return, as JSON values, what gives a field of `made`; `input` names the fields that it reads, empty for all."""
        raise TypeError(f"{type(self).__name__} makes no field {made.name!r}")

    @property
    def makes_several(self) -> bool:
        """Whether it may make several rows of a record. Also asked of a `Partial`."""
        return False

    def attach(self, tables: Mapping[str, Any]) -> None:
        """Take the tables of the file by their names."""

    def code(self) -> str:
        """Return the digest of the code that it runs beside the file's own text; empty if there is none, or it cannot be read."""
        return ""

    def locate(self, directory: Path) -> None:
        """Note the directory of the pipeline file, for files beside it."""


class ExpressionConfig(TransformConfig):
    """A config with expressions."""

    language: Language | None = ours(
        None,
        "Language of the expressions: `sql` (DuckDB's) or `expr` (GlassFlow's expr-lang). Default, for each: SQL if it is sound SQL over "
        "the fields, else expr-lang.",
    )


class TransformModel(Model):
    """One entry of `transforms`, with a `type`, a `source_id` and a `config`."""

    step: ClassVar[str] = ""
    """The step that runs it, if its name is not the type."""
    computes: ClassVar[bool] = False
    """True if it makes fields."""
    is_of_glassflow: ClassVar[bool] = False
