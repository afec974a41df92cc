"""The circuit breaker: too many records rejected for one cause stop, once, whatever the sizes of the steps; a retry is not counted."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.config.docs import EXAMPLE
from pipelines.engine.connections import Connections
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import HaltError
from pipelines.process.admission import STAGES, admission_of, admit
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA
from pipelines.process.fingerprints import fingerprint
from pipelines.process.items import ProcessItem
from pipelines.process.rejection_limit import MIN_RECORDS, RejectionLimit, Sample, causes_of, halt_at

WRONG, NULL = ("wrong_type", "expected int, found a string"), ("null_in_non_nullable", "the field is null")


def dead_letters(count: int, cause: tuple[str, str] = WRONG, first: int = 0) -> pa.Table:
    """Letters of one cause at offsets `first`, `first` + 1, ..."""
    code, message = cause
    row = {"_tf_topic": "orders", "_tf_partition": 3, "_tf_sequence": 9, "stage": "parse", "code": code, "field": "id", "message": message}
    row["attempts"] = 1
    rows: list[dict[str, Any]] = [{**row, "_tf_offset": first + number, "_tf_ordinal": first + number} for number in range(count)]
    return pa.Table.from_pylist(rows, schema=DEAD_LETTER_SCHEMA)


def stops(rejection_limit: RejectionLimit, records: int, rejected: pa.Table, to: int = 1, share: str = "") -> bool:
    try:
        rejection_limit.check(records, rejected, share, to)
    except HaltError:
        return True
    return False


@pytest.mark.parametrize(
    ("records", "rejected", "is_stopped"),
    [(1000, 200, False), (1000, 201, True), (999, 999, False), (1000, 0, False), (50_000, 10_001, True)],
)
def test_more_than_20_percent_of_at_least_1000_records_stop(records: int, rejected: int, is_stopped: bool) -> None:
    assert stops(RejectionLimit(20), records, dead_letters(rejected)) == is_stopped


def test_two_causes_of_15_percent_each_do_not_stop() -> None:
    both = pa.concat_tables([dead_letters(150), dead_letters(150, NULL, first=500)])
    assert not stops(RejectionLimit(20), 1000, both)
    assert stops(RejectionLimit(14), 1000, both)


def test_messages_that_differ_in_numbers_only_are_one_cause() -> None:
    numbered = pa.concat_tables([dead_letters(1, ("refused", f"violated at row {row}"), first=row) for row in range(201)])
    assert stops(RejectionLimit(20), 1000, numbered)


def test_100_percent_never_stops() -> None:
    assert not stops(RejectionLimit(100), 5000, dead_letters(5000))


def test_small_steps_add_up_then_begin_anew() -> None:
    rejection_limit = RejectionLimit(20)
    assert [stops(rejection_limit, 50, dead_letters(10), to) for to in range(1, 21)] == [False] * 20, "20 % exactly"
    assert [stops(rejection_limit, 50, dead_letters(0 if to < 36 else 50), to) for to in range(21, 41)] == [False] * 19 + [True]


def test_a_step_that_is_tried_again_is_not_counted_again() -> None:
    rejection_limit = RejectionLimit(20)
    assert not any(stops(rejection_limit, 50, dead_letters(50), to=7) for _ in range(100))
    assert not stops(rejection_limit, 50, dead_letters(50), to=7, share="another bucket"), "its records are others"
    assert not stops(rejection_limit, 899, dead_letters(0), to=8)
    assert not stops(rejection_limit, 0, dead_letters(0), to=9)


def test_once_stopped_it_stops_every_later_attempt() -> None:
    rejection_limit = RejectionLimit(20)
    assert stops(rejection_limit, 1000, dead_letters(1000), to=5)
    assert stops(rejection_limit, 1000, dead_letters(1000), to=5)
    assert stops(rejection_limit, 10, dead_letters(0), to=6)


def test_the_message_names_cause_share_example_and_both_ways_on() -> None:
    with pytest.raises(HaltError) as caught:
        RejectionLimit(20).check(1000, pa.concat_tables([dead_letters(100, NULL, first=500), dead_letters(300, first=7)]), "", 1)
    reported = str(caught.value)
    name = fingerprint("parse", "wrong_type", "id", WRONG[1])
    assert "300 of 1,000 records were rejected for one cause, more than 20 %" in reported
    assert (
        f"{name}, parse: wrong_type of id: expected int, found a string, for example orders partition 3 offset 7 (raw position 9.7)"
        in reported
    )
    assert "Correct the mapping" in reported
    assert "`tallyflow run FILE --accept`" in reported


def connections(**run: str) -> Connections:
    """Of a start with the file's version `new`."""
    spec = RunSpec(EXAMPLE, "pipeline", {}, {}, "new", "", **run)
    return Connections(spec, keep_partitions=False)


