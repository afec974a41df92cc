"""Dedup on real servers: the first record of a key in the raw log goes on, whichever way the ranges are worked off."""

import json
from contextlib import closing
from random import Random

import pytest
from pyspark.sql import SparkSession
from support.dedup_case import check_event_times, check_first_of_keys, copies, key_state, keyed_by, timed_by
from support.pipeline_case import PipelineCase

from pipelines.errors import HaltError, StateDamagedError
from pipelines.maintenance.compact import compact
from pipelines.maintenance.rebuild import rebuild
from pipelines.protocol.run_lists import live_lists

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_the_first_record_of_each_key_arrives_once(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(3000))
    case.warm_run()
    assert check_first_of_keys(case) == {"row": 701, "duplicate": 2269, "letter": 30}


def timed(count: int, first: int) -> list[bytes | None]:
    """Records over 40 keys whose times run on by a second every ten records and jump about by up to 20 s; some have none, or no JSON."""
    random = Random(first)
    made: list[bytes | None] = []
    for number in range(first, first + count):
        at = None if number % 97 == 0 else 1_780_000_000 + number // 10 + random.randrange(-20, 20)
        # Long enough for several frames per partition.
        record = {"id": random.randrange(40), "name": random.randbytes(1000).hex(), "amount": None, "at": at}
        made.append(b"{" if number % 100 == 99 else json.dumps(record).encode())
    return made


def test_event_times_decide_across_compaction_and_rebuilding(case: PipelineCase, session: SparkSession) -> None:
    case.write_file(timed_by("at", "id", "15s", "5s"))
    case.create_topic()
    for number, between in enumerate([compact, rebuild, compact, None]):
        case.session = session if number % 2 else None
        case.send(timed(600, 600 * number))
        case.warm_run()
        if between:
            with closing(key_state(case)) as state:
                between(state)
    fate = check_event_times(case, 15, 5)
    assert min(fate[kind] for kind in ("row", "duplicate", "late", "letter")) > 20, fate
    assert {dead_letter["code"] for dead_letter in case.dead_letters()} == {"late", "null_time", "invalid_json"}


def test_keys_are_known_across_processes_and_copies_may_be_kept(case: PipelineCase, session: SparkSession) -> None:
    case.write_file(keyed_by("id", keep_duplicates=True))
    case.create_topic()
    for number, in_tasks in enumerate([False, True, False]):
        case.session = session if in_tasks else None
        case.send(copies(1000, first=1000 * number, keys=1499))
        case.warm_run()
    assert check_first_of_keys(case, keeps_duplicates=True) == {"row": 1499, "duplicate": 1471, "letter": 30}
    runs = sorted(path.name for path in (case.names.directory(case.home) / "state").rglob("*.arrow"))
    log = case.log()
    _, lists = live_lists(log, case.names)
    log.close()
    assert runs == sorted(listed[0] for listing in lists.values() for listed in listing), "only listed runs are left"


def test_a_key_is_all_its_fields_and_none_of_them_null(case: PipelineCase) -> None:
    case.write_file(keyed_by("id", "name", "amount"))
    case.create_topic()
    keys = [(1, "a", 0.5), (1, "b", 0.5), (1, "a", 0.5), (2, "a", 0.5), (1, "b", 0.5), (1, "a", None), (1, "a", 1.5), (1, "a", None)]
    case.send([json.dumps(dict(zip(("id", "name", "amount"), key, strict=True))).encode() for key in keys], partitions=1)
    case.warm_run()
    assert sorted(key for _, *key in case.rows()) == [[1, "a", 0.5], [1, "a", 1.5], [1, "b", 0.5], [2, "a", 0.5]]
    letters = [(dead_letter["stage"], dead_letter["code"], dead_letter["field"]) for dead_letter in case.dead_letters()]
    assert letters == [("dedup", "null_key", None)] * 2


def test_an_edit_of_the_key_is_refused_and_loses_nothing(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(200, keys=150))
    case.warm_run()
    case.write_file(keyed_by("name"))
    with pytest.raises(HaltError, match="may not change while the pipeline lives"):
        case.warm_run()
    case.write_file(keyed_by("id"))
    case.send(copies(200, first=200, keys=150))
    case.warm_run()
    check_first_of_keys(case)


def written_to_out(case: PipelineCase) -> int:
    log = case.log()
    state = log.state(case.names.stream("out"))
    log.close()
    assert state is not None
    return state.last_sequence


@pytest.mark.parametrize(("way", "damage"), [("in tasks", "missing"), ("in the runner", "flipped bits")], indirect=["way"])
def test_a_damaged_store_halts_before_anything_is_written(case: PipelineCase, way: None, damage: str) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(300, keys=150))
    case.warm_run()
    runs = {path: path.read_bytes() for path in (case.names.directory(case.home) / "state").rglob("*.arrow")}
    for path, content in runs.items():
        path.unlink()
        if damage == "flipped bits":
            # Not one alone: it might lie between two columns, where nobody reads it (tests/unit/key_store/test_state_store.py).
            half = range(len(content) // 4, len(content) * 3 // 4)
            path.write_bytes(bytes(byte ^ 1 if at in half else byte for at, byte in enumerate(content)))
    before = written_to_out(case)
    case.send(copies(300, first=300, keys=150))
    case.run_in_turn("ingest")
    with pytest.raises(StateDamagedError, match="nothing was written; stop the pipeline and rebuild the store"):
        case.warm_run(legs=("process",))
    assert written_to_out(case) == before
    for path, content in runs.items():
        path.unlink(missing_ok=True)
        path.write_bytes(content)
    case.warm_run()
    check_first_of_keys(case)
