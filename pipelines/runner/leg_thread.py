"""The thread of one leg: what ends it, and what is tried again."""

import threading
from collections.abc import Callable

from pipelines.engine.failures import to_failure
from pipelines.engine.leg import AnyLeg, ReplanError, StoppedError
from pipelines.errors import HaltError
from pipelines.host import remedy_by_text

RESTARTS_WITHOUT_PROGRESS = 5
FIRST_WAIT_SECONDS, MOST_WAIT_SECONDS = 0.5, 15.0


class Restarts:
    """Counts the ends that led nowhere, and the growing pauses for what a host lacks; progress in between resets both."""

    def __init__(self) -> None:
        self._fruitless, self._waited = 0, 0.0

    def pause_seconds(self, has_moved: bool) -> float:
        """Return the pause after an end for which the host is the cause."""
        self._waited = min(MOST_WAIT_SECONDS, 2 * self._waited) if self._waited and not has_moved else FIRST_WAIT_SECONDS
        return self._waited

    def fruitless(self, has_moved: bool) -> int:
        """Return the ends in a row without progress, after an end for any other cause."""
        self._fruitless = 1 if has_moved else self._fruitless + 1
        return self._fruitless


class LegThread:
    """Runs a leg until a stop or a halt.

    After any other error it begins again at the end of its chain: at once, or with growing pauses for what this host lacks (room, files,
    memory). It halts after RESTARTS_WITHOUT_PROGRESS.
    """

    def __init__(self, leg: AnyLeg, note: Callable[[str], None], on_news: Callable[[], object]) -> None:
        """`note`: takes what the runner is to be told. `on_news`: called when the leg has taken its chain over, or other settings."""
        self.leg, self._note, self._on_news = leg, note, on_news
        self._input = leg.open_input()
        self._input.on_turn = self._take_settings
        self._sent = self._taken = ""
        """Settings of the pipeline file: those that the runner has sent last, and those of them that the leg has taken."""
        self._restarts, self._batches = Restarts(), 0
        self._rows: int | None = None
        """The rows in total that `rows_taken` has reported; None before the leg has begun."""
        self._thread = threading.Thread(target=self._run, name=leg.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Let the leg see that it is to stop."""
        self._input.wake()

    def send_settings(self, settings: str) -> None:
        """Let the leg go on under other settings behind its batch. For any thread."""
        self._sent = settings
        self._input.wake()

    def _take_settings(self) -> None:
        sent = self._sent
        if sent == self._taken or not self.leg.is_between_plans:
            return
        self._taken = sent
        self.leg.take_settings(sent)
        self._on_news()

    def join(self, seconds: float) -> bool:
        """Wait for the end of the leg, so long at most; return True if it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def rows_taken(self) -> int:
        """Return the rows that the leg has taken since the last call."""
        if self._rows is None:
            return 0
        before, self._rows = self._rows, self._rows_in_total()
        return self._rows - before

    def _rows_in_total(self) -> int:
        return self.leg.status.totals.get("rows_in", 0)

    def _run(self) -> None:
        leg = self.leg
        while not leg.stop.is_set():
            try:
                self._work()
            except StoppedError:
                break
            except ReplanError as replan:
                self._note(str(replan))
            except HaltError as error:
                self._halt(error)
                return
            except Exception as error:
                if not self._may_begin_again(error):
                    return
        leg.status.state = "stopped"

    def _work(self) -> None:
        leg = self.leg
        leg.patiently(leg.connections.prove)
        start = leg.begin()
        self._on_news()
        if self._rows is None:
            self._rows = self._rows_in_total()
        while not leg.stop.is_set():
            end = self._input.next(start, leg.stop)
            if end != start:
                leg.advance(end)
                leg.show_progress()
                start = end

    def _halt(self, error: HaltError) -> None:
        status = self.leg.status
        status.state, status.message, status.failure = "halted", str(error), to_failure(error)
        self._note(f"{self.leg.name} halted: {error}")

    def _may_begin_again(self, error: Exception) -> bool:
        """Wait for the host if it is the cause; halt the leg, and return False, if it made no progress."""
        leg, message = self.leg, f"{type(error).__name__}: {error}"
        has_moved, self._batches = leg.status.batches > self._batches, leg.status.batches
        if to_do := remedy_by_text(str(error)):
            leg.status.state, leg.status.message = "waiting", f"{message}; {to_do}"
            self._note(f"{leg.name}: waiting: {leg.status.message}")
            leg.stop.wait(self._restarts.pause_seconds(has_moved))
            return True
        ends = self._restarts.fruitless(has_moved)
        if ends > RESTARTS_WITHOUT_PROGRESS:
            self._halt(HaltError(f"{leg.name}: it ended {ends} times without progress, last with: {message}"))
            return False
        self._note(f"{leg.name}: beginning again after: {message}")
        return True
