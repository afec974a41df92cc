"""The pieces of a chunk that are inserted at once: one by the leg, the others by lanes, each under a token of its own.

Where much waits, a plan holds the rows of several chunks, and names the ends of its pieces, at borders of frames. So who inserts a piece,
and how often, does not matter: it has the same rows and the same token. Nothing can fence an insert, but an entry of the chain can fence
its beginning: a lane inserts only while the last entry is the one that the leg knew when it asked.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice, pairwise, takewhile

import numpy as np

from pipelines.connectors.nats.contiguous import check_contiguous
from pipelines.engine.balance import OWN_SHARES
from pipelines.engine.connections import Connections
from pipelines.engine.failures import from_failure, to_failure
from pipelines.errors import InsertTooLargeError, RefusedError, RetryableError, TallyflowError
from pipelines.process.stage_config import config_of
from pipelines.protocol.bodies import SinkPlan
from pipelines.protocol.codec import Count, Digest, Flag, Form, Text, Version, from_text, to_text
from pipelines.protocol.records import Message
from pipelines.protocol.topology import LegId
from pipelines.sink.chunks import Chunk, Pieces, Rows
from pipelines.sink.inserts import block_for, check_digest, chunk_rows, insert, insert_columns, token_of, work_of
from pipelines.sink.refusal_limits import AMBIGUOUS_ATTEMPTS

SINK_PART = "sink"
"""The name of the work that a lane does for the sink."""
FRESH_SECONDS = 1.0
"""A look at the chain that took longer is too old for an insert; settling waits six times as long for one that was begun before."""


@dataclass(frozen=True, kw_only=True)
class InsertItem(Form):
    """The piece `number` of a plan of `leg`: out frames from `start` (exclusive) to `to`, for one insert under `token`, named by `work`.

    `entry`: the last entry of the chain. Behind another one the piece may have been cut, or the leg may have gone on without it.
    """

    leg: Text
    number: Count
    entry: Count
    start: Count
    to: Count
    digest: Digest
    config: Version
    token: Text
    work: Text


@dataclass(frozen=True)
class InsertReport(Form):
    """What became of a piece: it is stored, `refused` for its rows, or its outcome is unknown because of a `failure`."""

    number: Count
    is_stored: Flag = False
    refused: Text = ""
    failure: Text = ""


def in_parts(
    first: Chunk, following: Iterator[Chunk], parts: int, cut: Callable[[Iterator[Message]], Iterator[Chunk]]
) -> tuple[Chunk, tuple[int, ...]]:
    """Return the chunk of a plan for so many processes, and the ends of its pieces.

    The leg's own piece has OWN_SHARES of the rows, and is no larger than `cut` makes a chunk; so the `following` chunks are taken along.
    """
    if parts < 2 or not first.rows:
        return first, (first.rows,) if first.rows else ()
    taken = takewhile(lambda chunk: chunk.configs <= first.configs, islice(following, (parts - 1) // OWN_SHARES))
    whole = [first, *taken]
    chunk, shares = Chunk(tuple(message for one in whole for message in one.messages)), parts - 1 + OWN_SHARES
    targets = np.searchsorted(chunk.ends, [max(1, chunk.rows * number // shares) for number in range(OWN_SHARES, shares)])
    ends = tuple(sorted({*(chunk.ends[place] for place in targets), chunk.rows}))
    if all(len(list(cut(iter(chunk.part(*piece)[0].messages)))) == 1 for piece in pairwise((0, *ends))):
        return chunk, ends
    # The rows are of very different sizes.
    return chunk, tuple(sorted({*accumulate(one.rows for one in whole)} - {0}))


def insert_part(connections: Connections, text: str, clock: Callable[[], float] = time.monotonic) -> bytes:
    """Insert a piece, an `InsertItem` as text; return its `InsertReport` as text. The work of a lane.

    Raise HaltError for rows that do not fit the table, or are not those of the plan.
    """
    item = from_text(InsertItem, text)
    of_leg = connections.of_leg(LegId.parse(item.leg))
    return to_text(_reported(item.number, partial(_insert_part, of_leg, item, clock))).encode()


def _insert_part(connections: Connections, item: InsertItem, clock: Callable[[], float]) -> None:
    stream = connections.names.stream(connections.out)
    messages = tuple(connections.log.fetch(stream, connections.names.subjects(connections.out), item.start, item.to))
    check_contiguous(stream, [message.sequence for message in messages], item.start, item.to)
    chunk = Chunk(messages)
    check_digest(chunk, stream, item.digest)

    def check_right() -> None:
        """Raise RetryableError unless the chain is as the leg knew it a moment ago."""
        asked_at = clock()
        last = connections.log.last(connections.names.stream("ledger"), connections.names.chain(item.leg))
        if last is None or last.sequence != item.entry or clock() - asked_at > FRESH_SECONDS:
            raise RetryableError("inserting a piece: the leg has gone on, or NATS is too slow to tell; nothing was sent")

    _send(connections, item, chunk, check_right)


def _send(connections: Connections, item: InsertItem, chunk: Chunk, check_right: Callable[[], None]) -> None:
    config = config_of(connections, item.config)
    block = block_for(connections, config, chunk_rows(chunk, insert_columns(connections, config)))
    # Last, because nothing fences an insert.
    check_right()
    insert(connections, config.full_table, block, item.token, item.work)


def _reported(number: int, attempt: Callable[[], None]) -> InsertReport:
    try:
        attempt()
    except RefusedError as refusal:
        return InsertReport(number, refused=str(refusal))
    except RetryableError as error:
        return InsertReport(number, failure=to_failure(error))
    return InsertReport(number, is_stored=True)


class Parts:
    """The pieces of a plan in this start of the leg, by their numbers: `confirmed`, `refused` with the reason, and open ones.

    `is_doubtful`: whether an insert may be running whose outcome the leg does not know. `fenced_at`: when no such one began any more.
    """

    def __init__(self, connections: Connections, plan: SinkPlan, chunk: Chunk, ends: tuple[int, ...], is_doubtful: bool) -> None:
        self._connections, self._plan, self._chunk = connections, plan, chunk
        self.pieces = [Pieces(first, (end,)) for first, end in pairwise((0, *ends))]
        self._frames = [chunk.part(piece.sent, piece.ends[0])[0] for piece in self.pieces]
        self.confirmed: set[int] = set()
        self.refused: dict[int, str] = {}
        self.too_large: set[int] = set()
        self._too_large_counts = [0] * len(self.pieces)
        self.is_doubtful = is_doubtful
        self.fenced_at: float | None = None

    @property
    def open(self) -> list[int]:
        return [number for number in range(len(self.pieces)) if number not in self.confirmed and number not in self.refused]

    def reopen(self, number: int) -> None:
        """Let a piece that was too large be sent again."""
        del self.refused[number]
        self.too_large.discard(number)
        self._too_large_counts[number] = 0

    def confirmed_rows(self) -> list[Rows]:
        return [self.pieces[number].to_send() for number in sorted(self.confirmed)]

    def insert(self, entry: int, check_right: Callable[[], None]) -> None:
        """Send each open piece once, here and in lanes, while `entry` is the last of the chain.

        `check_right` raises RetryableError if an insert must not begin here. Raise RetryableError while a piece is open.
        """
        self.fenced_at = None
        items = [self._item(number, entry) for number in self.open]

        def here(item: InsertItem) -> InsertReport:
            # A lane may have been asked, and be at it.
            self.is_doubtful |= item is not items[0]
            return _reported(item.number, lambda: _send(self._connections, item, self._frames[item.number], check_right))

        reports = self._connections.lanes.divide(SINK_PART, items, here, partial(from_text, InsertReport))
        errors = [error for report in reports if (error := self._noted(report)) is not None]
        if errors:
            raise errors[0]

    def _item(self, number: int, entry: int) -> InsertItem:
        frames = self._frames[number]
        return InsertItem(
            leg=self._connections.config.sink_leg,
            number=number,
            entry=entry,
            start=frames.first - 1,
            to=frames.last,
            digest=frames.digest,
            config=self._plan.config,
            token=self.pieces[number].token(token_of(self._connections, self._plan, self._chunk), self._chunk.rows),
            work=work_of(self._connections, self._chunk),
        )

    def _noted(self, report: InsertReport) -> TallyflowError | None:
        """Note what became of a piece; return the error for which it must be sent again."""
        number = report.number
        if report.is_stored:
            self.confirmed.add(number)
        elif not report.failure:
            self.refused[number] = report.refused
        else:
            self.is_doubtful = True
            error = from_failure(report.failure)
            self._too_large_counts[number] += isinstance(error, InsertTooLargeError)
            if self._too_large_counts[number] < AMBIGUOUS_ATTEMPTS:
                return error
            self.refused[number] = str(error)
            self.too_large.add(number)
        return None
