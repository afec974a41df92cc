"""A look at the running pipeline every second, from a thread beside the legs: announces waits, and keeps the figures for a live line."""

import time
from typing import TYPE_CHECKING, Any

from pipelines.runner.events import Report
from pipelines.runner.rounds import Rounds
from pipelines.runner.status import snapshot
from pipelines.runner.waits import Waits

if TYPE_CHECKING:
    from pipelines.runner.runner import Runner

LOOK_EVERY_SECONDS = 1.0


class Watch(Rounds):
    """The thread. `now` and `waits` may be read by any thread."""

    def __init__(self, runner: "Runner", report: Report) -> None:
        self.now: dict[str, Any] | None = None
        """The last snapshot of the runner (`status.snapshot`); None before the first."""
        self.waits = Waits()
        self._runner, self._report = runner, report
        super().__init__("watch", LOOK_EVERY_SECONDS, self.look)

    def look(self) -> None:
        """Take a snapshot; report each server that has gone, or works again."""
        now = snapshot(self._runner)
        waiting = {leg: facts["message"] for leg, facts in now["legs"].items() if facts["state"] == "waiting"}
        for event in self.waits.look(time.monotonic(), waiting):
            self._report(event)
        self.now = now
