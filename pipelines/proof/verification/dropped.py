"""The records without a row that a step was right to drop, computed again by the reference: copies, what filters drop, other sinks' own.

For the audit, which counts positions and reads no contents. It asks whether a record is lost, so the records on out count as accepted, even
if the reference would not have accepted them: a copy is a record whose key has a row less than a window before it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from pipelines.connectors.sql import filled
from pipelines.process.program import Program
from pipelines.process.steps.dedup import Dedup
from pipelines.progress import Progress
from pipelines.proof.verification.join import PURGED, stage_of
from pipelines.proof.verification.loading import Source, load_span, reference_engine
from pipelines.proof.verification.reference import Reference
from pipelines.proof.verification.span import History, dedup_settings, same_dedup_from, span_between
from pipelines.protocol.outcomes import DUPLICATE, REJECTED
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, first_position, last_position

_ELSEWHERE = (
    "SELECT position FROM parsed WHERE stage IS NULL AND then_dropped IS NULL AND position BETWEEN {first} AND {last} "
    "GROUP BY position HAVING NOT bool_or(is_here)"
)
_COPIES = "SELECT position FROM dropped WHERE why = 'copy' AND position BETWEEN {first} AND {last}"
_ROWS = "SELECT position, emit FROM parsed WHERE stage IS NULL AND then_dropped IS NULL AND is_here AND position BETWEEN {first} AND {last}"
_ROWS_PER_BATCH = 1_000_000
_UNSURE = "SELECT position FROM dropped WHERE why = 'unsure' AND position BETWEEN {first} AND {last}"
_OPEN = "SELECT position FROM open_lefts WHERE why = '{why}' AND position BETWEEN {first} AND {last}"


@dataclass(frozen=True)
class Dropped:
    """Raw positions, ascending: `copies` are kept nowhere, `by_outcome` are dropped for their own sake, by the outcome's label.

    `elsewhere`: the sink does not take them, others do.

    `unsure` may be copies of purged records, or left records that have met one. `unread`: ranges of raw sequences, both inclusive, of which
    nothing is known: the event times before them are purged.
    """

    copies: RawPositions
    by_outcome: Mapping[str, RawPositions]
    elsewhere: RawPositions
    unsure: RawPositions
    unread: Sequence[tuple[int, int]]


SeeRows = Callable[[int, int, Iterator[pa.Table]], None]
"""Takes the rows, `position` and `emit`, of the records of raw frames, from a first sequence to a last one, both inclusive."""


def find_dropped(
    source: Source, accepted: Callable[[int, int], RawPositions], directory: Path, progress: Progress, see_rows: SeeRows
) -> Dropped:
    """Compute the dropped records of the history. A copy is one with a record of its key on out less than a window before it.

    `accepted`: the positions of the accepted records between two raw frames, both inclusive, as the streams show them: those on out, and
    those that a step behind dedup has dropped. `directory`: as in `reference_engine`. `see_rows` takes the rows of all records, copies
    too, where a step makes several rows of a record.
    """
    copies, unsure, elsewhere, unread = [NO_POSITIONS], [NO_POSITIONS], [NO_POSITIONS], []
    by_outcome: dict[str, list[RawPositions]] = defaultdict(list)
    for first, last, config in stretches(source.history, source.configs):
        if config.dedup.time_field and not source.history.is_whole:
            unread.append((first, last))
            continue
        history = replace(source.history, plans=[plan for plan in source.history.plans if plan.first <= last])
        span = span_between(history, first, last, config, same_dedup_from(history, source.configs, config))
        if span.first > first:
            unread.append((first, min(last, span.first - 1)))
        if span.first > last:
            continue
        with reference_engine(directory) as engine:
            reference = Reference(engine, [])
            load_span(reference, replace(source, history=history), span, progress)
            on_out = accepted(span.read_from, last)
            reference.add_accepted_before(pa.table({"position": on_out}))
            progress("looking for dropped records")
            reference.evaluate(config, span.bounds)
            for low, high, version in history.segments(first, last):
                bounds = {"first": first_position(low), "last": last_position(high)}
                if source.configs[version].makes_several:
                    see_rows(low, high, _rows(engine, **bounds))
                for outcome in {one for step in source.configs[version].steps for one in step.outcomes} - {DUPLICATE, REJECTED}:
                    found = _positions(engine, filled("reference/dropped_by", stage=stage_of(outcome), **bounds))
                    by_outcome[outcome.label].append(found)
                unsure.append(_positions(engine, _OPEN.format(why=PURGED, **bounds)))
                if source.configs[version].tables.routes:
                    elsewhere.append(_positions(engine, _ELSEWHERE.format(**bounds)))
                if config.side_dedups:
                    copies.append(_positions(engine, _COPIES.format(**bounds)))
                if config.dedup.key:
                    # Copies that are kept are not missing, but for those that have no row.
                    absent = "then_dropped IS NOT NULL" if source.configs[version].dedup.keeps else "true"
                    copies.append(
                        _positions(engine, filled("reference/covered", window_us=config.dedup.window_us, absent=absent, **bounds))
                    )
                    unsure.append(_positions(engine, _UNSURE.format(**bounds)))
    all_copies = np.unique(np.concatenate(copies))
    own = {label: np.unique(np.concatenate(positions)) for label, positions in by_outcome.items()}
    return Dropped(
        all_copies, own, np.setdiff1d(np.concatenate(elsewhere), all_copies), np.setdiff1d(np.concatenate(unsure), all_copies), unread
    )


def stretches(history: History, configs: Mapping[str, Program]) -> Iterator[tuple[int, int, Program]]:
    """Yield (first sequence, last sequence, configuration) of the ranges with one way of dedup in which some record may be dropped."""
    if not history.sequences:
        return
    for _, group in groupby(history.plans, key=lambda plan: dedup_settings(configs[plan.version])):
        plans = list(group)
        first, last, config = max(plans[0].first, history.sequences[0]), plans[-1].to, configs[plans[-1].version]
        if any(_drops(configs[plan.version]) for plan in plans) and history.frames(first, last):
            yield first, last, config


def _drops(config: Program) -> bool:
    drops = any(step.drops and not (isinstance(step, Dedup) and step.keeps) for step in config.steps)
    return drops or config.tables.routes


def _rows(engine: duckdb.DuckDBPyConnection, first: int, last: int) -> Iterator[pa.Table]:
    found: pa.RecordBatchReader = engine.execute(_ROWS.format(first=first, last=last)).to_arrow_reader(_ROWS_PER_BATCH)
    return (pa.Table.from_batches([batch]) for batch in found)


def _positions(engine: duckdb.DuckDBPyConnection, sql: str) -> RawPositions:
    return np.asarray(engine.execute(sql).fetchnumpy()["position"], dtype=np.uint64)
