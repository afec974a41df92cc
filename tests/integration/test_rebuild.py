"""A key store that is rebuilt: the keys that were there, and nothing where a part of it fails."""

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
import pytest
from support.dedup_case import (
    check_event_times,
    check_first_of_keys,
    copies,
    event,
    key_state,
    keyed_by,
    listed_files,
    live_entries,
    run_files,
    timed_by,
)
from support.pipeline_case import PipelineCase

from pipelines.errors import DataLossError, FencedError
from pipelines.maintenance.rebuild import Rebuilt, rebuild
from pipelines.process.isolation import INTERNAL_ERROR
from pipelines.process.steps import Context
from pipelines.process.steps.parse import Parse
from pipelines.protocol.outcomes import DUPLICATE
from pipelines.protocol.records import StageOutput

pytestmark = [pytest.mark.integration, pytest.mark.crash]


def rebuilt(case: PipelineCase, frames_per_portion: int = 2, **options: Any) -> Rebuilt:
    """Rebuild in several portions, each of which finds the store of those before."""
    state = key_state(case)
    try:
        return rebuild(state, frames_per_portion=frames_per_portion, **options)
    finally:
        state.close()


def store_of(case: PipelineCase) -> Path:
    return case.names.directory(case.home) / "state"


def prepared(case: PipelineCase) -> None:
    """Two runs of the pipeline, and letters that entered again: some dedup had accepted, some it had not."""
    case.write_file(keyed_by("id"))
    case.create_topic()
    for first in (0, 800):
        case.send(copies(800, first=first, keys=701))
        case.warm_run()
    case.send([b'{"id": 9001, "name": 5}', event(0, 9001)], partitions=1)
    case.warm_run()
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()


def test_a_rebuilt_store_holds_the_same_live_keys(case: PipelineCase) -> None:
    prepared(case)
    before = live_entries(case)
    shutil.rmtree(store_of(case))
    reported: list[tuple[int, int]] = []
    found = rebuilt(case, frames_per_portion=1, progress=lambda _, done=0, total=0: reported.append((done, total)))
    assert live_entries(case) == before
    assert found.outcomes[DUPLICATE.label] > 800
    assert len(reported) > 3, "in portions"
    assert reported[-1][0] == reported[-1][1]
    assert run_files(case) == listed_files(case)
    case.send(copies(400, first=1600, keys=1499))
    case.warm_run()
    assert case.count() == len({row[1] for row in case.rows()}), "a key is in the table once"


def test_keys_whose_window_ended_meanwhile_are_not_kept(case: PipelineCase) -> None:
    case.write_file(keyed_by("id", window="1ms"))
    case.create_topic(partitions=1)
    for number in range(3):
        case.send([event(number, key) for key in range(100 * number, 100 * number + 100)], partitions=1)
        case.warm_run()
    before = live_entries(case)
    assert len(before) == 100
    found = rebuilt(case, frames_per_portion=100)
    assert (found.outcomes["accepted"], found.entries) == (300, 100)
    assert live_entries(case) == before


def test_windows_of_event_times_are_rebuilt(case: PipelineCase) -> None:
    case.write_file(timed_by("at", "id", "15s", "5s"))
    case.create_topic()
    numbers = random.Random(7)
    for first in range(0, 1200, 300):
        records = [
            (number % 40, 1_780_000_000 + number // 10 + numbers.randrange(-20, 20)) if number % 50 else (number % 40, None)
            for number in range(first, first + 300)
        ]
        case.send([f'{{"id": {key}, "name": "x", "at": {"null" if at is None else at}}}'.encode() for key, at in records])
        case.warm_run()
    before = live_entries(case)
    assert before
    shutil.rmtree(store_of(case))
    assert rebuilt(case).outcomes[DUPLICATE.label] > 0
    assert live_entries(case) == before
    case.send([f'{{"id": {key}, "name": "y", "at": {1_780_000_110 + key}}}'.encode() for key in range(40)])
    case.warm_run()
    fate = check_event_times(case, 15, 5)
    assert min(fate[kind] for kind in ("row", "duplicate", "late", "letter")) > 5, fate


def test_a_record_that_a_plan_has_decided_is_not_tried_again(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the stages still end on it or not, it stays the dead letter that it became."""
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(400))
    apply, tried = Parse.apply, []

    def ends(step: Parse, context: Context, rows: pa.Table) -> StageOutput:
        tried.append(poison := b'"record 13"' in b"".join(rows.column("value").to_pylist()))
        if poison:
            raise ZeroDivisionError
        return apply(step, context, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Parse, "apply", ends)
        case.warm_run()
        assert any(tried)
        tried.clear()
        before = live_entries(case)
        rebuilt(case)
        assert tried and not any(tried)
        assert live_entries(case) == before
    shutil.rmtree(store_of(case))
    rebuilt(case)
    assert live_entries(case) == before
    assert [dead_letter["code"] for dead_letter in case.dead_letters()].count(INTERNAL_ERROR) == 1


class _Killed(BaseException):
    pass


def test_a_half_way_rebuilding_lists_nothing_and_may_repeat(case: PipelineCase) -> None:
    prepared(case)
    before, listed = live_entries(case), listed_files(case)

    def kill(step: str, done: int = 0, total: int = 0) -> None:
        assert 0 < done < total
        raise _Killed

    with pytest.raises(_Killed):
        rebuilt(case, frames_per_portion=6, progress=kill)
    assert (live_entries(case), listed_files(case)) == (before, listed)
    assert run_files(case) > listed, "what nobody lists"
    shutil.rmtree(store_of(case))
    rebuilt(case)
    assert live_entries(case) == before
    case.warm_run()
    assert run_files(case) == listed_files(case), "the next start has deleted what nobody lists"


def test_a_missing_raw_frame_ends_a_rebuilding_unlisted(case: PipelineCase) -> None:
    prepared(case)
    listed = listed_files(case)
    asyncio.run(delete_frame(case, 5))
    with pytest.raises(DataLossError, match="5"):
        rebuilt(case)
    assert listed_files(case) == listed


async def delete_frame(case: PipelineCase, sequence: int) -> None:
    client = await nats.connect(case.addresses.nats_url)
    await client.jetstream().delete_msg(case.names.stream("raw"), sequence)
    await client.close()


def test_nothing_is_rebuilt_while_the_pipeline_runs(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(100))
    case.warm_run()
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    with pytest.raises(FencedError, match="already holds leg process"):
        rebuilt(case)
    runner.request_stop()
    thread.join()
    check_first_of_keys(case)
