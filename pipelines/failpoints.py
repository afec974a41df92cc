"""Named places at which a test kills the runner: `TALLYFLOW_FAILPOINT=name:nth`, or `name:nth:worker` for the reaching process alone.

The protocol must hold for a kill at any instruction; these names only make the interesting instants reachable on purpose.
"""

import os
import signal
from collections import Counter

VARIABLE = "TALLYFLOW_FAILPOINT"
RUNNER_PID_VARIABLE = "TALLYFLOW_RUNNER_PID"

NAMES = (
    "ingest.after-poll",
    "ingest.between-frames",
    "ingest.after-publish",
    "process.between-frames",
    "process.after-publish",
    "sink.before-insert",
    "sink.after-insert",
    "leg.after-plan",
    "leg.before-commit",
)

_reached: Counter[str] = Counter()


def reach(name: str) -> None:
    """Does nothing unless this point is armed; at its nth visit in this process, SIGKILLs the runner (or this worker)."""
    armed = os.environ.get(VARIABLE)
    if not armed:
        return
    wanted, nth, *target = armed.split(":")
    if wanted != name:
        return
    _reached[name] += 1
    if _reached[name] == int(nth):
        if not target:
            os.kill(int(os.environ[RUNNER_PID_VARIABLE]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
