"""A cause that rejects one record after the other stops its leg before the dead letters are flooded; both ways on lose nothing."""

import json
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.dedup_case import check_event_times, check_first_of_keys, keyed_by, timed_by
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until

from pipelines.errors import HaltError
from pipelines.process import rejection_limit as rejection_limit
from pipelines.protocol.tally import tally
from pipelines.testing import SINGLE

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("brief_inserts")]


def of_wrong_type(numbers: range) -> list[bytes]:
    """Events whose id is text, which no mapping of the case takes."""
    return [json.dumps({"id": str(number), "name": "n", "amount": None}).encode() for number in numbers]


def good(numbers: range) -> list[bytes]:
    return [json.dumps({"id": number, "name": "n", "amount": None}).encode() for number in numbers]


def ids_as_text(document: dict[str, Any]) -> None:
    """The mended file: the field is read as the producer sends it."""
    document["sources"][0]["schema_fields"][0]["type"] = "string"
    document["sink"]["mapping"][0] |= {"column_name": "name_of_id", "column_type": "String"}


def halting(document: dict[str, Any]) -> None:
    document["on_error"] = {"rejected": "halt"}


def is_open(case: PipelineCase, leg: str = "process") -> bool:
    log = case.log()
    found = {one.leg: one for one in tally(log, case.names, SINGLE).legs}
    log.close()
    assert all(one.residue == 0 for one in found.values())
    return found[leg].has_open_plan


def test_a_broken_mapping_stops_before_its_first_letter(case: PipelineCase, way: None) -> None:
    case.create_topic()
    case.send(of_wrong_type(range(2000)))
    # All on raw before the first is judged: how many a first poll brings depends on the machine, and fewer than 1,000 pass.
    case.run_in_turn("ingest")
    for _ in range(2):
        with pytest.raises(HaltError, match=r"rejected for one cause, more than 20 %.*parse: wrong_type of id.*offset.*--accept"):
            case.warm_run()
        assert (case.dead_letters(), case.count(), is_open(case)) == ([], 0, True)
    case.warm_run(accept=True)
    assert (len(case.dead_letters()), case.count()) == (2000, 0)
    case.check()
    case.send(good(range(100)))
    case.warm_run()
    assert case.count() == 100
    case.check()


def test_a_mended_file_still_needs_accept_for_earlier_plans(case: PipelineCase) -> None:
    case.create_topic()
    case.send(of_wrong_type(range(2000)))
    with pytest.raises(HaltError, match="rejected for one cause, more than 20 %"):
        case.run_in_turn()
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN name_of_id String DEFAULT ''")
    case.write_file(ids_as_text)
    case.send([*of_wrong_type(range(2000, 2500)), *good(range(1500))])
    for _ in range(2):
        with pytest.raises(HaltError, match=r"2,000 of 2,000 records.*planned before the file was edited"):
            case.run_in_turn()
        assert (case.dead_letters(), case.count(), is_open(case)) == ([], 0, True)
    # The edited file fits the first records behind the plan, and not the others.
    with pytest.raises(HaltError, match=r"1,500 of 2,000 records.*already planned"):
        case.run_in_turn(accept=True)
    assert (len(case.dead_letters()), case.count()) == (2000, 0)
    case.run_in_turn(accept=True)
    assert (len(case.dead_letters()), case.count()) == (3500, 500)
    assert Counter(dead_letter["config_version"] for dead_letter in case.dead_letters()).most_common() == [
        (case.dead_letters()[0]["config_version"], 2000),
        (case.dead_letters()[-1]["config_version"], 1500),
    ]


def test_with_dedup_the_breaker_is_asked_before_the_exchange(case: PipelineCase, way: None) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send([*[b"{"] * 2000, *good(range(3000))])
    case.run_in_turn("ingest")
    with pytest.raises(HaltError, match=r"rejected for one cause, more than 20 %"):
        case.warm_run()
    assert (case.dead_letters(), case.count()) == ([], 0)
    case.warm_run(accept=True)
    assert check_first_of_keys(case) == {"row": 3000, "letter": 2000}


def late(first: int, count: int, at: int) -> list[bytes]:
    """Events with keys of their own and the time `at`."""
    return [json.dumps({"id": number, "name": "n", "amount": None, "at": at}).encode() for number in range(first, first + count)]


