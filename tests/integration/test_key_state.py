"""What the commands say of remembered keys, and compaction: beside a stopped pipeline and a running one."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.dedup_case import check_first_of_keys, copies, event, key_state, keyed_by, listed_files, live_entries, run_files, tasks_of
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until

import pipelines.maintenance.rebucket
from pipelines.engine.execute import batch_tasks, run_here
from pipelines.errors import ConfigurationError, DataLossError, FencedError, HaltError, StateDamagedError
from pipelines.maintenance.compact import ATTEMPTS, compact
from pipelines.maintenance.rebucket import rebucket
from pipelines.maintenance.rebuild import rebuild
from pipelines.protocol.failpoints import VARIABLE
from pipelines.protocol.tally import Tally, tally
from pipelines.testing import SINGLE

pytestmark = pytest.mark.integration


def answer(case: PipelineCase, command: str, *arguments: str) -> Any:
    ended = case.invoke(command, str(case.file), *arguments, "--json")
    assert ended.exit_code == 0, ended.stderr
    return json.loads(ended.stdout)


def batches(case: PipelineCase, count: int = 2, first: int = 0) -> None:
    """So many runs of the pipeline, each of which leaves a run of the store in most buckets. The third brings keys of the first again."""
    for number in range(first, first + count):
        case.send(copies(400, first=400 * number, keys=899))
        case.warm_run()


def kill_compaction(case: PipelineCase) -> None:
    killed = case.fork("compact", str(case.file), **{VARIABLE: "compact.after-runs:1"})
    assert killed.wait(PATIENCE_SECONDS) == -9


def has_done(account: Tally, records: int) -> bool:
    return account.legs[0].rows_in == records and [leg.waiting for leg in account.legs] == [0, 0, 0]


def test_why_shows_where_a_key_was_accepted_and_its_copies(case: PipelineCase) -> None:
    case.write_file(keyed_by("name", "id", window="2h"))
    case.create_topic()
    case.send([event(7, 1), event(8, 1), event(7, 1), b"{", event(7, 1)], partitions=1)
    case.warm_run()
    case.send([event(7, 1)], partitions=1)
    case.warm_run()
    found = answer(case, "why", "record 7", "1")
    assert found["key"] == {"name": "record 7", "id": 1}
    assert (found["accepted"]["topic"], found["accepted"]["partition"], found["accepted"]["offset"]) == (case.topic, 0, 0)
    assert (found["duplicates"], [seen["offset"] for seen in found["dropped"]]) == (3, [2, 4, 5])
    assert (found["is_expired"], found["records_scanned"]) == (False, 6)
    reported = case.invoke("why", str(case.file), "record 7", "1").stdout
    assert "3 copies dropped since, in 6 records scanned" in reported
    assert f"{case.topic} partition 0 offset 0" in reported
    unseen = answer(case, "why", "record 7", "2")
    assert (unseen["accepted"], unseen["duplicates"]) == (None, 0)


def test_a_value_that_cannot_be_the_key_is_refused(case: PipelineCase) -> None:
    case.write_file(keyed_by("name", "id"))
    case.create_topic()
    case.warm_run()
    for values, message in ((["a"], "the key has 2 fields"), (["a", "x"], "'x' is no int"), (["a", "1.5"], "id: ")):
        with pytest.raises(ConfigurationError, match=message):
            key_state(case).why(values)
    ended = case.invoke("why", str(case.file), "a", "x")
    assert ended.exit_code == 2
    assert "  - id: 'x' is no int" in ended.stderr.splitlines()


def test_a_pipeline_without_dedup_or_streams_is_told(case: PipelineCase) -> None:
    with pytest.raises(HaltError, match="the pipeline has no dedup"):
        key_state(case)
    case.write_file(keyed_by("id"))
    with pytest.raises(HaltError, match="was never started"):
        key_state(case).summary()


def test_compaction_leaves_one_run_per_bucket_and_forgets_no_key(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case)
    before = answer(case, "state")
    assert max(bucket["runs"] for bucket in before["buckets"]) > 1
    report = answer(case, "compact")
    after = answer(case, "state")
    assert [bucket["runs"] for bucket in after["buckets"]] == [1] * 8
    assert sum(bucket["entries"] for bucket in after["buckets"]) == sum(one["live_keys"] for one in report) == case.count()
    assert [one["after"]["bytes"] for one in report] == [bucket["bytes"] for bucket in after["buckets"]]
    assert "listed" in {one["outcome"] for one in report}
    assert run_files(case) == listed_files(case)
    assert {one["outcome"] for one in answer(case, "compact")} == {"unchanged"}
    batches(case, 1, first=2)
    check_first_of_keys(case)


@pytest.mark.spark
def test_compaction_in_tasks_leaves_what_it_leaves_here(case: PipelineCase, session: SparkSession) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case)
    before = answer(case, "state")
    state = key_state(case)
    report = compact(state, share=tasks_of(state, session).run)
    state.close()
    assert [one.before.entries for one in report] == [bucket["entries"] for bucket in before["buckets"]]
    assert sum(one.live_keys for one in report) == case.count()
    assert all(one.after.oldest and one.before.oldest and one.after.oldest >= one.before.oldest for one in report)
    assert run_files(case) == listed_files(case)
    assert {one["outcome"] for one in answer(case, "compact")} == {"unchanged"}
    batches(case, 1, first=2)
    check_first_of_keys(case)


@pytest.mark.crash
@pytest.mark.spark
def test_a_damaged_run_ends_a_compaction_in_tasks_unlisted(case: PipelineCase, session: SparkSession) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case)
    path = min((case.names.directory(case.home) / "state").rglob("*.arrow"))
    content = path.read_bytes()
    # Not one bit alone: it might lie between two columns, where nobody reads it.
    half = range(len(content) // 4, len(content) * 3 // 4)
    path.write_bytes(bytes(byte ^ 1 if at in half else byte for at, byte in enumerate(content)))
    listed, state = listed_files(case), key_state(case)
    with pytest.raises(StateDamagedError, match=path.name):
        compact(state, share=tasks_of(state, session).run)
    state.close()
    assert listed_files(case) == listed


@pytest.mark.spark
def test_segments_written_on_a_foreign_host_are_not_listed(case: PipelineCase, session: SparkSession, tmp_path: Path) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case)
    listed, state = listed_files(case), key_state(case)
    elsewhere = shutil.copytree(store_directory(case), tmp_path / "other host")
    tasks = batch_tasks(session, replace(state.connections.run, state_storage=str(elsewhere)), {})
    with pytest.raises(HaltError, match=r"a task has written .* set state_uri"):
        compact(state, share=tasks.run)
    state.close()
    assert listed_files(case) == listed


def test_compaction_drops_keys_whose_window_is_over(case: PipelineCase) -> None:
    case.write_file(keyed_by("id", window="1s"))
    case.create_topic()
    case.send([event(number, number) for number in range(100)])
    case.warm_run()
    window_ends = datetime.fromisoformat(answer(case, "state")["clock"]) + timedelta(seconds=1)
    wait_until(lambda: datetime.now(UTC) > window_ends, "the end of the window")
    case.send([event(number, number) for number in range(1000, 1010)])
    case.warm_run()
    report = answer(case, "compact")
    assert sum(one["live_keys"] for one in report) == sum(one["after"]["entries"] for one in report) == 10
    assert run_files(case) == listed_files(case)


def test_a_leg_lists_the_compaction_made_beside_it(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case)
    process = case.start_plain()
    case.wait_ready(process)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(case.fork("compact", str(case.file), "--json").communicate, PATIENCE_SECONDS)
        sent = 800
        while not asked.done():
            case.send(copies(100, first=sent, keys=899))
            sent += 100
    said, failed = asked.result()
    assert "listed" in {one["outcome"] for one in json.loads(said)}, failed
    log = case.log()
    wait_until(lambda: has_done(tally(log, case.names, SINGLE), sent), "the end of the backlog")
    log.close()
    process.terminate()
    assert process.wait() == 0
    assert run_files(case) == listed_files(case)
    check_first_of_keys(case)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("disturbed", "begun", "outcomes"),
    [(2, 3, {"offered", "unchanged"}), (ATTEMPTS, ATTEMPTS, {"overtaken"})],
    ids=["now and then", "each time"],
)
def test_a_bucket_that_a_leg_replaces_is_begun_again(case: PipelineCase, disturbed: int, begun: int, outcomes: set[str]) -> None:
    case.write_file(lambda document: (keyed_by("id")(document), document.update(buckets=1)))
    case.create_topic(partitions=1)
    sent = attempts = 0

    def send() -> None:
        nonlocal sent
        case.send([event(key, key) for key in range(sent, sent + 20)], partitions=1)
        sent += 20

    def is_gone(segment: str) -> bool:
        """The leg merges several segments of its one bucket."""
        send()
        return segment not in run_files(case)

    def in_use() -> str | None:
        """A segment that was listed before the leg's last plan, which has opened it, and is listed still."""
        listed = listed_files(case)
        send()
        with closing(case.log()) as log:
            wait_until(lambda: has_done(tally(log, case.names, SINGLE), sent), "a leg that has nothing to do")
        return min(listed & listed_files(case), default=None)

    def share(work: Any, items: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts <= disturbed:
            newest = items[0].runs["0"][-1][0]
            wait_until(lambda: is_gone(newest), "another segment")
        return run_here(state.connections, work, items)

    send()
    process = case.start_plain()
    case.wait_ready(process)
    state = key_state(case)
    wait_until(lambda: listed_files(case), "a segment")
    (report,) = compact(state, adoption_seconds=0, share=share)
    assert attempts == begun
    assert report.outcome in outcomes
    segment = wait_until(in_use, "a segment that the leg has open")
    state.close()
    next(store_directory(case).rglob(segment)).unlink()
    # A process that has it open reads it still.
    with closing(key_state(case)) as state, pytest.raises(StateDamagedError, match=segment):
        compact(state)
    wait_until(lambda: is_gone(segment) and segment not in listed_files(case), "another segment")
    process.terminate()
    assert process.wait() == 0
    case.warm_run()
    assert run_files(case) == listed_files(case)
    check_first_of_keys(case)


@pytest.mark.crash
def test_files_of_a_killed_compaction_are_deleted_at_a_start(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case)
    listed = listed_files(case)
    kill_compaction(case)
    assert listed_files(case) == listed < run_files(case)
    batches(case, 1, first=2)
    assert run_files(case) == listed_files(case)
    check_first_of_keys(case)


@pytest.mark.crash
def test_a_compaction_killed_beside_a_pipeline_changes_nothing(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case)
    process = case.start_plain()
    case.wait_ready(process)
    case.send(copies(400, first=800, keys=899))
    kill_compaction(case)
    case.send(copies(400, first=1200, keys=899))
    log = case.log()
    wait_until(lambda: has_done(tally(log, case.names, SINGLE), 1600), "the end of the backlog")
    log.close()
    process.terminate()
    assert process.wait() == 0
    case.warm_run()
    assert run_files(case) == listed_files(case)
    check_first_of_keys(case)


@pytest.mark.crash
def test_a_range_that_was_begun_is_finished_after_a_compaction(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case, 1)
    case.send(copies(400, first=400, keys=899))
    assert case.run_plain(**{VARIABLE: "process.after-state:1"}).returncode == -9
    report = answer(case, "compact")
    assert [one["live_keys"] for one in report] == [one["before"]["entries"] for one in report]
    case.warm_run()
    check_first_of_keys(case)


def store_directory(case: PipelineCase) -> Path:
    return case.names.directory(case.home) / "state"


def test_a_store_may_lie_elsewhere_and_goes_with_the_pipeline(case: PipelineCase, tmp_path: Path) -> None:
    def elsewhere(document: dict[str, Any]) -> None:
        keyed_by("id")(document)
        document["state_uri"] = f"file://{tmp_path}/keys"

    case.write_file(elsewhere)
    case.create_topic()
    batches(case, 2)
    case.send(copies(400, first=800, keys=899))
    assert case.run_plain(**{VARIABLE: "process.after-state:1"}).returncode == -9
    case.warm_run()
    check_first_of_keys(case)
    store = tmp_path / "keys" / case.names.pipeline
    assert {path.name for path in store.rglob("*.arrow")} >= listed_files(case) != set()
    assert not store_directory(case).exists()
    deleted = case.invoke("delete", str(case.file), "--yes")
    assert deleted.exit_code == 0
    assert f"keystoresfile://{tmp_path}/keys/{case.names.pipeline}" in "".join(deleted.stdout.split())
    assert not store.exists()


@pytest.mark.crash
@pytest.mark.parametrize("with_open_plan", [False, True])
def test_a_lost_store_is_rebuilt_from_the_raw_stream(case: PipelineCase, with_open_plan: bool) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case, 3)
    if with_open_plan:
        case.send(copies(400, first=1200, keys=899))
        assert case.run_plain(**{VARIABLE: "process.after-publish:1"}).returncode == -9
    shutil.rmtree(store_directory(case))
    case.send(copies(400, first=1600, keys=899))
    with pytest.raises(StateDamagedError, match="tallyflow rebuild-state"):
        case.warm_run()
    found = answer(case, "rebuild-state")
    assert (found["records"], sum(found["outcomes"].values())) == (1200, 1188)
    assert run_files(case) == listed_files(case)
    case.warm_run()
    check_first_of_keys(case)


