"""The ingest leg of a source: plans ranges of its offsets, and has them read onto raw (`ingest.ranges`)."""

from collections.abc import Callable, Mapping, Sequence
from threading import Event

from pipelines.config.fields import joins
from pipelines.connectors.sources import Source, Words
from pipelines.engine.connections import Connections
from pipelines.engine.inputs import Looked, Offset, SourceInput, admit
from pipelines.engine.leg import LEG_MEANS, Leg, LegMeans, ReplanError, Tenure
from pipelines.errors import DataLossError, RetryableError
from pipelines.ingest.idle import IdlePartitions
from pipelines.ingest.narrowing import narrowed, rest_behind, rest_to_plan
from pipelines.ingest.ranges import FLUSH_BYTES, IngestItem, headers_of, ingest_divided, place_of
from pipelines.ingest.writer import identity_of, last_offset
from pipelines.protocol.append import Appender, Tail
from pipelines.protocol.bodies import IngestDone, IngestPlan, RawTail
from pipelines.protocol.ledger import Chain, Entry
from pipelines.protocol.records import RAW_SCHEMA
from pipelines.protocol.stream_limits import MAX_FRAME_BYTES
from pipelines.protocol.ticks import Idle, append_tick

_LEADER_ANSWERS_WITHIN_SECONDS = 3.0


def anchor(connections: Connections, source_id: str, starts: dict[int, int], epoch: int) -> dict[int, Tail[int]]:
    """Store the first-start offsets as an empty frame per partition that has none yet; return the tails."""
    tails = {}
    for partition, start in starts.items():
        appender = Appender(*place_of(connections, source_id, partition), last_offset, start - 1, framing=connections.means.framing)
        if appender.tail.sequence == 0:
            empty = appender.framing.encode(RAW_SCHEMA.empty_table())
            appender.append(empty, start, start - 1, 0, headers_of(connections, source_id, partition, epoch))
        tails[partition] = appender.tail
    return tails


def resume_points(connections: Connections, source_id: str, partitions: Sequence[int]) -> dict[int, Tail[int]]:
    """Return the tail of each partition's subject; partitions without a frame are left out."""
    identity = connections.run.identities[source_id]
    tails: dict[int, Tail[int]] = {}
    for partition in partitions:
        log, stream, subject = place_of(connections, source_id, partition)
        message = log.last(stream, subject)
        if message is not None:
            if identity_of(message) != identity:
                raise DataLossError(
                    f"{connections.source(source_id).words} was deleted and made again (its id is {identity}, the pipeline read "
                    f"{identity_of(message)}): its offsets mean other records; delete the pipeline and start it anew, "
                    "or use another pipeline_id and another table"
                )
            tails[partition] = Tail(message.sequence, last_offset(message))
    return tails


def _next_offset(tail: Tail[int] | None) -> int:
    return 0 if tail is None or tail.position is None else tail.position + 1


def check_ends(words: Words, confirmed: Mapping[str, int], ends: Mapping[int, int]) -> None:
    """Raise DataLossError if the source ends before the confirmed offsets: new records there would have the positions of old ones.

    `confirmed` are next offsets by partition; a partition that is missing in `ends` is skipped.
    """
    shortened = {int(p): (offset, ends[int(p)]) for p, offset in confirmed.items() if ends.get(int(p), offset) < offset}
    if shortened:
        listed = ", ".join(f"partition {p} at {end}, and {offset} was confirmed" for p, (offset, end) in sorted(shortened.items())[:5])
        raise DataLossError(
            f"reading {words}: it ends before what was read: {listed}. {words.system} lost records ({words.losses}), and will give their "
            f"offsets to other records, which would never be read. Restore the {words.noun}, "
            "or delete the pipeline and start it anew, or use another pipeline_id"
        )