def item(of: Connections, version: str) -> ProcessItem:
    return ProcessItem(start=0, to=1, config=version, admission=admission_of(of))


def is_admitted(of: Connections, version: str, records: int = 1000, to: int = 1) -> bool:
    try:
        admit(of, item(of, version), STAGES, (records, "", to), dead_letters(records))
    except HaltError:
        return False
    return True


def test_a_plan_of_another_configuration_is_stopped_too() -> None:
    with pytest.raises(HaltError, match=r"planned before the file was edited.*--accept` makes them, and only them,"):
        admit(of := connections(), item(of, "old"), STAGES, (1000, "", 1), dead_letters(1000))


@pytest.mark.parametrize(
    ("accepted", "passes"), [("", set()), ("old", {"old"}), ("new", {"new"})], ids=["without accept", "an old plan is open", "none is"]
)
def test_accept_passes_the_open_plan_but_no_edited_file(accepted: str, passes: set[str]) -> None:
    of = connections(accepted_config=accepted)
    assert {version for version in ("old", "new") if is_admitted(of, version)} == passes


def test_records_of_two_configurations_are_never_in_one_sample() -> None:
    of = connections()
    assert is_admitted(of, "old", records=999)
    assert is_admitted(of, "new", records=999, to=2)
    assert not is_admitted(of, "new", records=1, to=3)


def test_causes_are_counted_with_the_first_letter_of_each() -> None:
    found = causes_of(pa.concat_tables([dead_letters(2, NULL, first=4), dead_letters(3, first=6)]))
    assert sorted((cause.records, cause.example) for cause in found) == [
        (2, "orders partition 3 offset 4 (raw position 9.4)"),
        (3, "orders partition 3 offset 6 (raw position 9.6)"),
    ]
    assert causes_of(dead_letters(0)) == []


def test_a_pipeline_stopped_at_rejections_names_the_first() -> None:
    halt_at(dead_letters(0))
    with pytest.raises(
        HaltError, match=r"orders partition 3 offset 5 \(raw position 9.5\): parse: wrong_type of id: expected int.*dead_letter"
    ):
        halt_at(dead_letters(3, first=5))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 100)), max_size=30), st.integers(1, 100))
def test_each_record_counts_once_and_at_most_999_letters_pass(steps: list[tuple[int, int]], percent: int) -> None:
    sample, judged, passed = Sample(), 0, 0
    for records, share in steps:
        rejected = records * share // 100
        sample = sample.plus(records, causes_of(dead_letters(rejected)))
        should = sample.records >= MIN_RECORDS and any(cause.records * 100 > percent * sample.records for cause in sample.causes.values())
        try:
            sample.check(percent, "")
        except HaltError:
            assert should
            assert sample.records - records < MIN_RECORDS, "what passed before it of the same sample"
            return
        assert not should
        judged += sample.records if sample.is_enough else 0
        passed += records
        sample = sample.rest
    assert judged + sample.records == passed