@pytest.mark.crash
def test_a_store_is_rebuilt_with_the_configuration_of_each_range(case: PipelineCase) -> None:
    def without_amount(document: dict[str, Any]) -> None:
        keyed_by("id")(document)
        document["sink"]["mapping"] = document["sink"]["mapping"][:2]

    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case, 1)
    case.write_file(without_amount)
    batches(case, 2, first=1)
    before = answer(case, "state")
    found = answer(case, "rebuild-state")
    assert found["entries"] == sum(bucket["entries"] for bucket in before["buckets"])
    case.warm_run()
    check_first_of_keys(case)


def test_a_rebuilding_needs_a_stopped_pipeline_and_whole_raw(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case, 1)
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    with pytest.raises(FencedError, match="already holds leg process"):
        rebuild(key_state(case))
    runner.request_stop()
    thread.join()
    log = case.log()
    log.purge(case.names.stream("raw"), case.names.subjects("raw"), 3)
    log.close()
    listed = listed_files(case)
    with pytest.raises(DataLossError, match="begins at sequence 3"):
        rebuild(key_state(case))
    assert run_files(case) == listed_files(case) == listed


def in_buckets(count: int, change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def changed(document: dict[str, Any]) -> None:
        change(document)
        document["buckets"] = count

    return changed


@pytest.mark.parametrize("buckets", [3, 16])
def test_the_number_of_buckets_may_change_while_stopped(case: PipelineCase, buckets: int) -> None:
    case.write_file(keyed_by("id", keep_duplicates=True))
    case.create_topic()
    batches(case)
    case.write_file(in_buckets(buckets, keyed_by("id", keep_duplicates=True)))
    with pytest.raises(HaltError, match="tallyflow rebucket"):
        case.warm_run()
    found = answer(case, "rebucket")
    assert (found["buckets_before"], found["buckets"], found["entries"]) == (8, buckets, case.count())
    assert answer(case, "rebucket")["buckets_before"] == buckets
    shown = answer(case, "state")["buckets"]
    assert [one["bucket"] for one in shown] == [*range(buckets)]
    assert sum(one["entries"] for one in shown) == case.count()
    ids = [row[0] for row in case.client().query(f"SELECT id FROM {case.table} ORDER BY id LIMIT 10").result_rows]
    with closing(key_state(case)) as state:
        assert all(state.why([str(one)]).accepted for one in ids)
    compacted = answer(case, "compact")
    assert sum(one["live_keys"] for one in compacted) == case.count()
    batches(case, 1, first=2)
    assert run_files(case) == listed_files(case)
    check_first_of_keys(case, keeps_duplicates=True)


def test_a_store_is_rebuilt_in_the_buckets_a_change_has_left(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case, 2)
    case.write_file(in_buckets(3, keyed_by("id")))
    state = key_state(case)
    rebucket(state)
    before = live_entries(case)
    rebuild(state)
    assert live_entries(case) == before
    batches(case, 1, first=2)
    before = live_entries(case)
    rebuild(state)
    state.close()
    assert live_entries(case) == before
    batches(case, 1, first=3)
    check_first_of_keys(case)


def test_a_pipeline_without_dedup_may_have_other_buckets_too(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(300, bad_every=50)
    case.warm_run()
    case.write_file(in_buckets(2, lambda document: None))
    answer(case, "rebucket")
    case.send_events(300, bad_every=50)
    case.warm_run()
    case.check()


@pytest.mark.crash
def test_a_rebucketing_that_was_killed_is_finished_by_the_next(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    batches(case, 2)
    case.write_file(in_buckets(4, keyed_by("id")))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        # Between the entry of the chain and the streams' shape.
        patch.setattr(pipelines.maintenance.rebucket, "change_buckets", lambda *_: 1 / 0)
        rebucket(key_state(case))
    case.write_file(keyed_by("id"))
    with pytest.raises(HaltError, match="its state lies in 4 buckets, the file says 8"):
        case.warm_run()
    case.write_file(in_buckets(4, keyed_by("id")))
    answer(case, "rebucket")
    batches(case, 2, first=2)
    check_first_of_keys(case)


def test_nothing_else_of_the_shape_may_change(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    with pytest.raises(HaltError, match="was never started"):
        rebucket(key_state(case))
    case.create_topic()
    batches(case, 1)
    case.write_file(in_buckets(4, keyed_by("name")))
    with pytest.raises(HaltError, match="may not change while the pipeline lives; restore them"):
        rebucket(key_state(case))
