"""The records without a row that dedup was right to drop as copies: keys and times computed again by the reference.

For the audit, which counts positions and reads no contents. It asks whether a record is lost, so the records on out count as accepted, even
if the reference would not have accepted them: a copy is a record whose key has a row less than a window before it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from pipelines.connectors.sql import filled
from pipelines.process.program import Program
from pipelines.progress import Progress
from pipelines.proof.verification.loading import Source, load_span, reference_engine
from pipelines.proof.verification.reference import Reference
from pipelines.proof.verification.span import History, dedup_settings, same_dedup_from, span_between
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, first_position, last_position

_UNSURE = "SELECT position FROM dropped WHERE why = 'unsure' AND position BETWEEN {first} AND {last}"


@dataclass(frozen=True)
class Copies:
    """Raw positions, ascending: `dropped` are copies that are kept nowhere, `unsure` may be copies of purged records.

    `unread`: ranges of raw sequences, both inclusive, whose records may all be copies: the event times before them are purged.
    """

    dropped: RawPositions
    unsure: RawPositions
    unread: Sequence[tuple[int, int]]


def find_copies(source: Source, accepted: Callable[[int, int], RawPositions], directory: Path, progress: Progress) -> Copies:
    """Compute the copies among the records of the history: records with one of their key on out less than a window before them.

    `accepted`: the positions on out of the records between two raw frames, both inclusive. `directory`: as in `reference_engine`.
    """
    dropped, unsure, unread = [NO_POSITIONS], [NO_POSITIONS], []
    for first, last, config in stretches(source.history, source.configs):
        if config.dedup.time_field and not source.history.is_whole:
            unread.append((first, last))
            continue
        history = replace(source.history, plans=[plan for plan in source.history.plans if plan.first <= last])
        span = span_between(history, first, last, config, same_dedup_from(history, source.configs, config))
        with reference_engine(directory) as engine:
            reference = Reference(engine, [])
            load_span(reference, replace(source, history=history), span, progress)
            on_out = accepted(span.read_from, last)
            reference.add_accepted_before(pa.table({"position": on_out}))
            progress("looking for copies")
            reference.evaluate(config, span.bounds)
            for low, high, version in history.segments(first, last):
                if not source.configs[version].dedup.keeps:
                    bounds = {"first": first_position(low), "last": last_position(high)}
                    dropped.append(_positions(engine, filled("reference/covered", window_us=config.dedup.window_us, **bounds)))
                    unsure.append(_positions(engine, _UNSURE.format(**bounds)))
    copies = np.sort(np.concatenate(dropped))
    return Copies(copies, np.setdiff1d(np.concatenate(unsure), copies), unread)


def stretches(history: History, configs: Mapping[str, Program]) -> Iterator[tuple[int, int, Program]]:
    """Yield (first sequence, last sequence, configuration) of the ranges with one way of dedup that dropped copies."""
    if not history.sequences:
        return
    for _, group in groupby(history.plans, key=lambda plan: dedup_settings(configs[plan.version])):
        plans = list(group)
        first, last, config = max(plans[0].first, history.sequences[0]), plans[-1].to, configs[plans[-1].version]
        is_dropped = config.dedup.key and not all(configs[plan.version].dedup.keeps for plan in plans)
        if is_dropped and history.frames(first, last):
            yield first, last, config


def _positions(engine: duckdb.DuckDBPyConnection, sql: str) -> RawPositions:
    return np.asarray(engine.execute(sql).fetchnumpy()["position"], dtype=np.uint64)
