"""Random pipeline files and their records: fields, filters, computes, functions of several rows, dedup, mapping, bad records, null keys.

A program is drawn until it loads: only what a start would refuse is thrown away.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipelines.config import load
from pipelines.errors import TallyflowError
from pipelines.preview.declared import declared_program

Header = tuple[str, bytes | None]
Change = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Sent:
    """A record as it is produced."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int = 0


@dataclass(frozen=True)
class Recipe:
    """A pipeline file, as a change of the case's, and its records; they are produced in parts, with a run after each.

    `files`: texts beside the pipeline file, by their names.
    """

    change: Change
    records: list[Sent]
    parts: int = 1
    files: Mapping[str, str] = field(default_factory=dict)


VALUES: dict[str, list[Any]] = {
    "int": [0, 1, 2, 3, 7, 10, 255, 256, -1, 2**31, 2**62, 1.0],
    "int32": [0, 1, 5, -7, 2**31 - 1],
    "uint8": [0, 1, 200, 255],
    "float": [0, 0.5, 1.25, -3.75, 1e30, 99.995],
    "string": ["", "a", "b", "abc", "é", "7", "12.50", "2026-01-31", "2026-01-31T12:00:00Z", "c0ffee00-1234-5678-9abc-def012345678", "::1"],
    "bool": [True, False],
    "bytes": ["a", "é", ""],
    "array": [[], [1, 2], [None, 3], ["x"]],
    "object": [{}, {"a": 1}, {"a": "x", "b": None}],
    "map": [{}, {"a": 1}, {"b": 2, "c": 3}],
}
WRONG = [True, "x", 1.5, [1], {"a": 1}, 2**70]
CONDITIONS = {
    "int": ["{f} % 3 <> 0", "{f} > 1", "{f} IS NOT NULL", "{f} BETWEEN 0 AND 300", "100 / {f} >= 0"],
    "int32": ["{f} >= 0", "{f} + 1 > 1"],
    "uint8": ["{f} < 250"],
    "float": ["{f} < 50.5", "{f} * {f} < 1e12"],
    "string": ["length({f}) < 20", "{f} LIKE 'a%' OR {f} IS NULL", "CAST({f} AS INTEGER) < 9", "{f} <> 'b'"],
    "bool": ["{f}", "NOT {f}", "coalesce({f}, true)"],
    "timestamp": ["{f} IS NOT NULL", "year({f}) > 2000"],
    "map": ["cardinality({f}) < 3"],
}
CONDITIONS_EXPR = {"int": ["{f} > 1", "{f} != 3"], "string": ["len({f}) < 20", '{f} != "b"'], "bool": ["{f}"], "float": ["{f} < 50.5"]}
VALUES_OF = {
    "int": ["{f} * 2", "{f} / 3", "{f} % 5", "{f} + 9000000000000000000", "abs({f})", "CAST({f} AS VARCHAR)"],
    "int32": ["{f} * 3", "{f} // 2"],
    "uint8": ["{f} + 1"],
    "float": ["{f} * 2.5", "1 / {f}", "round({f})", "CAST({f} AS DECIMAL(18, 2))"],
    "string": ["upper({f})", "concat({f}, '-x')", "CAST({f} AS INTEGER)", "length({f})", "TRY_CAST({f} AS DOUBLE)", "nullif({f}, '')"],
    "bool": ["NOT {f}", "CASE WHEN {f} THEN 'y' ELSE 'n' END"],
    "timestamp": ["year({f})"],
}
VALUES_OF_EXPR = {"int": ["{f} * 2", "{f} + 1"], "string": ["upper({f})", "len({f})"], "float": ["{f} * 2.5"]}
COLUMN_TYPES = {
    "int": ["Int64", "Nullable(Int64)", "Int32", "UInt8", "Nullable(Float64)", "Decimal(20, 2)", "DateTime('UTC')", "Int128", "UInt256"],
    "int32": ["Int32", "Int64", "UInt16"],
    "int64": ["Int64", "Nullable(Int32)", "Nullable(UInt64)"],
    "uint8": ["UInt8", "Nullable(Int16)"],
    "float": ["Float64", "Nullable(Float32)", "Nullable(Decimal(9, 2))", "DateTime64(3, 'UTC')"],
    "string": [
        *("String", "Nullable(String)", "LowCardinality(String)", "FixedString(4)", "Nullable(UUID)", "Nullable(Date)", "IPv6"),
        *("Nullable(DateTime64(3, 'UTC'))", "Nullable(Decimal(9, 2))", "Enum8('a' = 1, 'b' = 2)", "Int128"),
    ],
    "bool": ["Bool", "Nullable(Bool)"],
    "bytes": ["String", "Nullable(String)"],
    "array": ["Array(Nullable(Int64))", "String", "Array(Nullable(String))"],
    "object": ["String", "Map(String, Nullable(String))"],
    "map": ["Map(String, Nullable(Int64))", "Map(String, Nullable(String))"],
    "timestamp": ["DateTime64(6, 'UTC')", "Nullable(DateTime('UTC'))"],
}
KAFKA_COLUMNS = [
    *({"name": f"k_{part}", "from": part} for part in ("key", "headers", "offset", "partition", "timestamp", "topic", "arrival", "value")),
    {"name": "k_trace", "from": "headers", "header": "trace"},
    {"name": "k_bytes", "from": "key", "type": "bytes"},
]
SCALARS = {"int", "int32", "uint8", "string", "bool", "int64", "bytes"}
START = 1_780_000_000
FUNCTIONS = {
    "row": """
def f(record):
    text = str(record[{field!r}])
    if text == "255":
        raise ValueError("a bad number")
    rows = [{{{name!r}: text[n:], {size!r}: len(text) - n}} for n in range(len(text) % 4)]
    return rows if len(rows) != 3 else rows[0] if text[0] == "1" else [*rows, rows[0]]
""",
    "batch": """
import pyarrow as pa
def f(batch):
    made = [(row, str(value)[n:]) for row, value in enumerate(batch[{field!r}].to_pylist()) for n in range(len(str(value)) % 3)]
    if any(text == "200" for _, text in made):
        raise ValueError("a bad number")
    texts = pa.array([text for _, text in made], pa.string())
    sizes = pa.array([len(text) for _, text in made], pa.int64())
    return pa.table({{{name!r}: texts, {size!r}: sizes, "_row": pa.array([row for row, _ in made], pa.int64())}})
""",
}
"""Functions that make several rows of a record, one, or none, and fail on some."""


