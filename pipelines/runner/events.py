"""What a run reports while it starts, works and ends: each event is a sentence for users, with figures for machines."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["begin", "step", "ready", "note", "waiting", "back", "tally", "failed"]
"""The kinds of events.

`begin` a step of the start or of the end begins; `step` a step is done; `ready` the legs have begun; `note` something to look at;
`waiting` a system is away; `back` it works again; `tally` the account of the run; `failed` the reason why the run has failed.
"""
LEVELS: Mapping[Kind, str] = {
    "begin": "info",
    "step": "info",
    "ready": "info",
    "note": "warning",
    "waiting": "warning",
    "back": "info",
    "tally": "info",
    "failed": "error",
}


@dataclass(frozen=True)
class Event:
    """One event of a run. `message` may have several lines; `facts` are JSON values."""

    kind: Kind
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def level(self) -> str:
        return LEVELS[self.kind]


Report = Callable[[Event], None]
"""Takes an event; called from several threads."""


def ignore(_: Event) -> None:
    """Ignore the event."""


@contextmanager
def step(report: Report, doing: str, done: str) -> Iterator[None]:
    """Report that a step begins, and its end with its seconds; an error that the block raises reports no end."""
    report(Event("begin", doing))
    begun = time.monotonic()
    yield
    seconds = time.monotonic() - begun
    report(Event("step", f"{done} ({seconds:.1f} s)", {"seconds": round(seconds, 3)}))
