"""Frames whose bodies are dealt to several streams, so that no single stream's leader writes all bytes of a pipeline (`streams: n`).

A frame is appended in two steps: its body to a body stream, without a condition; then the frame itself, without a payload but with a header
that refers to the body, by compare-and-set as ever. So positions, order and resume points stay those of one stream, and a body counts only
once a frame refers to it: a crash between the steps leaves a body that nobody reads, and that a purge removes.

A writer appends a body after it has learned the last sequence of the frame's subject. So the bodies of one subject are in the order of its
frames: below the body of the oldest frame that stays, none is needed.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice

from pipelines.errors import DataLossError, HaltError
from pipelines.protocol.failpoints import reach
from pipelines.protocol.naming import body_number, body_subject, stream_of_subject
from pipelines.protocol.records import Message

HEADER_BODY = "Tf-Body"
"""Header of a frame whose body is on another stream: the number of the body stream, the sequence there, and the bytes, in decimal."""
_REFERENCE = re.compile(r"([0-9]{1,4}) ([0-9]{1,19}) ([0-9]{1,9})", re.ASCII)
NEWEST = 2**63 - 1
"""A sequence that no stream reaches."""
FRAMES_AT_ONCE = 1024
"""Limit of the frames whose bodies are looked up together: their references take about 0.5 MB."""

Store = Callable[[str, bytes, dict[str, str], int | None], int]
"""Appends a message to a subject; with a number, only if it is the subject's last sequence. Return its sequence."""
Fetch = Callable[[str, str, int, int], Iterator[Message]]
"""Return the messages of a stream and subject with a sequence after the first number and up to the second one, in order."""
Get = Callable[[str, int], Message | None]
"""Return the message of a stream at a sequence, from its leader; None if there is none."""


@dataclass(frozen=True)
class Reference:
    """The place of a frame's body: its subject, its sequence there, its bytes."""

    subject: str
    sequence: int
    bytes: int

    @classmethod
    def of(cls, frame: Message) -> "Reference | None":
        """Return the reference of a frame; None if the frame has its body itself. Raise HaltError for a header that is no reference."""
        text = frame.headers.get(HEADER_BODY)
        if text is None:
            return None
        found = _REFERENCE.fullmatch(text)
        if found is None:
            raise HaltError(
                f"reading {frame.subject} at sequence {frame.sequence}: its header {HEADER_BODY} is no reference to a body; "
                "only Tallyflow may write to its streams"
            )
        number, sequence, size = map(int, found.groups())
        return cls(body_subject(frame.subject, number), sequence, size)

    @property
    def stream(self) -> str:
        return stream_of_subject(self.subject)


def publish(store: Store, streams: int, subject: str, payload: bytes, headers: dict[str, str], expected: int) -> int:
    """Append a message iff `expected` is the subject's last sequence; return its sequence.

    A frame of a stream that is dealt to `streams` body streams leaves its payload on one of them. Raise as `store` does; a body whose frame
    was not appended is left behind.
    """
    number = body_number(subject, streams)
    if not number:
        return store(subject, payload, headers, expected)
    sequence = store(body_subject(subject, number), payload, headers, None)
    reach("frame.after-body")
    return store(subject, b"", {**headers, HEADER_BODY: f"{number} {sequence} {len(payload)}"}, expected)


def with_body(frame: Message, get: Get) -> Message | None:
    """Return a message with its body; one without a reference stays as it is. Return None if the frame was purged since it was read.

    Raise DataLossError for a body that is gone although its frame is there, and for one of another frame.
    """
    reference = Reference.of(frame)
    return frame if reference is None else _joined(frame, reference, get(reference.stream, reference.sequence), get)


def with_bodies(frames: Iterable[Message], fetch: Fetch, get: Get) -> Iterator[Message]:
    """Return messages with their bodies, in order, but for frames that were purged since they were read; see `with_body`."""
    for is_dealt, run in groupby(frames, lambda frame: HEADER_BODY in frame.headers):
        if not is_dealt:
            # One by one: these hold their bytes.
            yield from run
            continue
        while group := [(frame, reference) for frame in islice(run, FRAMES_AT_ONCE) if (reference := Reference.of(frame))]:
            bodies = _Bodies([reference for _, reference in group], fetch, get)
            for frame, reference in group:
                whole = _joined(frame, reference, bodies.take(reference), get)
                if whole is not None:
                    yield whole


class _Bodies:
    """The bodies of some frames, read stream by stream; a body that comes before its frame is held."""

    def __init__(self, references: Iterable[Reference], fetch: Fetch, get: Get) -> None:
        self._get = get
        by_stream: dict[str, list[Reference]] = {}
        for reference in references:
            by_stream.setdefault(reference.stream, []).append(reference)
        self._coming = {stream: _coming(stream, found, fetch) for stream, found in by_stream.items()}
        self._held: dict[tuple[str, int], Message] = {}

    def take(self, reference: Reference) -> Message | None:
        place = reference.stream, reference.sequence
        while place not in self._held and (body := next(self._coming[reference.stream], None)) is not None:
            self._held[reference.stream, body.sequence] = body
        # A replica that lags serves only the beginning; the leader knows.
        return self._held.pop(place, None) or self._get(*place)


def _coming(stream: str, references: list[Reference], fetch: Fetch) -> Iterator[Message]:
    """Read the bodies of one stream, in the order of their sequences. Those between them are read, too, if the subjects differ."""
    wanted = {reference.sequence for reference in references}
    subjects = {reference.subject for reference in references}
    subject = subjects.pop() if len(subjects) == 1 else f"{'.'.join(references[0].subject.split('.', 3)[:3])}.>"
    return (body for body in fetch(stream, subject, min(wanted) - 1, max(wanted)) if body.sequence in wanted)


def _joined(frame: Message, reference: Reference, body: Message | None, get: Get) -> Message | None:
    headers = {name: text for name, text in frame.headers.items() if name != HEADER_BODY}
    # A body has our headers of its frame, which name the positions: so another frame's is recognized.
    if body is not None and (body.subject, len(body.payload), _ours(body.headers)) == (reference.subject, reference.bytes, _ours(headers)):
        return replace(frame, payload=body.payload, headers=headers)
    if body is None and get(stream_of_subject(frame.subject), frame.sequence) is None:
        # A purge takes a frame before its body.
        return None
    raise DataLossError(
        f"reading {frame.subject} at sequence {frame.sequence}: its body, at sequence {reference.sequence} of {reference.stream}, is "
        f"{'gone' if body is None else 'another one'}; restore all streams from one moment, or delete the pipeline and "
        "start it anew"
    )


def _ours(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers that Tallyflow sets; the condition of an append is stored as one, too."""
    return {name: text for name, text in headers.items() if name.startswith("Tf-")}


def purge_bodies(kept: Iterable[Message], purge: Callable[[str, str, int], None]) -> None:
    """Purge the bodies of a subject that no frame needs. `kept`: the frames that stay, from the oldest on."""
    reference = next((found for frame in kept if (found := Reference.of(frame))), None)
    if reference is not None:
        purge(reference.stream, reference.subject, reference.sequence)
