"""The column of each sampled field: the type that takes all of its values, checked by the very conversions of the pipeline."""

import json
import math
import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pipelines.init.fields import NAMES_A_CODE, FieldFacts, kind_of
from pipelines.init.times import of_numbers, of_texts, possible
from pipelines.process.steps.mapping.composites import convert
from pipelines.process.steps.mapping.convert import convert_epoch, convert_formatted, integer_bounds
from pipelines.types.columns import value_type
from pipelines.types.engine import Engine
from pipelines.types.time_formats import is_format

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LATIN = str.maketrans({"ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L"})
"""Letters that no decomposition makes plain."""
_FEW_VALUES, _LEAST_VALUES, _SHARE_OF_FEW = 1000, 20, 10
_MAX_SCALE, _LONG_DECIMAL = 12, 15
_INTEGERS = ("Int64", "UInt64")
_WIDE_INTEGERS = ("Int128", "Int256", "UInt256")


@dataclass(frozen=True)
class Column:
    """What a field becomes. `source`: its type in the file; `extracted`: it is read as text from the whole value by a JSON path.

    `field`: its name in the file, `name` that of the column.

    `notes`: sentences for the author. A field without `type` has no column, for the last of them.
    """

    facts: FieldFacts
    field: str
    name: str
    source: str = ""
    type: str = ""
    notation: str = ""
    extracted: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_nullable(self) -> bool:
        return "Nullable(" in self.type

    @property
    def is_time(self) -> bool:
        return self.type.removeprefix("Nullable(").startswith("Date")

    @property
    def can_be_key(self) -> bool:
        """Whether the column holds names and numbers that count, and neither times nor amounts."""
        return self.type.startswith(("String", "UUID", "LowCardinality", "Int", "UInt"))


class Chooser:
    """Chooses columns for the fields of a sample, each with a name of its own; `names`: those of all fields."""

    def __init__(self, engine: Engine, names: Collection[str]) -> None:
        self._engine = engine
        self._fields = {*names}
        self._taken: set[str] = set()

    def choose(self, facts: FieldFacts) -> Column:
        column = Column(facts, facts.name, self._name(facts.name))
        kinds = {*facts.kinds}
        if not kinds:
            return replace(column, notes=("null in every record: its type is unknown",))
        if not facts.is_readable:
            return self._extracted(
                replace(column, field=self._field(column.name)), "the file cannot name this key: its text is read from the whole value"
            )
        if kinds == {"string"}:
            return self._nullable(self._of_texts(column))
        if kinds == {"int"}:
            return self._nullable(self._of_integers(column))
        if kinds <= {"int", "float"}:
            return self._nullable(self._of_floats(column))
        if kinds == {"bool"}:
            return self._nullable(replace(column, source="bool", type="Bool"))
        if kinds == {"array"}:
            return self._of_composites(column, "array", array_type(facts.values))
        if kinds == {"object"}:
            return self._of_composites(column, "object", "Map(String, Nullable(String))")
        found = ", ".join(f"{kind} in {count}" for kind, count in facts.kinds.most_common())
        return self._extracted(column, f"of several types ({found}): the text of its value")

    def takes(self, values: Sequence[Any], kind: str, notation: str = "") -> bool:
        """Return whether a column takes all these values (as the source type of their Python type gives them), none of them null."""
        target, given = value_type(kind), pa.array(values)
        if not notation:
            _, faults = convert(self._engine, given, target)
        elif is_format(notation):
            _, faults = convert_formatted(self._engine, given, target, notation)
        else:
            _, faults = convert_epoch(given, target, notation)
        return not faults

    def _name(self, field: str) -> str:
        plain = unicodedata.normalize("NFKD", field.translate(_LATIN)).encode("ascii", "ignore").decode()
        name = re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")[:100] or "field"
        name = f"_{name}" if name[0].isdigit() else name
        name, number = (f"f_{name}" if name.startswith("tf_") else name), 1
        while (found := name if number == 1 else f"{name}_{number}") in self._taken:
            number += 1
        self._taken.add(found)
        return found

    def _field(self, name: str) -> str:
        """Return a name for a field whose own the file cannot have."""
        while name in self._fields:
            name += "_"
        self._fields.add(name)
        return name

    def _nullable(self, column: Column) -> Column:
        if not column.facts.null_share or column.is_nullable:
            return column
        inner = column.type.removeprefix("LowCardinality(").removesuffix(")") if column.type.startswith("LowCardinality(") else ""
        return replace(column, type=f"LowCardinality(Nullable({inner}))" if inner else f"Nullable({column.type})")

    def _extracted(self, column: Column, note: str) -> Column:
        """Read the field as text: an integer of any width if all values are, else what they are as text."""
        path = json_path(column.facts.path)
        if not path:
            return replace(column, notes=("no path can name this key: it is empty, or has quotes, * or control characters",))
        texts, kind = [as_text(value) for value in column.facts.values], "String"
        if {*column.facts.kinds} == {"int"}:
            kind = next((wide for wide in (*_INTEGERS, *_WIDE_INTEGERS) if self.takes(texts, wide)), "String")
        return self._nullable(replace(column, source="string", type=kind, extracted=path, notes=(*column.notes, note)))

    def _of_texts(self, column: Column) -> Column:
        texts = column.facts.values
        text = replace(column, source="string", type="String")
        if all(_UUID.fullmatch(one) for one in texts):
            return replace(text, type="UUID")
        if found := of_texts(column.facts.name, texts, lambda kind, notation: self.takes(texts, kind, notation)):
            doubt = (f"a time, but {' and '.join(found.doubt)} fit: set `format` and a DateTime",) if found.doubt else ()
            return replace(text, type=found.column_type, notation=found.notation, notes=doubt)
        if number := self._number_type(column.facts.name, texts):
            return replace(text, type=number, notes=("numbers that are written as texts",))
        distinct = column.facts.distinct
        is_few = len(texts) >= _LEAST_VALUES and distinct <= min(_FEW_VALUES, len(texts) // _SHARE_OF_FEW)
        return replace(text, type="LowCardinality(String)") if is_few else text

    def _number_type(self, name: str, texts: Sequence[str]) -> str:
        if NAMES_A_CODE.search(name) or not all(_DECIMAL.fullmatch(one) for one in texts):
            return ""
        scale = max(len(one.partition(".")[2]) for one in texts)
        if not scale:
            return next((kind for kind in (*_INTEGERS, *_WIDE_INTEGERS) if self.takes(texts, kind)), "")
        if scale > _MAX_SCALE:
            return ""
        whole = max(len(one.partition(".")[0].lstrip("-")) for one in texts)
        return f"Decimal({18 if whole + scale <= _LONG_DECIMAL else 38}, {scale})" if whole + scale <= 38 else ""

    def _of_integers(self, column: Column) -> Column:
        numbers = column.facts.values
        low, high = min(numbers), max(numbers)
        for source, kind in (("int", "Int64"), ("uint", "UInt64")):
            least, greatest = integer_bounds(kind)
            if least <= low and high <= greatest:
                found = of_numbers(column.facts.name, numbers)
                if found and self.takes(numbers, found.column_type, found.notation):
                    return replace(column, source=source, type=found.column_type, notation=found.notation)
                time = possible(column.facts.name, numbers)
                notes = (f"a time? all fit `unit: {time.notation}` and {time.column_type}",) if time else ()
                return replace(column, source=source, type=kind, notes=notes)
        return self._extracted(column, "integers of more than 64 bits, read as text from the whole value")

    def _of_floats(self, column: Column) -> Column:
        numbers = column.facts.values
        if not all(_is_finite(number) for number in numbers):
            return self._extracted(column, "numbers beyond 64 bits: the text of its value")
        found = of_numbers(column.facts.name, numbers)
        if found and self.takes([float(number) for number in numbers], found.column_type, found.notation):
            return replace(column, source="float", type=found.column_type, notation=found.notation)
        return replace(column, source="float", type="Float64")

    def _of_composites(self, column: Column, source: str, kind: str) -> Column:
        texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in column.facts.values]
        if not all(_is_finite(number) for value in column.facts.values for number in _numbers_in(value)):
            return self._extracted(column, "holds numbers beyond 64 bits: the text of its value")
        if column.facts.null_share:
            note = f"null or absent in some records, which {kind.partition('(')[0]} does not take: the JSON text"
            return replace(column, source=source, type="Nullable(String)", notes=(note,))
        if kind == "String" or not self.takes(texts, kind):
            return replace(column, source=source, type="String", notes=("elements of several types: the JSON text",))
        return replace(column, source=source, type=kind)


