"""The decisions of lanes, from what is stored to what comes next. Nothing here reads or writes.

Headers of a raw frame: `Tf-Base`, `Tf-Base-Rows`: every record of the partition below that offset stood on its subject when the frame was
written, and so many they were. `Tf-Layout`: the layout by which the frame's records were dealt.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.protocol.lanes.bodies import Assignment, Generation, IngestState, Layout, ProcessState, Segments
from pipelines.protocol.records import HEADER_LAST, Message

HEADER_BASE = "Tf-Base"
HEADER_BASE_ROWS = "Tf-Base-Rows"
HEADER_LAYOUT = "Tf-Layout"


@dataclass(frozen=True, order=True)
class Resume:
    """Where an ingest lane goes on: the next offset to read, and the rows of the partition below it."""

    offset: int
    rows: int


def resume_point(state: IngestState, tails: Iterable[Mapping[str, str]]) -> Resume:
    """Return where ingest goes on: the furthest that its state, or the last frame of any of its subjects, knows to be complete."""
    known = [Resume(int(h[HEADER_BASE]), int(h[HEADER_BASE_ROWS])) for h in tails if HEADER_BASE in h]
    return max([Resume(state.to, state.rows), *known])


def config_at(state: ProcessState, sequence: int) -> str:
    """Return the version of the configuration for a raw sequence behind `state.to`."""
    return next((config for after, config in reversed(state.switches) if after < sequence), state.config)


def last_config(state: ProcessState) -> str:
    """Return the version of the configuration to which the lane is going over, or which it has."""
    return state.switches[-1][1] if state.switches else state.config


def switched(state: ProcessState, config: str, outputs: Iterable[int]) -> ProcessState:
    """Return the decision to go over to another configuration. `outputs`: raw sequences at the ends of the fenced output subjects."""
    after = max([state.to, *(after for after, _ in state.switches), *outputs])
    return replace(state, start=state.to, counts={}, switches=(*state.switches, (after, config)), segments=unchanged(state))


def reached(state: ProcessState, to: int) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Return configuration and switches of the state that ends at `to`."""
    return config_at(state, to + 1), tuple(switch for switch in state.switches if switch[0] > to)


def unchanged(state: ProcessState) -> Segments:
    """Return the difference of segments of a state that changes none."""
    return Segments(changes=state.segments.changes + 1)


def raw_that_may_go(frames: Sequence[Message], processed: int, ingested: int) -> int:
    """Return the sequence below which frames of one raw subject, in order, may be purged.

    Frames stay that their bucket's lane has not processed, or that ingest might read back (offsets from its state's `to` on), and the last
    one: it is the resume point of its subject. `processed` is the end of a state, and whoever writes one has fenced its outputs when it
    opened the chain: an earlier attempt that reads on behind the gap would not know the keys of what is gone, and append other rows.
    """
    for message in frames[:-1]:
        if message.sequence > processed or int(message.headers[HEADER_LAST]) >= ingested:
            return message.sequence
    return frames[-1].sequence if frames else 0


@dataclass(frozen=True)
class Wishes:
    """What the driver wants to run: the configuration, the number of buckets, the groups of the sink lanes, the number of shares."""

    config: str
    buckets: int
    groups: int
    shares: int


@dataclass(frozen=True)
class Facts:
    """What the chains say to the driver. `drained`: the sequence at which a next layout may begin, None while the old one has work left.

    `has_begun`: every sink lane of the generation has a state, so that a next generation finds where to go on.
    """

    drained: int | None
    has_begun: bool
    segments: tuple[str, ...] = ()


def first_layout(buckets: int) -> Layout:
    return Layout(1, buckets)


def next_assignment(before: Assignment | None, wishes: Wishes, facts: Facts, partitions: Collection[int]) -> Assignment:
    """Return the assignment of the next epoch.

    Another number of buckets takes two of them: the first closes the layout, the second follows when all is drained. The first waits until
    every bucket of the layout has a sink lane: no later generation would know a bucket that only this layout had.
    """
    number = before.to if before else 0
    layout = before.layout if before else first_layout(wishes.buckets)
    is_draining = before is not None and before.is_draining
    if is_draining and facts.drained is not None:
        layout = Layout(layout.number + 1, wishes.buckets, facts.drained, facts.segments)
        is_draining = False
    generation = _generation(before.generation if before else None, layout, wishes.groups, facts.has_begun)
    if layout.buckets != wishes.buckets and has_sink_lanes(generation, layout):
        is_draining = True
    lanes = [
        *(f"ingest.{partition}" for partition in sorted(partitions)),
        *(f"process.{bucket}" for bucket in range(layout.buckets)),
        *(f"sink.{group}" for group in range(len(generation.groups))),
    ]
    shares = tuple(tuple(lanes[share :: wishes.shares]) for share in range(wishes.shares))
    return Assignment(
        start=number,
        to=number + 1,
        config=wishes.config,
        layout=layout,
        generation=generation,
        shares=tuple(share for share in shares if share),
        is_draining=is_draining,
    )


def _generation(before: Generation | None, layout: Layout, groups: int, has_begun: bool) -> Generation:
    """Return the groups of sink lanes; they cover the buckets of all layouts so far, whose rows may still wait."""
    known = {bucket for group in before.groups for bucket in group} if before else set()
    buckets = sorted(known | set(range(layout.buckets)))
    wanted = tuple(filter(None, (tuple(buckets[group::groups]) for group in range(groups))))
    if before is None:
        return Generation(1, wanted)
    if before.groups == wanted or not has_begun:
        return before
    return Generation(before.number + 1, wanted, before.groups)


def has_sink_lanes(generation: Generation, layout: Layout) -> bool:
    """Return whether every bucket of a layout belongs to a group of the sink lanes."""
    return {bucket for group in generation.groups for bucket in group}.issuperset(range(layout.buckets))


def closer_of(generation: Generation, old: int) -> int:
    """Return which group of a generation closes a group of the one before: the one with its first bucket."""
    bucket = generation.before[old][0]
    return next(index for index, group in enumerate(generation.groups) if bucket in group)
