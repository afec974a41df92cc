"""What `run` shows: on a terminal its events above one live line, elsewhere a log line or a JSON object for each event."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO

from rich.live import Live
from rich.text import Text

from pipelines.cli.arguments import Terminal
from pipelines.control.runner_log import event_json, event_lines
from pipelines.counts import count_of
from pipelines.protocol.topology import INGEST, SINK, LegId
from pipelines.runner.events import Event
from pipelines.runner.run_log import RunLog

if TYPE_CHECKING:
    from pipelines.runner.pace import LegPace, Pace
    from pipelines.runner.watch import Watch

_STYLES = {"warning": "yellow", "error": "red"}
_OUTPUT = 2


class _LastingTerminal(Terminal):
    """A terminal without which the run continues: the log has all events."""

    def on_broken_pipe(self) -> None:
        """Show nothing more: nobody reads it."""
        self.quiet = True


class LogFormat(StrEnum):
    """How events are shown."""

    TEXT = "text"
    JSON = "json"


def own_output() -> tuple[TextIO, bool]:
    """Return a stream to this process's stderr that stays when others print elsewhere, and whether there is one to keep.

    Where the command is invoked from Python, stderr is a buffer of the caller's.
    """
    with suppress(OSError, ValueError):
        if sys.stderr.fileno() == _OUTPUT:
            return os.fdopen(os.dup(_OUTPUT), "w", buffering=1, encoding="utf-8", errors="backslashreplace"), True
    return sys.stderr, False


class Narrator:
    """Shows and logs the events of a run. `take` and `note` may be called by any thread.

    `log_format`: None for the live line on a terminal, and text elsewhere.
    """

    def __init__(self, stream: TextIO, log: RunLog, log_format: LogFormat | None = None) -> None:
        self._stream, self._log = stream, log
        self._terminal = _LastingTerminal(file=stream)
        self._format = log_format
        if log_format is None and (not self._terminal.is_terminal or self._terminal.is_dumb_terminal):
            self._format = LogFormat.TEXT
        self._doing, self._doing_since = "", 0.0
        self._watch: Watch | None = None
        self._pace: Pace | None = None
        self._live: Live | None = None
        if self._format is None:
            self._live = Live(
                get_renderable=self._line,
                console=self._terminal,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def note(self, message: str) -> None:
        """Take a sentence to look at."""
        self.take(Event("note", message))

    def take(self, event: Event) -> None:
        """Show and log an event; the begin of a step is shown on the live line only."""
        if event.kind == "begin":
            self._doing, self._doing_since = event.message, time.monotonic()
            return
        if event.kind in ("step", "ready"):
            self._doing = ""
        self._log.take(event)
        self._show(event)

    def fail(self, message: str) -> None:
        """Take the reason why the run has failed, the last words: as every command's, without a time in front."""
        event = Event("failed", message)
        self._log.take(event)
        self.close()
        if self._format is LogFormat.TEXT:
            self._terminal.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
        else:
            self._show(event)

    def watch(self, watch: "Watch", pace: "Pace") -> None:
        """Show the figures of a run that is ready on the live line."""
        self._watch, self._pace = watch, pace

    def close(self) -> None:
        """End the live line. May be called again."""
        if self._live is not None:
            self._live.stop()

    def _show(self, event: Event) -> None:
        now = datetime.now(UTC)
        if self._format is LogFormat.JSON:
            # Nobody reads it any more; the log has it.
            with suppress(BrokenPipeError):
                self._stream.write(event_json(now, event.level, event.message, {"event": event.kind, **event.facts}))
                self._stream.flush()
            return
        text = event_lines(now, event.level, event.message).rstrip("\n") if self._format is LogFormat.TEXT else event.message
        style = _STYLES.get(event.level, "bold" if event.kind == "ready" else "")
        self._terminal.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def _line(self) -> Text:
        """Return the live line, never wider than the terminal."""
        if self._doing:
            line = f"{self._doing} ... {time.monotonic() - self._doing_since:.0f} s"
        elif self._pace is not None and self._watch is not None:
            line = live_line(self._pace.legs, self._pace.dead_letters, self._watch.waits.subjects)
        else:
            line = ""
        shown = Text(line, style="cyan")
        shown.truncate(max(1, self._terminal.width - 1), overflow="ellipsis")
        return shown


def live_line(legs: "Mapping[LegId, LegPace]", dead_letters: int, waits_for: Sequence[str]) -> str:
    """Return the figures of a run: events in and out, the lag over all legs and how long the oldest has waited, dead letters, waits."""
    parts = [f"waiting for {', '.join(waits_for)}"] if waits_for else []
    if not legs:
        return " · ".join([*parts, "counting"])
    parts += [f"in {_rate(legs, INGEST)}", f"out {_rate(legs, SINK)}"]
    lag = sum(pace.waiting for pace in legs.values())
    oldest = max(pace.waiting_seconds for pace in legs.values())
    parts.append(f"lag {lag:,}" + (f", {oldest:,.0f} s" if lag else ""))
    return " · ".join([*parts, f"{count_of(dead_letters, 'dead letter')}"])


def _rate(legs: "Mapping[LegId, LegPace]", kind: str) -> str:
    """Return the events per second of all legs of a kind, over the last half minute; a dash before two looks."""
    rates = [pace.rows_per_second for leg, pace in legs.items() if leg.kind == kind]
    return f"{sum(rate for rate in rates if rate is not None):,.0f}/s" if any(rate is not None for rate in rates) else "-"