def test_records_that_are_late_are_judged_behind_the_exchange(case: PipelineCase, way: None) -> None:
    case.write_file(timed_by("at", "id", "1h"))
    case.create_topic()
    case.send(late(0, 10, at=1_780_000_000))
    case.warm_run()
    case.send(late(10, 10_000, at=1_770_000_000))
    with pytest.raises(HaltError, match=r"rejected for one cause, more than 20 %.*dedup: late of at: at lies before the watermark"):
        case.run_in_turn()
    # A bucket's share of a plan may be fewer than 1,000 rows; each worker process counts for itself.
    assert len(case.dead_letters()) < 5000
    assert is_open(case)
    case.warm_run(accept=True)
    assert check_event_times(case, 3600, 0) == {"row": 10, "late": 10_000}


def test_batches_at_a_low_rate_add_up_until_enough_are_seen(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection_limit, "MIN_RECORDS", 200)
    case.create_topic()
    case.warm_run()
    runner = case.warm_runner(until_caught_up=False)
    running = case.in_background(runner)
    for batch in range(4):
        case.send(of_wrong_type(range(50 * batch, 50 * batch + 50)))
        if batch < 3:
            wait_until(lambda: len(case.dead_letters()) == 50 * batch + 50, "the batch's dead letters")  # noqa: B023
    wait_until(lambda: runner.legs["process"].failure, "a halt")
    assert "200 of 200 records were rejected for one cause" in runner.legs["process"].status.message
    assert 150 <= len(case.dead_letters()) < 200, "the last 50 may have come in two batches"
    runner.request_stop()
    running.join()
    case.warm_run(accept=True)
    assert len(case.dead_letters()) == 200
    case.check()


def test_fewer_than_the_limit_are_ordinary_dead_letters(case: PipelineCase) -> None:
    case.create_topic(1)
    case.send([*of_wrong_type(range(200)), *good(range(800))], partitions=1)
    case.warm_run()
    assert (len(case.dead_letters()), case.count()) == (200, 800)
    case.check()


def test_the_command_takes_accept(case: PipelineCase) -> None:
    case.create_topic()
    case.send(of_wrong_type(range(1500)))
    stopped = case.invoke("run", str(case.file), "--until-caught-up")
    assert stopped.exit_code == 1
    assert "tallyflow run FILE --accept" in stopped.stderr
    accepted = case.invoke("run", str(case.file), "--until-caught-up", "--accept")
    assert accepted.exit_code == 0, accepted.stderr
    assert len(case.dead_letters()) == 1500
    case.check()


# -- at the sink ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """To judge by: each row that is refused takes inserts of its own to be found."""
    monkeypatch.setattr(rejection_limit, "MIN_RECORDS", 50)


def refuse_from(case: PipelineCase, first: int) -> None:
    case.create_topic(1)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT small CHECK id < {first}")


@pytest.mark.usefixtures("few_are_enough")
def test_a_table_refusing_a_fifth_of_a_chunk_stops_the_sink(case: PipelineCase) -> None:
    refuse_from(case, 38)
    case.send_events(50, partitions=1)
    with pytest.raises(HaltError, match=r"11 of 50 records were rejected for one cause.*sink: refused.*offset"):
        case.warm_run()
    assert case.dead_letters() == []
    case.warm_run(accept=True)
    assert (len(case.dead_letters()), case.count()) == (12, 38)
    case.check()


@pytest.mark.usefixtures("few_are_enough")
def test_a_mended_table_takes_the_undecided_rows(case: PipelineCase) -> None:
    refuse_from(case, 38)
    case.send_events(50, partitions=1)
    with pytest.raises(HaltError, match="11 of 50 records"):
        case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT small")
    case.warm_run()
    assert (len(case.dead_letters()), case.count()) == (10, 40)
    case.check()


# -- on_error ---------------------------------------------------------------------------------------------------------------


def test_rejected_halt_stops_at_one_record_until_changed_back(case: PipelineCase, way: None) -> None:
    case.write_file(halting)
    case.create_topic(1)
    case.send([*good(range(10)), *of_wrong_type(range(10, 12)), *good(range(12, 20))], partitions=1)
    place = rf"{case.topic} partition 0 offset 10 \(raw position \d+\.\d+\): parse: wrong_type of id"
    for _ in range(2):
        with pytest.raises(HaltError, match=place):
            case.warm_run()
        assert (case.dead_letters(), is_open(case)) == ([], True)
    case.write_file()
    case.warm_run()
    assert (len(case.dead_letters()), case.count()) == (2, 18)
    case.check()


