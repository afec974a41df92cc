"""Named places at which a test kills the runner: `TALLYFLOW_FAILPOINT=name:nth`, or `name:nth:worker` for the reaching process alone.

`name:nth:worker:path` kills one process only, the first to arrive: it makes the file at `path` at that moment. Without a path, each worker
that replaces a killed one counts anew and may be killed, too.

The protocol must hold for a kill at any instruction; these names only make the interesting instants reachable on purpose.
"""

import os
import signal
from itertools import count
from pathlib import Path

VARIABLE = "TALLYFLOW_FAILPOINT"
RUNNER_PID_VARIABLE = "TALLYFLOW_RUNNER_PID"

_visits = count(1)
"""Visits of the one armed point; `next` is atomic, and buckets are processed in parallel."""


def reach(name: str) -> None:
    """SIGKILL the runner (or this worker) at the nth visit of the armed point in this process; do nothing at any other point."""
    armed = os.environ.get(VARIABLE)
    if not armed:
        return
    wanted, nth, *target = armed.split(":", 3)
    if wanted != name:
        return
    if next(_visits) == int(nth):
        if not target:
            os.kill(int(os.environ[RUNNER_PID_VARIABLE]), signal.SIGKILL)
        if len(target) < 2 or _is_first(Path(target[1])):
            os.kill(os.getpid(), signal.SIGKILL)


def _is_first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
