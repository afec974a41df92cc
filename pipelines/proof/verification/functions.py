"""Functions of the user's own in the reference: each record is called for by itself, in a host, from a function of the engine.

What the function computes is not judged: its code is the pipeline's. Judged is which records it was called for, and with which values.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from pipelines.functions.calls import HOSTS
from pipelines.functions.spec import Function
from pipelines.process.program import Program
from pipelines.process.steps import Step
from pipelines.types.fields import SOURCE_TYPES

_OF_ARROW = {pa.string(): "VARCHAR", pa.binary(): "BLOB"}


def name_of(function: Function) -> str:
    """Return the name under which the engine calls a function."""
    return f"tf_function_{hashlib.sha256(repr(function).encode()).hexdigest()[:16]}"


def register(engine: duckdb.DuckDBPyConnection, program: Program, known: set[str]) -> None:
    """Make the functions of a program callable in the engine, but for those of the names `known`, to which they are added.

    Each returns a struct: `stage`, as in `$rows` of the statements, and `v0`, `v1`... for the outputs; one that may make several rows of a
    record returns a list of them, of one without a row for a record that ends.
    """
    for function in filter(None, map(_function_of, program.steps)):
        if name_of(function) not in known:
            known.add(name_of(function))
            engine.create_function(
                name_of(function),
                partial(_called, function),
                [engine.type(f"STRUCT({_members('i', function.inputs)})")],
                engine.type(f"STRUCT(stage VARCHAR, {_members('v', function.outputs)}){'[]' if function.makes_several else ''}"),
                type=PythonUDFType.ARROW,
                null_handling=FunctionNullHandling.SPECIAL,
            )


def _function_of(step: Step) -> Function | None:
    found: Function | None = getattr(step, "called", None)
    return found


def argument(values: Sequence[str]) -> str:
    """Return SQL of the one argument of a function, from SQL of its inputs."""
    return "{" + ", ".join(f"'i{index}': {value}" for index, value in enumerate(values)) + "}"


def _members(letter: str, fields: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{letter}{index} {_type_of(kind)}" for index, (_, kind) in enumerate(fields))


def _type_of(kind: str) -> str:
    source = SOURCE_TYPES[kind]
    return _OF_ARROW.get(source.arrow, source.engine)


def _called(function: Function, structs: pa.Array | pa.ChunkedArray) -> Any:
    whole = structs.combine_chunks() if isinstance(structs, pa.ChunkedArray) else structs
    rows = pa.table(whole.flatten(), names=[name for name, _ in function.inputs])
    called = HOSTS.call_alone(function, rows)
    counts = np.bincount(called.passed, minlength=rows.num_rows)
    # A record without a row has one that says why.
    ends = np.cumsum(np.maximum(counts, 1))
    stages = np.full(ends[-1] if len(ends) else 0, None, dtype=object)
    stages[ends[counts == 0] - 1] = "dropped.function"
    stages[ends[[row for row, _, _ in called.failures]] - 1] = function.stage
    places = np.full(len(stages), -1)
    places[np.repeat(counts, np.maximum(counts, 1)) > 0] = np.arange(len(called.passed))
    chosen = pa.array(places, mask=places < 0)
    values = [column.take(chosen).combine_chunks() for column in called.outputs.columns]
    structs = pa.StructArray.from_arrays(
        [pa.array(stages, pa.string()), *values], names=["stage", *(f"v{index}" for index in range(len(values)))]
    )
    return pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), structs) if function.makes_several else structs