def test_with_dedup_rejected_halt_stops_before_the_exchange(case: PipelineCase, session: SparkSession) -> None:
    case.session = session

    def change(document: dict[str, Any]) -> None:
        keyed_by("id")(document)
        halting(document)

    case.write_file(change)
    case.create_topic()
    case.send([*good(range(50)), b"{"])
    # All in one batch: good records of an earlier one would be in the table, rightly.
    with pytest.raises(HaltError, match="stopping at a rejected record"):
        case.run_in_turn()
    assert (case.dead_letters(), case.count()) == ([], 0)
    case.write_file(keyed_by("id"))
    case.warm_run()
    assert check_first_of_keys(case) == {"row": 50, "letter": 1}


def test_a_mended_mapping_goes_on_while_rejections_still_halt(case: PipelineCase) -> None:
    case.write_file(halting)
    case.create_topic(1)
    case.send(good(range(5)), partitions=1)
    case.warm_run()
    case.send(of_wrong_type(range(5, 8)), partitions=1)
    with pytest.raises(HaltError, match="stopping at a rejected record"):
        case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN name_of_id String DEFAULT ''")

    def mended(document: dict[str, Any]) -> None:
        ids_as_text(document)
        halting(document)

    case.write_file(mended)
    case.send(of_wrong_type(range(8, 12)), partitions=1)
    case.warm_run()
    kept = Counter(le["_tf_offset"] for le in case.dead_letters())
    assert kept == Counter(range(5, 8)), "the range that was planned before is finished as it was planned"
    assert case.client().query(f"SELECT name_of_id FROM {case.table} WHERE _tf_offset >= 8 ORDER BY _tf_offset").result_rows == [
        ("8",),
        ("9",),
        ("10",),
        ("11",),
    ]


def test_rejected_halt_stops_at_a_refused_row_until_mended(case: PipelineCase) -> None:
    case.write_file(halting)
    refuse_from(case, 40)
    case.send_events(50, partitions=1)
    for _ in range(2):
        with pytest.raises(HaltError, match=rf"{case.topic} partition 0 offset 40 .*sink: refused: ClickHouse error 469"):
            case.warm_run()
        assert (case.dead_letters(), is_open(case, "sink")) == ([], True)
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT small")
    case.warm_run()
    assert (case.dead_letters(), case.count()) == ([], 50)
    case.check()


def test_a_code_overridden_to_halt_may_be_a_record_again(case: PipelineCase) -> None:
    case.write_file(lambda document: document.update({"on_error": {"clickhouse": {"675": "halt"}}}))
    case.create_topic(1)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN address IPv4 MATERIALIZED toIPv4(if(id = 7, 'x', '127.0.0.1'))")
    case.send_events(20, partitions=1)
    with pytest.raises(HaltError, match="ClickHouse error 675"):
        case.warm_run()
    assert case.dead_letters() == []
    case.write_file(lambda document: document.update({"on_error": {"clickhouse": {"CANNOT_PARSE_IPV4": "record"}}}))
    case.warm_run()
    assert [dead_letter["_tf_offset"] for dead_letter in case.dead_letters()] == [7]
    case.check()


def test_a_code_of_class_record_may_be_overridden_to_halt(case: PipelineCase) -> None:
    case.write_file(lambda document: document.update({"on_error": {"clickhouse": {"469": "halt"}}}))
    refuse_from(case, 10)
    case.send_events(20, partitions=1)
    with pytest.raises(HaltError, match="ClickHouse error 469"):
        case.warm_run()
    assert (case.dead_letters(), case.count()) == ([], 0)
    case.write_file()
    case.warm_run()
    assert (len(case.dead_letters()), case.count()) == (10, 10)
    case.check()


def test_a_code_of_clickhouse_that_is_a_record_may_be_waited_for(case: PipelineCase) -> None:
    case.write_file(lambda document: document.update({"on_error": {"clickhouse": {"VIOLATED_CONSTRAINT": "retryable"}}}))
    refuse_from(case, 10)
    case.send_events(20, partitions=1)
    runner = case.warm_runner()
    running = case.in_background(runner)
    status = runner.legs["sink"].status
    wait_until(lambda: status.state == "waiting" and "ClickHouse error 469 (VIOLATED_CONSTRAINT)" in status.message, "a waiting sink")
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT small")
    running.join(PATIENCE_SECONDS)
    assert (case.dead_letters(), case.count()) == ([], 20)
    case.check()
