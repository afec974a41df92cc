"""How many lanes a run keeps: more while a leg spends its time on plans that are large enough to be cut, fewer when no leg does.

What enters is the time, and the seconds that each leg has spent on such plans; what leaves is a number. Nothing is read or done here.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """When the number of lanes changes.

    Lanes are added when a leg has spent `busy_share` of `busy_seconds` on large plans, and half of them are taken away when no leg has
    spent more than `quiet_share` of `quiet_seconds` on such. With half of the lanes a plan takes less than twice as long, so what is taken
    away is not needed again at the same load as long as `quiet_share` is less than half of `busy_share`.
    """

    busy_share: float = 0.6
    busy_seconds: float = 5.0
    quiet_share: float = 0.1
    quiet_seconds: float = 180.0


LIMITS = Limits()


@dataclass(frozen=True)
class Mark:
    """The beginning of a span: the time, and what each leg had spent on large plans by then, in seconds."""

    at: float
    spent: Mapping[str, float]

    def share(self, now: "Mark") -> float:
        """Return the share of the time since then of the leg with the largest one; a leg that began anew has spent nothing."""
        spent = (seconds - self.spent.get(leg, seconds) for leg, seconds in now.spent.items())
        return max([0.0, *spent]) / (now.at - self.at)


@dataclass(frozen=True)
class Scaling:
    """The number of lanes beside the legs, and the spans that are being watched: one for growing, one for shrinking."""

    lanes: int = 0
    busy: Mark | None = None
    quiet: Mark | None = None

    def next(self, now: Mark, working: int, most: int, limits: Limits = LIMITS) -> "Scaling":
        """Return what follows at a time: twice as many processes, the legs' own counted as one, half as many lanes, `most`, or the same.

        `working`: the lanes that have a process. While one lacks, none is added: there is no slot, or the lane is about to begin.
        """
        if self.lanes > most:
            return Scaling(most, now, now)
        busy = now if self.busy is None or working < self.lanes else self.busy
        quiet = self.quiet or now
        if now.at - busy.at >= limits.busy_seconds:
            if busy.share(now) >= limits.busy_share and self.lanes < most:
                return Scaling(min(most, 2 * self.lanes + 1), now, now)
            busy = now
        if now.at - quiet.at >= limits.quiet_seconds:
            if quiet.share(now) <= limits.quiet_share and self.lanes:
                return Scaling(self.lanes // 2, now, now)
            quiet = now
        return Scaling(self.lanes, busy, quiet)