def json_path(keys: Sequence[str]) -> str:
    """Return the JSON path of DuckDB to a value; empty if none can name a key: in quotes, too, a path has wildcards and no escapes."""
    if any(not key or not key.isprintable() or set(key) & {'"', "\\", "*"} for key in keys):
        return ""
    return "$" + "".join(f'."{key}"' for key in keys)


def as_text(value: Any) -> str:
    """Return a JSON value as `json_extract_string` gives it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def array_type(values: Sequence[list[Any]]) -> str:
    """Return the type of arrays with these values; String if their elements have several."""
    inner = _element_type([element for value in values for element in value])
    return f"Array({inner})" if inner else "String"


def _element_type(elements: Sequence[Any]) -> str:
    """Return the type of the elements of an array, Nullable if one is null; empty for several or none."""
    present = [element for element in elements if element is not None]
    kinds = {kind_of(element) for element in present}
    if kinds == {"object"}:
        inner = _tuple_type(present)
        # ClickHouse has no Nullable(Tuple) by default.
        return inner if len(present) == len(elements) else ""
    if kinds == {"array"}:
        inner = _element_type([element for value in present for element in value])
        return f"Array({inner})" if inner and len(present) == len(elements) else ""
    plain = {("string",): "String", ("int",): "Int64", ("float",): "Float64", ("float", "int"): "Float64", ("bool",): "Bool"}
    inner = plain.get(tuple(sorted(kinds)), "")
    return f"Nullable({inner})" if inner and len(present) < len(elements) else inner


def _tuple_type(objects: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for one in objects for name in one))
    if not names or not all(_MEMBER.fullmatch(name) for name in names):
        return ""
    members = [_element_type([one.get(name) for one in objects]) for name in names]
    return f"Tuple({', '.join(f'{name} {kind}' for name, kind in zip(names, members, strict=True))})" if all(members) else ""


def _is_finite(number: float) -> bool:
    return math.isfinite(number) if isinstance(number, float) else -(2**63) <= number < 2**64


def _numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for inner in value.values() for number in _numbers_in(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in _numbers_in(inner)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []
