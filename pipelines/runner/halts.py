"""Notes of halts, so that nobody restarts legs that have halted, or could not start, for a reason that does not pass."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from filelock import Timeout

from pipelines.config import run_digest
from pipelines.control.control import note_halt
from pipelines.errors import ConfigurationError, FencedError, HaltError, ProcessLostError, TallyflowError
from pipelines.protocol.lease import leg_lock
from pipelines.protocol.topology import LegId

if TYPE_CHECKING:
    from pipelines.runner.runner import Runner


@contextmanager
def halts_noted(runner: "Runner") -> Iterator[None]:
    """Note the legs of a runner that halt in the block, under the digest of its pipeline file then; raise what the block raises."""
    try:
        yield
    except (FencedError, ProcessLostError):
        raise
    except (HaltError, ConfigurationError) as error:
        halted: dict[LegId, TallyflowError] = {name: leg.failure for name, leg in runner.legs.items() if leg.failure is not None}
        at = datetime.now(UTC)
        for name, failure in (halted or dict.fromkeys(runner.options.legs, error)).items():
            if not isinstance(failure, FencedError):
                _note(runner, name, str(failure), at)
        raise


def _note(runner: "Runner", leg: LegId, message: str, at: datetime) -> None:
    """Write the note of a halt, only under the leg's lock, so that it never outlives a later runner of the leg.

    A pipeline that never ran here has no directory, and a refused start creates none: nobody would restart that pipeline.
    """
    digest = run_digest(runner.text)
    if leg in runner.leases:
        note_halt(runner.directory, leg, message, digest, at)
        return
    if not runner.directory.is_dir():
        return
    with suppress(Timeout), leg_lock(runner.directory, leg).acquire(timeout=0):
        note_halt(runner.directory, leg, message, digest, at)
