"""A verification in slices of its range, each by a Spark task with its own DuckDB; the verdict is that of one run over the whole.

A slice reads from the table which records of the window before it were accepted. If an earlier slice has found the table wrong in these
rows, both are verified again as one: a copy of a row that is missing is no fault of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from pydantic import AwareDatetime

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.engine.connections import Connections
from pipelines.engine.execute import Tasks, Work
from pipelines.process.stage_config import config_of
from pipelines.progress import Progress, no_progress
from pipelines.proof.verification.result import Verification, add_up
from pipelines.proof.verification.run import Request, Subject, Verifier
from pipelines.proof.verification.span import load_configs, read_history
from pipelines.proof.verification.steps import Column
from pipelines.protocol.codec import Count, Flag, Form, Text, Version
from pipelines.protocol.positions import ORDINAL_BITS
from pipelines.protocol.records import instant

_BEYOND = 2**63 - 1
_WORTH = 0.75
"""Largest share of the whole range that is worth a slice.

The rest of the gain pays for the tasks' start, and for the ledger and dead letters that each of them reads.
"""


@dataclass(frozen=True)
class Slice(Form):
    """Arrivals from `since` (inclusive) to `until` (exclusive), None as in a request. `follows`: there is a slice before it."""

    since: AwareDatetime | None
    until: AwareDatetime | None
    follows: Flag


@dataclass(frozen=True)
class Verified(Form):
    """A slice with its report.

    `relies_from`: the first raw sequence whose rows were trusted, its own first one if none were, beyond all of them if nothing was
    compared. `last_fault`: the last raw sequence with a row that is missing or extra; 0 for none.
    """

    slice: Slice
    report: Verification
    relies_from: Count
    last_fault: Count


def verify_in_tasks(
    config: PipelineConfig, log: JetStream, request: Request, tasks: Tasks, progress: Progress = no_progress
) -> Verification:
    """Verify as `run.verify`, with one task per slot. A range that is not worth cutting, and a table without position columns, stay here.

    Each worker has DuckDB's memory for itself, and needs room below `request.directory`.
    """
    verifier = Verifier(config, log, request, progress)
    subject = verifier.subject()
    slices = cut(subject, request, tasks.slots) if subject and subject.has_positions else []
    if subject is None or len(slices) < 2:
        progress("verifying here: the range is not worth cutting")
        verifier.compare(subject)
        return verifier.report
    progress(f"verifying {len(slices)} slices as Spark tasks")
    return verify_slices(verifier, subject, request, slices, tasks)


def cut(subject: Subject, request: Request, most: int) -> list[Slice]:
    """Cut a range into at most `most` slices of about as many frames each; one if no cut is worth it; none without a frame.

    A slice is worth its task if it reads no more frames before it than it has, which bounds the work, and at most _WORTH of the whole.
    """
    span = subject.span(request.since, request.until)
    if span is None:
        return []
    history = subject.history
    frames = history.frames(span.first, span.last)
    for count in range(most, 1, -1):
        # Frames of one arrival are never parted.
        arrivals = sorted({history.arrival_us(frames[len(frames) * part // count]) for part in range(1, count)})
        slices = slices_between(request, [instant(at) for at in arrivals if history.since(at) > span.first])
        if len(slices) > 1 and all(_is_worth(subject, one, len(frames)) for one in slices):
            return slices
    return [Slice(request.since, request.until, follows=False)]


def slices_between(request: Request, borders: Sequence[datetime]) -> list[Slice]:
    ends = [request.since, *borders, request.until]
    return [Slice(since, until, follows=number > 0) for number, (since, until) in enumerate(pairwise(ends))]


def _is_worth(subject: Subject, one: Slice, of_frames: int) -> bool:
    span, history = subject.span(one.since, one.until), subject.history
    if span is None:
        return False
    own, before = len(history.frames(span.first, span.last)), len(history.frames(span.read_from, span.first - 1))
    return not one.follows or (before <= own and own + before <= _WORTH * of_frames)


def verify_slices(verifier: Verifier, subject: Subject, request: Request, slices: Sequence[Slice], tasks: Tasks) -> Verification:
    """Return the report that `verifier`, which has compared the table's columns, would give of the whole range."""
    parts = _verified(subject, request, slices, tasks)
    while len(groups := joined(parts)) < len(parts):
        again = [_one(group) for group in groups if len(group) > 1]
        new = {one.slice: one for one in _verified(subject, request, again, tasks)}
        parts = [new.get(_one(group), group[0]) for group in groups]
    whole, noted = add_up([part.report for part in parts], request.examples), verifier.report
    noted.findings += whole.findings
    noted.not_proven += whole.not_proven
    noted.not_compared += whole.not_compared
    verifier.find_strangers()
    return replace(whole, findings=noted.findings, not_proven=noted.not_proven, not_compared=noted.not_compared)


def joined(parts: Sequence[Verified]) -> list[list[Verified]]:
    """Group neighbors that must be one: the later one trusted rows of the table that an earlier one has found missing or extra."""
    groups: list[list[Verified]] = []
    for part in parts:
        groups.append([part])
        while any(one.last_fault >= part.relies_from for group in groups[:-1] for one in group):
            last = groups.pop()
            groups[-1] += last
    return groups


def _one(group: Sequence[Verified]) -> Slice:
    return Slice(group[0].slice.since, group[-1].slice.until, group[0].slice.follows)


def _verified(subject: Subject, request: Request, slices: Sequence[Slice], tasks: Tasks) -> list[Verified]:
    items = [
        SliceItem(
            directory=str(request.directory),
            examples=request.examples,
            with_kafka=request.with_kafka,
            config=subject.history.plans[-1].version,
            columns=tuple(subject.columns),
            lost={reason: list(versions) for reason, versions in subject.lost.items()},
            slice=one,
        )
        for one in slices
    ]
    return tasks.run(VERIFY_SLICE, items)


@dataclass(frozen=True, kw_only=True)
class SliceItem(Form):
    """One slice: of the request, of its subject, and of the slice."""

    directory: Text
    examples: Count
    with_kafka: Flag
    config: Version
    columns: tuple[Column, ...]
    lost: dict[Text, list[Text]]
    slice: Slice


def verify_slice(connections: Connections, item: SliceItem) -> Verified:
    request = Request(Path(item.directory), item.slice.since, item.slice.until, item.examples, item.with_kafka)
    verifier = Verifier(connections.config, connections.log, request, follows=item.slice.follows)
    history = read_history(connections.log, connections.names, request.since)
    configs, config = load_configs(connections.log, connections.names, history), config_of(connections, item.config)
    subject = Subject(history, configs, config, [*item.columns], item.lost)
    span = verifier.compare(subject, threads=1)
    relies_from = _BEYOND if span is None else span.read_from if span.is_seeded else span.first
    return Verified(item.slice, verifier.report, relies_from, verifier.last_fault >> ORDINAL_BITS)


VERIFY_SLICE = Work(verify_slice, SliceItem, Verified)
