"""Look-up tables in the reference: the snapshots of a plan as tables of the engine, joined by SQL on their key columns.

The hashes by which the step finds a row are not used, nor its search; they only tell a row from none.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from pipelines.process.program import Program
from pipelines.proof.verification.values import literal

_LOWEST = {"int64": "-9223372036854775808", "uint64": "0", "timestamp": "'-infinity'::TIMESTAMPTZ"}


@contextmanager
def snapshots_in(engine: duckdb.DuckDBPyConnection, program: Program) -> Iterator[None]:
    """Make the snapshots that a program of a plan reads tables of the engine, while the block lasts."""
    openers: dict[str, Any] = {step.table: step.snapshot for step in program.steps if getattr(step, "snapshot", None)}  # type: ignore[attr-defined]
    found = {table: opened().rows for table, opened in openers.items()}
    for table, rows in found.items():
        engine.register(_name(table), pa.Table.from_batches([rows]))
    try:
        yield
    finally:
        for table in found:
            engine.unregister(_name(table))


def _name(table: str) -> str:
    return f"_tf_lookup_{table}"


def join_of(step: Any, quoted: Callable[[str], str]) -> Mapping[str, str]:
    """Return the parameters of the statement of a look-up, but for those of its fields. `quoted`: the name of a field in SQL."""
    equal = [f'found."key.{number}" = given.{quoted(one.field)}' for number, one in enumerate(step.key)]
    missing = {"null": "NULL", "reject": literal(step.stage), "drop": literal("dropped.lookup")}[step.missing]
    parts = {"table": _name(step.table), "missing": missing}
    within = step.between
    if within is None:
        return {**parts, "join": "LEFT JOIN", "begin": "", "is_equal": " AND ".join(equal), "is_inside": "true"}
    at, bound = f"given.{quoted(within.field)}", "<=" if within.includes_end else "<"
    # The newest range that has begun; whether the record is before its end is looked at afterwards.
    begin = f', coalesce("from", {_LOWEST[step.spec.between.type]}) AS begin'
    is_inside = f'found."to" IS NULL OR {at} {bound} found."to"'
    return {
        **parts,
        "join": "ASOF LEFT JOIN",
        "begin": begin,
        "is_equal": " AND ".join([*equal, f"{at} >= found.begin"]),
        "is_inside": is_inside,
    }
