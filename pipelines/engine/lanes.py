"""Lanes: processes of a run that do parts of a leg's plans, beside the process that has the leg.

One process plans and closes for a leg. The work between the two may be cut into parts where a plan is large: the leg does the first part
itself, and asks a lane for each other one, over NATS. Who does a part does not matter: it is a function of the plan, and what it appends
stands under the position rule (`protocol.append`). So a part that a lane does not finish is done again by the leg, and a lane that was
given up, or asked twice, can only write the same, or nothing.

Lanes keep nothing that a plan needs: they may come and go between two requests.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa

from pipelines.engine.balance import Balance
from pipelines.engine.failures import from_failure, to_failure
from pipelines.errors import RetryableError, TallyflowError
from pipelines.protocol.codec import Count, Form, FormError, Text, from_text, to_text
from pipelines.protocol.records import encode_frame
from pipelines.protocol.stream_limits import MAX_FRAME_BYTES

P = TypeVar("P", bound=Form)
R = TypeVar("R")
T = TypeVar("T")
Work = Callable[[str], bytes]
"""What a lane can do: the text of an item to the bytes of its result. Raises as the leg itself would."""

WAIT_SECONDS = 1.0
"""A lane answers after so long at the latest, whether its part is done or not."""
GONE_SECONDS = 2.5
"""A lane that has not answered for so long is given up."""
SILENT_SECONDS = 2.0
"""A lane that was given up is asked again after so long: its process may have been replaced."""
LATE_SECONDS = 60.0
"""A lane that was given up has finished its part after so long, or its process is gone, or it hangs."""
PIECE_BYTES = MAX_FRAME_BYTES
LEAST_RECORDS = 50_000
"""A smaller plan is not cut: a part costs some milliseconds of requests, and so many records about 100 ms of work."""
_TAKEN, _MADE, _FAILED, _UNKNOWN = b".", b"+", b"!", b"?"
_SIZE_BYTES = 8


class Wire(Protocol):
    """A connection that carries requests. Raises RetryableError if no answer comes."""

    def request(self, subject: str, payload: bytes, seconds: float) -> bytes: ...


def lane_subject(run: str, lane: int) -> str:
    """Return the subject at which a process of a run is asked: a lane, which count from 1, or the one with the process leg, which is 0."""
    return f"{run}.lane.{lane}"


@dataclass(frozen=True)
class Ask(Form):
    """A request to a lane: to do the part `item` of a kind of `work`, or without an item, for a piece of its result from a byte on.

    `part` names the part for the later requests; it reaches no stream. `leg`: who asks, as two sinks may ask for the same kind of work.
    """

    part: Text
    work: Text = ""
    item: Text = ""
    name: Text = ""
    piece_from: Count = 0
    leg: Text = ""


class Shelf:
    """What a process holds of one exchange, by name, for the others: tables, and bytes. Thread-safe."""

    def __init__(self) -> None:
        self._exchange = ""
        self._held: dict[str, pa.Table | bytes] = {}
        self._lock = threading.Lock()

    def clear(self, exchange: str) -> None:
        """Begin an exchange, unless it has begun; what was held of another one is gone."""
        with self._lock:
            if exchange != self._exchange:
                self._exchange, self._held = exchange, {}

    def put(self, exchange: str, name: str, content: pa.Table | bytes) -> None:
        """Hold something of the exchange that has begun; of an earlier one it is needed no more."""
        with self._lock:
            if exchange == self._exchange:
                self._held[name] = content

    def table(self, exchange: str, name: str) -> pa.Table | None:
        """Return a table of the exchange, as long as nobody else has asked for it."""
        with self._lock:
            held = self._held.get(name) if exchange == self._exchange else None
            return None if isinstance(held, bytes) else held

    def content(self, exchange: str, name: str) -> bytes | None:
        """Return what is held as bytes, none if there is nothing of this name; None if another exchange has begun."""
        with self._lock:
            if exchange != self._exchange:
                return None
            held = self._held.get(name, b"")
            if not isinstance(held, bytes):
                # Kept, for the pieces to come.
                held = self._held[name] = encode_frame(held)
            return held


class Lane:
    """What a process of a run answers: it does one part of each kind of work at a time, and gives what it holds on its `shelf`.

    `note` is told of an error that nobody expects; the leg then does the part itself.
    """

    def __init__(self, works: Mapping[str, Work], note: Callable[[str], None], shelf: Shelf | None = None) -> None:
        self._works, self._note, self._shelf = works, note, shelf or Shelf()
        self._threads = {name: ThreadPoolExecutor(1, f"lane {name}") for name in works}
        self._made: dict[tuple[str, str], tuple[str, Future[bytes]]] = {}

    def answer(self, payload: bytes) -> bytes:
        """Answer a request of a leg. For any thread."""
        try:
            ask = from_text(Ask, payload)
        except FormError:
            return _UNKNOWN
        if ask.item and ask.work in self._works:
            self._made[ask.work, ask.leg] = ask.part, self._threads[ask.work].submit(self._works[ask.work], ask.item)
            return _TAKEN
        if ask.name:
            content = self._shelf.content(ask.part, ask.name)
            return _UNKNOWN if content is None else _piece(content, ask)
        made = [result for part, result in self._made.values() if part == ask.part]
        return self._result(made[0], ask) if made else _UNKNOWN

    def _result(self, made: "Future[bytes]", ask: Ask) -> bytes:
        try:
            content = made.result(WAIT_SECONDS)
        except TallyflowError as error:
            return _FAILED + to_failure(error).encode()
        except Exception as error:
            if not made.done():
                return _TAKEN
            self._note(f"a part that this process should do ended with {type(error).__name__}: {error}; the leg does it")
            return _UNKNOWN
        return _piece(content, ask)

    def close(self) -> None:
        """End the threads, after the parts in work."""
        for threads in self._threads.values():
            threads.shutdown(cancel_futures=True)
        self._made.clear()


def _piece(content: bytes, ask: Ask) -> bytes:
    return _MADE + len(content).to_bytes(_SIZE_BYTES) + content[ask.piece_from : ask.piece_from + PIECE_BYTES]


class Lanes:
    """The lanes of a run at `subject`, as one of its processes asks them. `divide` is for one thread.

    `count`: how many there are, until `use` names them. `own`: the number of this process, 0 for a leg's, which is `leg`. `shelf`: what it
    holds itself. `balance`: how fast each process has been. `helped`: the parts of the leg's plan that lanes have done, `is_large`:
    whether the plan is large enough to be cut; the leg begins both anew.
    """

    def __init__(
        self,
        wire: Wire | None = None,
        subject: str = "",
        count: int = 0,
        clock: Callable[[], float] = time.monotonic,
        own: int = 0,
        leg: str = "",
    ) -> None:
        self._wire, self._subject, self._clock = wire, subject, clock
        self._numbers: Sequence[int] = range(1, count + 1)
        self._ask_again_at: dict[int, float] = {}
        self._late_until: float | None = None
        self.balance = Balance()
        self.own, self.shelf, self.helped, self.is_large, self._leg = own, Shelf(), 0, False, leg

    def use(self, numbers: Sequence[int]) -> None:
        """Ask these lanes, and no others, from now on: lanes come and go. For any thread."""
        self._numbers = numbers

    def parts_for(self, records: int) -> int:
        """Return into how many parts a plan of so many records is cut: one for this process, one for each lane that may answer."""
        if records < LEAST_RECORDS:
            return 1
        self.is_large = True
        return 1 + len(self._answering)

    def weights(self, work: str, count: int) -> tuple[float, ...]:
        """Return how large the parts of a plan should be, in relation to each other, for the leg's own process and `count - 1` lanes."""
        return self.balance.weights(work, [0, *self._fastest(work)[: count - 1]])

    def take_late(self) -> bool:
        """Return True once when LATE_SECONDS have passed since a lane was given up last: what it made too late is there by now."""
        if self._late_until is None or self._clock() < self._late_until:
            return False
        self._late_until = None
        return True

    @property
    def _answering(self) -> list[int]:
        now = self._clock()
        return [lane for lane in self._numbers if self._ask_again_at.get(lane, now) <= now]

    def _fastest(self, work: str) -> list[int]:
        """Return the lanes that may answer, the fastest first: where a plan has fewer parts than it might have, the slowest has none."""
        lanes = self._answering
        weights = dict(zip(lanes, self.balance.weights(work, lanes), strict=True))
        return sorted(lanes, key=lambda lane: -weights[lane])

    def divide(
        self, work: str, parts: Sequence[P], here: Callable[[P], R], read: Callable[[bytes], R], sizes: Sequence[int] = ()
    ) -> list[R]:
        """Return the results of `parts`, in their order: the first is done by `here`, each other one by a lane, or else by `here`, too.

        `read` decodes the bytes of a lane's result. With `sizes`, those of the parts, the next `weights` follow from how long each took.
        Return or raise only when no lane works on a part any more, unless it was given up. Raise what `here` raises, or what a part has
        raised in a lane.
        """
        processes, took = [0, *self._fastest(work)[: len(parts) - 1]], dict[int, float]()

        def timed(process: int, do: Callable[[], T]) -> T:
            begun = self._clock()
            made = do()
            took[process] = self._clock() - begun
            return made

        with ThreadPoolExecutor(max(1, len(processes) - 1), "lanes") as threads:
            asked = [
                threads.submit(timed, lane, partial(self._made_by, lane, work, to_text(part)))
                for lane, part in zip(processes[1:], parts[1:], strict=False)
            ]
            made = [timed(0, partial(here, part)) for part in parts[:1]]
        contents = [one.result() for one in asked]
        done = [process for process, content in zip(processes, [b"", *contents], strict=False) if content is not None]
        self.balance.note(
            work, {process: (size, took[process]) for process, size in zip(processes, sizes, strict=False) if process in done}
        )
        self.helped += sum(content is not None for content in contents)
        made += (here(part) if content is None else read(content) for part, content in zip_longest(parts[1:], contents))
        return made

    def _made_by(self, lane: int, work: str, item: str) -> bytes | None:
        """Return what a lane makes of an item; None if it does not, so that the part is still to be done."""
        if len(item) > PIECE_BYTES:
            return None
        answer = self._answer(lane, Ask(uuid4().hex, work, item, leg=self._leg))
        if answer is None:
            self._ask_again_at[lane] = self._clock() + SILENT_SECONDS
            self._late_until = self._clock() + LATE_SECONDS
        elif answer.startswith(_FAILED):
            raise from_failure(answer.removeprefix(_FAILED).decode())
        return None if answer is None else answer.removeprefix(_MADE)

    def fetch(self, lane: int, exchange: str, name: str) -> bytes:
        """Return what a process of the run holds of an exchange; nothing if it holds nothing of this name. For any thread.

        Raise RetryableError if the process does not answer, or holds nothing of this exchange.
        """
        answer = self.shelf.content(exchange, name) if lane == self.own else self._answer(lane, Ask(exchange, name=name))
        if answer is None:
            raise RetryableError(f"fetching what lane {lane} holds: it does not answer, or was replaced; the plan is begun again")
        return answer if lane == self.own else answer.removeprefix(_MADE)

    def _answer(self, lane: int, ask: Ask) -> bytes | None:
        """Return the whole answer of a lane, pieces joined, or its failure; None if it gave none."""
        assert self._wire is not None
        subject, content = lane_subject(self._subject, lane), bytearray(_MADE)
        try:
            while True:
                answer = self._wire.request(subject, to_text(ask).encode(), GONE_SECONDS)
                if answer.startswith(_MADE):
                    content += answer[1 + _SIZE_BYTES :]
                    if len(content) > int.from_bytes(answer[1 : 1 + _SIZE_BYTES]):
                        return bytes(content)
                elif answer != _TAKEN:
                    return answer if answer.startswith(_FAILED) else None
                ask = Ask(ask.part, name=ask.name, piece_from=len(content) - 1)
        except RetryableError:
            return None


NO_LANES = Lanes()
"""The lanes of work that is done in one process."""
