"""Frames of a preview that NATS holds: raw frames as they are, dead letters as their future raw frames. Read only."""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import dropwhile
from typing import Literal

from pipelines.config import PipelineConfig, parse_duration
from pipelines.connectors.nats.client import JetStream, fetch_whole
from pipelines.connectors.nats.streams import StreamState
from pipelines.dead_letters.dry_run import frames_of_dead_letters
from pipelines.dead_letters.stream import DeadLetters
from pipelines.dead_letters.triage import Selection
from pipelines.errors import HaltError
from pipelines.maintenance.replay import done_before
from pipelines.process.arrivals import Arrived, arrivals
from pipelines.protocol.bodies import NOTHING, PROCESS_CHAIN, Watermarks
from pipelines.protocol.existence import check_started
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.purge import read_purged

Memory = Literal["none", "cut", "window", "whole"]
_NO_MEMORY: Memory = "none"
_SEQUENCES = re.compile(r"([1-9][0-9]{0,17})(?:\.\.([1-9][0-9]{0,17}))?")


@dataclass(frozen=True)
class Span:
    """A range of raw: sequences from `first` to `last`, both inclusive, or the frames since a time; a duration ends now."""

    first: int = 0
    last: int = 0
    since: datetime | timedelta | None = None


def parse_span(text: str) -> Span:
    """Parse a range such as `1h`, `2026-01-31T12:00:00` (UTC without a zone), `120` or `120..180`. Raise ValueError for other text."""
    if match := _SEQUENCES.fullmatch(text):
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"ends before it begins: {text}")
        return Span(first, last)
    try:
        return Span(since=parse_duration(text))
    except ValueError:
        pass
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        known = "a time span such as 1h, an instant such as 2026-01-31T12:00:00, or raw sequences such as 120..180"
        raise ValueError(f"must be {known}") from None
    return Span(since=instant if instant.tzinfo else instant.replace(tzinfo=UTC))


@dataclass(frozen=True)
class StoredFrames:
    """Raw frames in order; those before sequence `first` are only to be remembered. `watermarks`: before the first of all.

    `memory`: what the frames before the range cover: nothing, a part of the dedup window, all of it, or everything that raw ever held.
    """

    frames: Iterator[Arrived]
    first: int
    watermarks: Watermarks = NOTHING
    memory: Memory = _NO_MEMORY


def raw_frames(log: JetStream, names: Names, span: Span, window: timedelta | None = None) -> StoredFrames:
    """Return the frames of `span` that raw still holds; with a `window`, those before it that dedup needs too, as far as they are left.

    Raise HaltError for a pipeline that was never started, or if the range holds no frame.
    """
    check_started(log, names)
    stream = names.stream("raw")
    state = log.state(stream)
    first = _first_of(log, names, state, span)
    if state is None or first is None:
        raise HaltError(f"reading {stream}: the range holds no record; it holds sequences {_held(state)}")
    last = min(span.last or state.last_sequence, state.last_sequence)
    from_, memory = _remembered(log, names, state, first, window) if window is not None else (first, _NO_MEMORY)
    start = done_before(log, names, max(from_, state.first_sequence))
    done = read_chain(log, names, PROCESS_CHAIN).done
    messages = fetch_whole(log, stream, names.subjects("raw"), start.sequence, last)
    found = arrivals(messages, start.clock_us, done.body.clock_resets if done else ())
    if window is None:
        found = dropwhile(lambda frame: frame.message.sequence < first, found)
    return StoredFrames(found, first, start.watermarks, memory)


def _first_of(log: JetStream, names: Names, state: StreamState | None, span: Span) -> int | None:
    """Return the sequence at which the range begins; None if no frame of it is left."""
    if state is None or not state.messages:
        return None
    if span.since is None:
        first = max(span.first, state.first_sequence)
        return first if first <= min(span.last, state.last_sequence) else None
    stream = names.stream("raw")
    since = log.clock(stream) - span.since if isinstance(span.since, timedelta) else span.since
    found = log.first_since(stream, names.subjects("raw"), since)
    return found.sequence if found else None


def _remembered(log: JetStream, names: Names, state: StreamState, first: int, window: timedelta) -> tuple[int, Memory]:
    """Return (the sequence from which frames are read for a range from `first`, what they cover)."""
    stream, subjects = names.stream("raw"), names.subjects("raw")
    begins = next(log.fetch(stream, subjects, first - 1, state.last_sequence)).time - window
    found = log.first_since(stream, subjects, begins)
    from_ = min(found.sequence if found else first, first)
    purged = read_purged(log, names, "raw")
    if purged.since is not None and begins < purged.since:
        return from_, "cut"
    return from_, "whole" if from_ == state.first_sequence and not purged.below else "window"


def _held(state: StreamState | None) -> str:
    return f"{state.first_sequence} to {state.last_sequence}" if state and state.messages else "of no frame"


def dead_letter_frames(config: PipelineConfig, selection: Selection) -> Iterator[Arrived]:
    """Yield the selected dead letters as the raw frames that they would enter as. Raise as `DeadLetters`."""
    with closing(DeadLetters(config)) as reader:
        yield from frames_of_dead_letters((table for table in reader.frames(selection) if table.num_rows), [])


def limited(frames: Iterable[Arrived], records: int) -> Iterator[Arrived]:
    """Yield whole frames until they hold so many records."""
    for frame in frames:
        if records <= 0:
            return
        records -= frame.message.rows
        yield frame
