"""The stores of a join, and the history of one join key, for operators. Reads only; may be used beside the running pipeline.

The history is played again from raw, for the records of the one key (`join_history`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from pipelines.connectors.nats.client import fetch_whole
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore
from pipelines.maintenance.inspect import KeyState, hashed_key
from pipelines.maintenance.join_history import ByArrival, ByTime, History, JoinRecord
from pipelines.maintenance.replay import Start, process_entries, snapshots_of_plans
from pipelines.process.arrivals import Arrived, arrivals, steps
from pipelines.process.buckets import live_runs
from pipelines.process.dedup import Deduplicated
from pipelines.process.join.sides import before
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.process.side_copies import copies_found_by
from pipelines.process.steps.dedup import Dedup
from pipelines.progress import Progress, no_progress
from pipelines.protocol.bodies import NEVER, ProcessDone, ProcessState
from pipelines.protocol.naming import LEFT_STORE, RIGHT_STORE, SIDE_DEDUP_STORES, bucket_of_key, listed_as
from pipelines.protocol.purge import read_purged
from pipelines.protocol.records import instant

WHAT = {
    RIGHT_STORE: "right records",
    LEFT_STORE: "left records",
    **{store: f"keys of the {'right' if is_right else 'left'} dedup" for is_right, store in SIDE_DEDUP_STORES.items()},
}


@dataclass(frozen=True)
class StoreExtent:
    """All buckets of one store of a join. An entry whose window has ended stays until a merge, and so does a left one that was joined."""

    store: str
    what: str
    entries: int
    bytes: int
    runs: int


@dataclass(frozen=True)
class JoinState:
    """The stores of a join as the last `done` lists them.

    `clock`: the arrival of the last frame that was processed, or, by the records' own times, the watermark, None before the first.
    """

    pipeline: str
    left_key: tuple[str, ...]
    right_key: tuple[str, ...]
    left_window: timedelta
    right_window: timedelta
    clock: datetime | None
    stores: tuple[StoreExtent, ...]


@dataclass(frozen=True)
class JoinHistory:
    """The records of a join key that were processed, in their order. `since`: the first raw sequence that was read for them.

    What a left record has met is not known if its right one is older than that, so the first windows of a purged raw are not shown.
    """

    key: dict[str, Any]
    bucket: int
    since: int
    records_scanned: int
    records: tuple[JoinRecord, ...]


def join_state(state: KeyState) -> JoinState:
    """Return the extent of each store. Raise HaltError before the first record."""
    return state.settled(lambda found: _extent(state, found))


def _extent(state: KeyState, found: ProcessState) -> JoinState:
    config, lists = state.stage_config(found), state.lists(found)
    join = config.join
    assert join is not None
    stores = []
    for store in config.stores:
        keys = [listed_as(store, bucket) for bucket in range(state.last(found).buckets)]
        runs = [(key, facts) for key in keys for facts in live_runs(lists, key)]
        size = sum(state.connections.segments(key).size(facts.name) for key, facts in runs)
        stores.append(StoreExtent(store, WHAT[store], sum(facts.rows for _, facts in runs), size, len(runs)))
    windows = [timedelta(microseconds=side.window_us) for side in (join.left, join.right)]
    clock_us = join.clock_us(state.last(found))
    clock = None if clock_us == NEVER else instant(clock_us)
    return JoinState(state.names.pipeline, join.left.key, join.right.key, windows[0], windows[1], clock, tuple(stores))


def why_joined(state: KeyState, texts: Sequence[str], progress: Progress = no_progress) -> JoinHistory:
    """Return the history of the join key whose fields have these values, in the order of the left side's `key`.

    It reads raw from two windows before the clock on; from its start with a dedup beside the join. Raise ConfigurationError for a value
    that is not of its field's type.
    """
    found = state.chain()
    config, done = state.stage_config(found), state.last(found)
    join = config.join
    assert join is not None
    values, hi, lo = hashed_key(state.connections.engine, join.left.key, config.fields_of(join.left.source), texts)
    start = _start(state, config, done)
    key = (hi[0], lo[0])
    history: History = ByTime(join, key, start.watermarks) if join.is_timed else ByArrival(join, key, done.clock_us)
    state.directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=state.directory) as own:
        copies = _Copies(config, Path(own))
        for program, frames in _portions(state, config, start, done, progress):
            rows = run(program, state.connections.engine, frames).rows
            history.add(program, rows, copies.among(rows, frames), frames)
    records = tuple(history.ended())
    return JoinHistory(values, int(bucket_of_key(lo, done.buckets)[0]), start.sequence + 1, history.scanned, records)


def _start(state: KeyState, config: Program, done: ProcessDone) -> Start:
    """Return where the replay begins."""
    join, log, names = config.join, state.connections.log, state.names
    assert join is not None
    held = log.state(names.stream("raw"))
    first = max(read_purged(log, names, "raw").below, held.first_sequence - 1 if held else 0)
    if join.is_timed:
        return _start_by_time(state, config, done, first)
    if not config.side_dedups:
        needed_from = instant(max(0, done.clock_us - join.windows.left_us - join.windows.kept_us))
        needed = log.first_since(names.stream("raw"), names.subjects("raw"), needed_from)
        first = max(first, needed.sequence - 1) if needed else done.to
    return Start(first)


def _start_by_time(state: KeyState, config: Program, done: ProcessDone, first: int) -> Start:
    """Return the newest end of a plan before which no record matters; else the first one behind a purge, for only plans hold the watermark.

    `first`: the raw sequence before the first one that is held.
    """
    join, begin = config.join, Start()
    assert join is not None
    ended_us = before(join.clock_us(done), join.windows.left_us + join.kept_us)
    for entry in process_entries(state.connections.log, state.names, state.chain().sequence):
        if not isinstance(entry, ProcessDone) or entry.to < first:
            continue
        has_ended = not config.side_dedups and NEVER < join.newest_us(entry) <= ended_us
        if has_ended or (first and not begin.sequence):
            begin = Start.behind(entry)
    return begin


def _portions(
    state: KeyState, config: Program, start: Start, done: ProcessDone, progress: Progress
) -> Iterator[tuple[Program, Sequence[Arrived]]]:
    log, names = state.connections.log, state.names
    of_plans = snapshots_of_plans(log, names, state.connections.snapshots, config)
    messages = fetch_whole(log, names.stream("raw"), names.subjects("raw"), start.sequence, done.to)
    for step in steps(arrivals(messages, start.clock_us, done.clock_resets)):
        progress("replaying the raw stream", step[-1].message.sequence - start.sequence, done.to - start.sequence)
        yield from of_plans.parts(config, step)


class _Copies:
    """The copies on each side of a join, by stores below a directory."""

    def __init__(self, config: Program, directory: Path) -> None:
        self._config, self._directory = config, directory
        self._stores: dict[str, KeyedStore] = {}

    def among(self, rows: pa.Table, frames: Sequence[Arrived]) -> set[int]:
        """Return the positions of the copies among rows of the next frames."""
        span = (frames[0].message.sequence - 1, frames[-1].message.sequence)

        def first_of_keys(place: str, step: Dedup, keys: pa.Table) -> Deduplicated:
            store = self._stores.setdefault(place, KeyedStore(Storage.local(self._directory / place)))
            firsts, _ = step.first_of_keys(keys, store, None)
            store.open(store.add(firsts.entries, span, 0, has_turn=True))
            return firsts

        return set(copies_found_by(first_of_keys, rows, self._config, self._config.buckets).tolist())