class _Draw:
    """One program, in the order in which it is drawn; `types`: the fields that are known so far."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        names = rng.sample(["alpha", "beta", "gamma", "delta", "eps", "zeta"], rng.randint(2, 5))
        self.fields = {"id": rng.choice(["int", "string"]), **{name: rng.choice(list(VALUES)) for name in names}, "at": "int"}
        self.columns = rng.sample(KAFKA_COLUMNS, rng.choice([0, 0, 1, 3]))
        self.types = {**self.fields, **{str(column["name"]): _type_of(column) for column in self.columns}}
        self.transforms: list[dict[str, Any]] = []
        self.made = 0
        self.files: dict[str, str] = {}

    def program(self) -> Change:
        rng = self.rng
        steps = [rng.choice([self._filter, self._compute]) for _ in range(rng.randint(0, 4))]
        if rng.random() < 0.2:
            steps.append(self._stateless)
        if rng.random() < 0.7:
            steps.insert(rng.randint(0, len(steps)), self._dedup)
        if rng.random() < 0.5:
            behind = steps.index(self._dedup) + 1 if self._dedup in steps else 0
            steps.insert(rng.randint(behind, len(steps)), self._function)
        for step in steps:
            step()
        sinks, buckets = self._sinks(), rng.choice([1, 2, 8])

        def change(document: dict[str, Any]) -> None:
            source = document["sources"][0]
            source["schema_fields"] = [{"name": name, "type": kind} for name, kind in self.fields.items()]
            source["columns"] = self.columns
            document["transforms"], document["transforms_order"] = self.transforms, "file"
            document["buckets"] = buckets
            sink = document["sink"]
            if len(sinks) == 1:
                sink["mapping"] = sinks[0]["mapping"]
            else:
                del document["sink"]
                document["sinks"] = [{**sink, **one, "table": f"{sink['table']}_{one['id']}"} for one in sinks]

        return change

    def _one_of(self, kinds: Any) -> str | None:
        names = [name for name, kind in self.types.items() if kind in kinds]
        return self.rng.choice(names) if names else None

    def _expression(self, sql: dict[str, list[str]], expr: dict[str, list[str]]) -> tuple[str, str] | None:
        language, known = self.rng.choice([("sql", sql), ("sql", sql), ("sql", sql), ("expr", expr)])
        name = self._one_of(known)
        return (language, self.rng.choice(known[self.types[name]]).format(f=name)) if name else None

    def _filter(self) -> None:
        if found := self._expression(CONDITIONS, CONDITIONS_EXPR):
            self.transforms.append({"type": "filter", "config": {"language": found[0], "expression": found[1]}})

    def _compute(self) -> None:
        if found := self._expression(VALUES_OF, VALUES_OF_EXPR):
            name = self._name()
            field = {"name": name, "expression": found[1]}
            self.transforms.append({"type": "compute", "config": {"language": found[0], "fields": [field]}})
            self.types[name] = "computed"

    def _stateless(self) -> None:
        kept = {name: kind for name, kind in self.types.items() if name in self.fields and kind in SCALARS}
        outputs = [{"output_name": name, "output_type": kind, "expression": name} for name, kind in kept.items()]
        self.transforms.append({"type": "stateless", "config": {"language": "sql", "transforms": outputs}})
        self.types = kept

    def _function(self) -> None:
        read = self._one_of({"int", "int32", "int64", "uint8", "string"})
        if read is None:
            return
        mode, name = self.rng.choice([*FUNCTIONS]), self._name()
        size = f"{name}_size"
        self.files["own.py"] = FUNCTIONS[mode].format(field=read, name=name, size=size)
        output = [{"name": name, "type": "string"}, {"name": size, "type": "int64"}]
        config = {"function": "own:f", "mode": mode, "rows": "many", "input": [read], "output": output}
        self.transforms.append({"type": "python", "config": config})
        self.types |= {name: "string", size: "int64"}

    def _dedup(self) -> None:
        rng = self.rng
        keys = [name for name, kind in self.types.items() if kind in SCALARS]
        config: dict[str, Any] = {"key": rng.sample(keys, min(len(keys), rng.choice([1, 1, 2]))), "time_window": rng.choice(["1h", "30ms"])}
        if "at" in self.types and rng.random() < 0.3:
            config |= {"time": "event", "time_field": "at", "time_window": "20s", "allowed_lateness": rng.choice(["0s", "5s"])}
            config["max_ahead"] = "100000h"
        if rng.random() < 0.2:
            config["keep_duplicates"] = True
        self.transforms.append({"type": "dedup", "config": config})

    def _sinks(self) -> list[dict[str, Any]]:
        """Mostly one; else two or three, most of them with a condition."""
        sinks: list[dict[str, Any]] = []
        for number in range(self.rng.choice([1, 1, 1, 2, 3])):
            found = self._expression(CONDITIONS, CONDITIONS_EXPR) if self.rng.random() < 0.7 else None
            when = {"language": found[0], "when": found[1]} if found else {}
            sinks.append({"id": f"s{number}", "mapping": self._mapping(), **when})
        if len(sinks) > 1 and all("when" in sink for sink in sinks[:-1]) and self.rng.random() < 0.5:
            sinks[-1] = {"id": sinks[-1]["id"], "mapping": sinks[-1]["mapping"], "default": True}
        return sinks

    def _mapping(self) -> list[dict[str, str]]:
        names = self.rng.sample(sorted(self.types), self.rng.randint(1, min(6, len(self.types))))
        kinds = [*COLUMN_TYPES["int"], *COLUMN_TYPES["string"], *COLUMN_TYPES["bool"], "Nullable(Decimal(20, 4))"]
        return [{"name": name, "column_name": f"c_{name}", "column_type": self._column_type(name, kinds)} for name in names]

    def _column_type(self, name: str, kinds: list[str]) -> str:
        """Mostly a type that takes every value of the field."""
        known = COLUMN_TYPES.get(self.types[name], kinds)
        return self.rng.choice(known[:2] if self.rng.random() < 0.7 else known)

    def _name(self) -> str:
        self.made += 1
        return f"made_{self.made}"

    def record(self, number: int) -> Sent:
        rng = self.rng
        event: dict[str, Any] = {}
        for name, kind in self.fields.items():
            if name == "at":
                event[name] = START + number // 4 + rng.randrange(-8, 8)
            elif name == "id":
                event[name] = rng.choice(VALUES[kind][:4])
            elif (luck := rng.random()) < 0.96:
                event[name] = rng.choice(VALUES[kind]) if luck < 0.92 else None
        if rng.random() < 0.08:
            event[rng.choice(list(self.fields))] = rng.choice(WRONG)
        value = json.dumps(event).encode() if rng.random() < 0.94 else rng.choice([b"{", b"", None, b"[1]", b"\xff"])
        key = rng.choice([None, *[b"a", b"b", b"c"] * 6, b"\xff"])
        headers: list[Header] = [("trace", rng.choice([*[b"1", b"2"] * 6, None, b"\xfe"]))] if rng.random() < 0.6 else []
        return Sent(value, key, tuple(headers), rng.randrange(3))


def _type_of(column: dict[str, str]) -> str:
    kinds = {"headers": "map", "offset": "int64", "partition": "int32", "timestamp": "timestamp", "arrival": "timestamp"}
    return column.get("type") or ("string" if "header" in column else kinds.get(column["from"], "string"))


def random_recipe(seed: int, document: dict[str, Any], records: int = 60) -> Recipe:
    """Draw the recipe of a seed. `document`: the file that a recipe changes."""
    rng = random.Random(seed)
    while True:
        drawn = _Draw(rng)
        change = drawn.program()
        if loads(change, document, drawn.files):
            return Recipe(change, [drawn.record(number) for number in range(records)], rng.choice([1, 1, 2]), drawn.files)


def loads(change: Change, document: dict[str, Any], files: Mapping[str, str]) -> bool:
    """Return whether a start would take the changed file, with `files` beside it."""
    trial = json.loads(json.dumps(document))
    change(trial)
    with TemporaryDirectory() as directory:
        for name, text in {**files, "drawn.json": json.dumps(trial)}.items():
            Path(directory, name).write_text(text)
        try:
            declared_program(load(Path(directory, "drawn.json"), {}, offline=True))
        except TallyflowError:
            return False
    return True