class IngestLeg(Leg[IngestPlan, IngestDone]):
    """The ingest leg; its offsets are {partition: next offset}."""

    _raw_limit = -1
    _left: frozenset[str] = frozenset()
    """Partitions whose rest waits until the leg begins again."""

    def __init__(
        self,
        connections: Connections,
        chain: Chain[IngestPlan, IngestDone],
        tenure: Tenure,
        stop: Event,
        means: LegMeans = LEG_MEANS,
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        super().__init__(connections, chain, tenure, stop, means)
        self._flush_bytes = flush_bytes
        targets = connections.run.targets
        until = None if targets is None else {int(p): end for p, end in targets[self.source_id].items()}
        self._input = SourceInput(self._source, until, means.clock, self._looked(means.clock))

    def open_input(self) -> SourceInput:
        return self._input

    def _looked(self, clock: Callable[[], float]) -> Looked:
        """Return what is told of each look at the source: by event time it marks the partitions from which nothing comes."""
        join, log, names = self.connections.config.join, self.connections.log, self.connections.names
        if join is None or not joins(self.connections.config) or join.time != "event":
            return lambda start, ends, unknown: None
        return IdlePartitions(join.idle_after, lambda due: append_tick(log, names, Idle(self.source_id, due)), clock).look

    @property
    def source_id(self) -> str:
        """The source that this leg reads."""
        return self.connections.config.topology.file_id(self.name)

    @property
    def _source(self) -> Source:
        return self.connections.source(self.source_id)

    def anchor(self, starts: Callable[[], dict[int, int]]) -> None:
        """Fix the beginning of each partition, once: the chain's first plan, with an empty frame per partition.

        So `latest` is resolved once: a crash before the first record must not choose a later start (protocol.md 2.14). Partitions that are
        added later begin at their beginning.
        """
        if self.chain.state.done is not None:
            return
        plan = self.chain.state.plan
        if plan is None:
            first = {str(p): offset for p, offset in sorted(starts().items())}
            plan = self.chain.plan(IngestPlan(start=first, to=first, is_anchor=True))
        tails = anchor(self.connections, self.source_id, {int(p): offset for p, offset in plan.body.to.items()}, self.chain.state.epoch)
        ends = {str(p): RawTail(tail.sequence, _next_offset(tail) - 1) for p, tail in tails.items()}
        self.chain.done(IngestDone(start=plan.body.start, to=plan.body.to, tails=ends))

    def _start_offset(self) -> Offset:
        """Return the offsets of the last `done`. Raise DataLossError if a partition's subject ends before its offset."""
        self._left = frozenset()
        self.anchor(lambda: self._source.beginnings(self._source.facts().partitions))
        raw = self.connections.log.state(self.connections.names.stream("raw"))
        self._raw_limit = raw.max_bytes if raw else -1
        done: dict[str, int] = self.chain.state.to
        partitions = sorted({*self._source.facts().partitions, *map(int, done)})
        tails = resume_points(self.connections, self.source_id, partitions)
        for partition, confirmed in done.items():
            if _next_offset(tails.get(int(partition))) < confirmed:
                raise DataLossError(
                    f"resuming ingest: the raw stream of partition {partition} ends before offset {confirmed}, which was confirmed; "
                    "restore the streams of this pipeline from one moment, or delete the pipeline and start it anew"
                )
        self._check_ends()
        return {str(p): done.get(str(p), 0) for p in partitions}

    def _check_ends(self) -> None:
        """Check the ends of the partitions with a leader; the end of any other partition reaches `advance` when it has a leader again."""
        confirmed = self.chain.state.to
        ends, _ = self._source.known_ends([int(p) for p in confirmed], _LEADER_ANSWERS_WITHIN_SECONDS)
        check_ends(self._source.words, confirmed, ends)

    def advance(self, end: Offset) -> None:
        """Advance like every leg. If an end steps back, it is checked first: nothing would ever be read up to there.

        Raise ReplanError if a partition has lost its leader on the way: everything else is done, and its rest waits.
        """
        confirmed = self.chain.state.to or {}
        if any(offset < confirmed.get(partition, 0) for partition, offset in end.items()):
            self.patiently(self._check_ends)
        super().advance(end)
        if self._left:
            raise ReplanError(
                f"ingest: no leader answered for partition {', '.join(sorted(self._left, key=int))} of "
                f"{self._source.words.name}, so the others go on without; it is read from where it stands when it has one"
            )

    def show_progress(self) -> None:
        self._source.publish({int(p): offset for p, offset in self.chain.state.to.items()})

    def covers(self, end: Offset) -> bool:
        to = self.chain.state.to or {}
        return all(to.get(partition, -1) >= offset for partition, offset in end.items() if partition not in self._left)

    def propose(self, end: Offset) -> IngestPlan:
        assert self.chain.state.done is not None
        start = {**dict.fromkeys(end, 0), **self.chain.state.to}
        end = {partition: offset for partition, offset in end.items() if partition not in self._left}
        if rest := rest_to_plan(self.chain.state.done.body, start, end):
            return IngestPlan(start=start, to=rest)
        end = admit(start, end, self._most_offsets())
        return IngestPlan(start=start, to={partition: max(offset, end.get(partition, 0)) for partition, offset in start.items()})

    def _most_offsets(self) -> int | None:
        """Return the most offsets of one plan, None for any number.

        Raw keeps a plan's frames until the plan is done, so a plan that does not fit would never finish. The limit follows from the mean
        size of the records so far, with eightfold room for larger ones; before the first record each offset counts as a frame of its own.
        """
        if self._raw_limit <= 0:
            return None
        totals = self.chain.state.totals
        rows = totals.get("rows_out", 0)
        mean_bytes = totals["bytes"] / rows if rows else MAX_FRAME_BYTES
        return max(1, int(self._raw_limit / 8 / mean_bytes))

    def execute(self, plan: Entry[IngestPlan]) -> IngestDone:
        """Execute the plan; if a partition has lost its leader and others have one, execute the rest without it (narrowing.py)."""
        # An earlier attempt may have amended the plan.
        plan = self.chain.state.plan or plan
        try:
            return self._carry_out(plan.body)
        except RetryableError:
            amended = self._narrow(plan.body)
            if amended is None:
                raise
        return self._carry_out(amended)

    def _narrow(self, plan: IngestPlan) -> IngestPlan | None:
        """Return the amended plan, without the rest of partitions that have no leader now.

        None if every partition has a leader, or if no partition has one.
        """
        begin, to = plan.start, plan.to
        try:
            _, silent = self._source.known_ends([int(p) for p in to], _LEADER_ANSWERS_WITHIN_SECONDS)
        except RetryableError:
            return None
        lost = [p for p in map(str, silent) if to[p] > begin[p] and p not in plan.standing]
        if not lost:
            return None
        # The end of its frames on raw, whoever wrote them. A later frame belongs to the next plan, which reaches as far as this one did.
        tails = resume_points(self.connections, self.source_id, [int(p) for p in lost])
        amended = self.chain.amend(narrowed(plan, {p: _next_offset(tails.get(int(p))) for p in lost}))
        self._left |= {*lost}
        return amended.body

    def _carry_out(self, plan: IngestPlan) -> IngestDone:
        start, to = plan.start, plan.to
        ranges = {p: (start[p], to[p]) for p in to if to[p] > start[p]}
        assert self.chain.state.done is not None
        done = self.chain.state.done.body
        tails_before, standing = done.tails, plan.standing
        offsets = sum(end - begin for begin, end in ranges.values())
        by_partition = ingest_divided(self.connections, self._item(ranges, tails_before, standing)).partitions
        # What this process reads ahead are all partitions.
        self._input.is_divided = self.connections.lanes.helped > 0
        rows = sum(report.rows for report in by_partition.values())
        skipped = sum(report.skipped for report in by_partition.values())
        counts = {
            "offsets": offsets,
            "rows_in": rows,
            "rows_out": rows,
            "offsets_skipped": skipped,
            "offsets_without_record": offsets - rows - skipped,
            "frames": sum(report.frames for report in by_partition.values()),
            "bytes": sum(report.bytes for report in by_partition.values()),
        }
        tails = {**tails_before, **{p: report.tail for p, report in by_partition.items()}}
        return IngestDone(start=start, to=to, counts=counts, tails=tails, rest=rest_behind(done, plan))

    def _reached(self, done: IngestDone) -> Offset:
        return dict(done.to)

    def _item(self, ranges: dict[str, tuple[int, int]], tails: Mapping[str, RawTail], standing: Sequence[str]) -> IngestItem:
        known = {p: tails[p] for p in ranges if p in tails}
        return IngestItem(
            self.source_id, ranges, known, tuple(p for p in ranges if p in standing), self.chain.state.epoch, self._flush_bytes
        )
