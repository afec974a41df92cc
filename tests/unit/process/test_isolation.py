"""A stage that ends on some records goes on without them, and only they are rejected."""

from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.process.isolation import ATTEMPTS, INTERNAL_ERROR, take_out
from pipelines.process.steps import isolated
from pipelines.protocol.records import StageOutput, empty_rejected
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine


class Engines:
    """Engines that do nothing; how many were opened."""

    def __init__(self) -> None:
        self.opened = 0

    def __call__(self) -> "Engines":
        self.opened += 1
        return self

    def discard(self) -> None: ...


class Faulty:
    """A stage that ends while the record `at` is among others or alone, `times` times; else it gives back what it was given."""

    def __init__(self, at: Sequence[int], error: Exception, times: int = 2**31) -> None:
        self.at, self.error, self.left, self.calls = at, error, times, 0

    def __call__(self, engine: object, table: pa.Table) -> StageOutput:
        self.calls += 1
        if self.left and set(self.at) & set(table.column("_tf_ordinal").to_pylist()):
            self.left -= 1
            raise self.error
        return StageOutput(table, empty_rejected())


def numbered(rows: int) -> pa.Table:
    return pa.table({"_tf_sequence": pa.array([7] * rows, pa.uint64()), "_tf_ordinal": pa.array(range(rows), pa.uint32())})


def run(stage: Faulty, rows: int) -> tuple[list[int], list[int], list[str]]:
    output = isolated("parse", stage, Engines(), numbered(rows), Engines())
    return output.accepted.column("_tf_ordinal").to_pylist(), *(output.rejected.column(n).to_pylist() for n in ("_tf_ordinal", "message"))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 300).flatmap(lambda rows: st.tuples(st.just(rows), st.sets(st.integers(0, rows - 1), max_size=20))))
def test_exactly_the_faulty_records_are_rejected_in_order(case: tuple[int, set[int]]) -> None:
    rows, poison = case
    accepted, rejected, _ = run(Faulty(sorted(poison), RuntimeError("a value")), rows)
    assert rejected == sorted(poison)
    assert accepted == [row for row in range(rows) if row not in poison]


def test_one_record_among_many_takes_few_calls() -> None:
    stage = Faulty([70_000], RuntimeError())
    run(stage, 100_000)
    assert stage.calls <= 2 * 17 + ATTEMPTS + 5


def test_a_rejection_names_stage_and_error_kind_only() -> None:
    output = isolated("transform", Faulty([1], ValueError("iban DE00 4711")), Engines(), numbered(3), Engines())
    (row,) = output.rejected.to_pylist()
    assert (row["stage"], row["code"], row["field"]) == ("transform", INTERNAL_ERROR, None)
    assert "ValueError" in row["message"] and "4711" not in row["message"]


@pytest.mark.parametrize("times", range(1, ATTEMPTS + 1))
def test_an_error_that_passes_costs_no_record(times: int) -> None:
    assert run(Faulty([0], RuntimeError(), times), 1) == ([0], [], [])


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(28, "No space left on device"), duckdb.IOException("disk"), duckdb.OutOfMemoryException("memory")]
)
def test_an_error_of_the_host_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(Faulty([3], error), 8)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file or directory"), OSError(22, "Invalid argument"), OSError("words")])
def test_a_bug_that_looks_for_a_file_is_no_error_of_the_host(error: Exception) -> None:
    accepted, rejected, messages = run(Faulty([3], error), 8)
    assert (accepted, rejected) == ([0, 1, 2, 4, 5, 6, 7], [3])
    assert type(error).__name__ in messages[0]


def test_memory_short_for_many_records_suffices_for_fewer() -> None:
    class Greedy(Faulty):
        def __call__(self, engine: object, table: pa.Table) -> StageOutput:
            if table.num_rows > 10:
                raise duckdb.OutOfMemoryException("memory")
            return StageOutput(table, empty_rejected())

    assert run(Greedy([], RuntimeError()), 100) == (list(range(100)), [], [])


def test_a_record_that_takes_too_much_memory_is_rejected_alone(engine: Engine) -> None:
    def stage(on: Engine, table: pa.Table) -> StageOutput:
        if 2 in table.column("_tf_ordinal").to_pylist():
            on.select("SELECT repeat(text, 10000) FROM _tf_values", pa.table({"text": ["x" * 300_000]}))
        return StageOutput(table, empty_rejected())

    output = isolated("compute", stage, engine, numbered(4), open_engine)
    assert output.accepted.column("_tf_ordinal").to_pylist() == [0, 1, 3]
    assert output.rejected.select(["_tf_ordinal", "code", "message"]).to_pylist() == [
        {"_tf_ordinal": 2, "code": INTERNAL_ERROR, "message": "compute takes more than 2GiB of memory for this record alone, 3 times of 3"}
    ]


def test_an_error_without_any_record_is_no_records_fault() -> None:
    def broken(*_: object) -> StageOutput:
        raise TypeError("a mapping of ours")

    with pytest.raises(TypeError, match="a mapping of ours"):
        isolated("transform", broken, Engines(), numbered(4), Engines())


@pytest.fixture
def engine() -> Iterator[Engine]:
    with open_engine() as opened:
        yield opened


def test_an_engine_that_has_ended_is_replaced(engine: Engine) -> None:
    engines = Engines()

    def stage(on: object, table: pa.Table) -> StageOutput:
        if 2 in table.column("_tf_ordinal").to_pylist():
            raise duckdb.FatalException("invalidated")
        return StageOutput(table, empty_rejected())

    output = isolated("parse", stage, engine, numbered(4), engines)
    assert output.rejected.column("_tf_ordinal").to_pylist() == [2]
    assert engines.opened > ATTEMPTS


def test_decided_records_are_not_tried() -> None:
    decided = [[7, 2, "parse", "words"], [8, 0, "parse", "another frame"], [7, 0, "transform", "words"]]
    output = take_out(numbered(4), decided)
    assert output.accepted.column("_tf_ordinal").to_pylist() == [1, 3]
    assert pc.unique(output.rejected.column("code")).to_pylist() == [INTERNAL_ERROR]
    assert output.rejected.select(["_tf_ordinal", "stage"]).to_pylist() == [
        {"_tf_ordinal": 2, "stage": "parse"},
        {"_tf_ordinal": 0, "stage": "transform"},
    ]
