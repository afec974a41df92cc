"""How a plan is shared among the processes of a run: by how fast each has been, so that all end at about the same time.

What enters are the sizes of parts and the seconds that they took; what leaves are weights. Nothing is read or done here.
"""

from collections.abc import Mapping, Sequence

OWN_SHARES = 2
"""The leg's own part of a plan has so many shares at first, a lane's has one: a lane works for ingest and for process."""
MOST_TIMES = 4.0
"""No weight is so many times larger, or smaller, than the first one: who has no part would never be measured again."""
SMOOTHING = 0.5
"""The part of a difference that one plan changes."""
NOISE = 0.1
"""With a smaller difference the weights stay, and so places of keys stay where their copies are."""
LEAST_SECONDS = 0.05
"""A shorter part says nothing about a process."""


class Balance:
    """The weights of processes by kind of work; process 0 is the leg's own, the others are lanes."""

    def __init__(self) -> None:
        self._weights: dict[tuple[str, int], float] = {}
        self._found: dict[tuple[str, int], float] = {}
        """The weights by all that was noted; those that plans are cut by follow when one differs by more than NOISE."""

    def weights(self, work: str, processes: Sequence[int]) -> tuple[float, ...]:
        """Return the weight of each process, in their order: the size of its part in relation to the others'."""
        return tuple(self._weights.get((work, process), _first(process)) for process in processes)

    def note(self, work: str, took: Mapping[int, tuple[int, float]]) -> None:
        """Note what processes did side by side: (size, seconds) by process."""
        speeds = {process: size / seconds for process, (size, seconds) in took.items() if size > 0 and seconds >= LEAST_SECONDS}
        if len(speeds) < 2:
            return
        scale = sum(map(_first, speeds)) / sum(speeds.values())
        for process, speed in speeds.items():
            first, before = _first(process), self._found.get((work, process), _first(process))
            found = min(max(scale * speed, first / MOST_TIMES), first * MOST_TIMES)
            self._found[work, process] = before + SMOOTHING * (found - before)
        found_now = {(work, process): self._found[work, process] for process in speeds}
        if any(abs(found / self._weights.get(key, _first(key[1])) - 1) > NOISE for key, found in found_now.items()):
            self._weights |= found_now


def _first(process: int) -> float:
    return 1.0 if process else float(OWN_SHARES)
