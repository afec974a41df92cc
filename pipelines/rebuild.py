"""Rebuilding a lost or damaged key store from the raw stream: the same records through the same stages give the same keys.

Nothing is published. Each range is read under the configuration that it was done under, as the ledger's plans name it, and the numbers of
rows and duplicates must be those that the ledger counted; only then are the new runs listed.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from pipelines.dedup import NEVER, FrameTimes
from pipelines.errors import DataLossError, InvariantError
from pipelines.key_state import KeyState
from pipelines.lease import Lease
from pipelines.ledger import Chain, Entry
from pipelines.legs.arrivals import Arrived, arrivals, steps
from pipelines.legs.buckets import first_of_keys, key_owners, listed, shares
from pipelines.legs.frames import new_counts, stages
from pipelines.legs.stage_config import StageConfig

FRAMES_PER_BATCH = 120
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Rebuilt:
    """What was read, and what the store holds now."""

    records: int
    accepted: int
    duplicates: int
    entries: int
    runs: int


def rebuild(state: KeyState, tell: Tell = lambda done, of: None) -> Rebuilt:
    """Writes the store anew, up to the last `done`; an open plan is left for the next start. `tell` hears how far of how many frames.

    Safe to kill, and to repeat. Raises FencedError while the process leg runs, DataLossError when the raw stream does not reach back to
    the pipeline's first record, InvariantError when the counts are not those of the ledger; then nothing was listed.
    """
    lease = Lease(state.connections.log, state.names, state.directory, "process")
    epoch = lease.acquire()
    try:
        chain = Chain(state.connections.log, state.names.stream("ledger"), state.names.chain("process"), epoch)
        found = chain.open()
        state.stage_config(found)
        assert found.done is not None
        rebuilding = _Rebuilding(state, found.done, tell)
        for frames, config in rebuilding.batches():
            rebuilding.judge(frames, config)
        result = rebuilding.result()
        chain.restate(runs={str(bucket): listed(store.live) for bucket, store in rebuilding.stores.items() if store.live})
        return result
    finally:
        lease.release()


class _Rebuilding:
    """The new store as it grows. Its runs are nobody's until they are listed, so what a merge has replaced goes at once."""

    def __init__(self, state: KeyState, done: Entry, tell: Tell) -> None:
        self._state, self._done, self._tell = state, done, tell
        self._counts: Counter[str] = Counter(new_counts())
        self._accepted = self._duplicates = 0
        self._clock_us = self._from = 0
        self._newest_us = NEVER
        self.stores = {bucket: state.connections.dedup_store(bucket) for bucket in range(state.stage_config_of(done).buckets)}
        for store in self.stores.values():
            store.open([])

    def batches(self) -> Iterator[tuple[list[Arrived], StageConfig]]:
        """All frames up to the last `done`, in portions of one configuration."""
        log, stream, to = self._state.connections.log, self._state.names.stream("raw"), self._done.body["to"]
        held = log.state(stream)
        if held is None or held.first_sequence > 1:
            begins = "is gone" if held is None else f"begins at sequence {held.first_sequence}"
            raise DataLossError(f"rebuilding the key store: {stream} {begins}, what came before cannot be judged again; restore a backup")
        for start, end, version in self._ranges():
            config = self._state.connections.stage_config(version)
            frames = arrivals(log.fetch(stream, self._state.names.subjects("raw"), start, min(end, to)), self._clock_us)
            while batch := list(islice(frames, FRAMES_PER_BATCH)):
                yield batch, config
                self._tell(batch[-1].message.sequence, to)

    def _ranges(self) -> list[tuple[int, int, str]]:
        """(from, to, configuration) of what was done; neighbours of one configuration are one range."""
        log, subject = self._state.connections.log, self._state.names.chain("process")
        entries = map(Entry.decode, log.fetch(self._state.names.stream("ledger"), subject, 0, self._done.sequence))
        ranges: list[tuple[int, int, str]] = []
        for entry in entries:
            if entry.kind != "plan" or entry.body["to"] > self._done.body["to"]:
                continue
            start, to, version = entry.body["from"], entry.body["to"], entry.body["config"]
            if ranges and ranges[-1][2] == version:
                ranges[-1] = (ranges[-1][0], to, version)
            else:
                ranges.append((start, to, version))
        return ranges

    def judge(self, frames: list[Arrived], config: StageConfig) -> None:
        """One portion through the stages and into the stores."""
        parts = [stages(self._state.connections.engine, config, "", step, self._counts)[0] for step in steps(frames)]
        rows = pa.concat_tables(parts, promote_options="default").unify_dictionaries()
        to, expired = frames[-1].message.sequence, config.dedup_expired_us({"clock_us": self._clock_us, "newest_us": self._newest_us})
        times = FrameTimes.of(rows, self._newest_us) if config.dedup_time_field else None
        for bucket, share in shares(rows, key_owners(rows, config.buckets)):
            store = self.stores[bucket]
            found, _ = first_of_keys(config, share, store, times)
            before, after = store.live, store.add(found.entries, (self._from, to), expired, has_turn=True)
            for facts in {*before} - {*after}:
                store.place.delete(facts.name)
            store.open(after)
            self._accepted += found.accepted.num_rows
            self._duplicates += found.duplicates.num_rows
        self._from, self._clock_us = to, frames[-1].arrival_us
        self._newest_us = times.last if times is not None else NEVER

    def result(self) -> Rebuilt:
        """Raises InvariantError when what was judged is not what the ledger counted."""
        totals = self._done.body["totals"]
        counted = tuple(totals.get(name, 0) for name in ("rows_in", "rows_out", "duplicates"))
        found = (self._counts["rows_in"], self._accepted, self._duplicates)
        if found != counted:
            raise InvariantError(
                f"rebuilding the key store: of {found[0]:,} records {found[1]:,} were first ones and {found[2]:,} duplicates, the ledger "
                f"counted {counted[0]:,}, {counted[1]:,} and {counted[2]:,}; nothing was listed"
            )
        runs = [facts for store in self.stores.values() for facts in store.live]
        return Rebuilt(*found, sum(facts.rows for facts in runs), len(runs))
