"""Which watermark each record has by event time, told record after record from the whole of what came before it."""

from collections.abc import Sequence

Frames = Sequence[tuple[int | None, Sequence[int]]]
"""Raw frames in order: the Kafka partition, None where records entered again, and the times of the records."""


def marks(frames: Frames, window: int, idle_records: int) -> list[list[int | None]]:
    """Per frame and record; without the lateness, None where nothing came before."""
    found: list[list[int | None]] = []
    combined: int | None = None
    for number, (partition, times) in enumerate(frames):
        combined = _newer(combined, _combined(frames[:number], window, idle_records))
        of_partition = [time for other, earlier in frames[:number] for time in earlier if other == partition and other is not None]
        marks_of_frame: list[int | None] = []
        for place in range(len(times)):
            before = [*of_partition, *times[:place]] if partition is not None else []
            marks_of_frame.append(_newer(combined, max(before, default=None)))
        found.append(marks_of_frame)
    return found


def _combined(frames: Frames, window: int, idle_records: int) -> int | None:
    """By all frames so far; that it never steps back is the caller's."""
    ordinary = [(partition, times) for partition, times in frames if partition is not None]
    if not any(times for _, times in ordinary):
        return None
    limits = [max(time for _, times in ordinary for time in times) - window]
    for partition in {partition for partition, _ in ordinary}:
        own = [number for number, (other, times) in enumerate(ordinary) if other == partition and times]
        first = next(number for number, (other, _) in enumerate(ordinary) if other == partition)
        since = sum(len(times) for _, times in ordinary[(own[-1] if own else first) + 1 :])
        if since <= idle_records:
            if not own:
                return None
            limits.append(max(time for number in own for time in ordinary[number][1]))
    return min(limits)


def _newer(one: int | None, other: int | None) -> int | None:
    known = [time for time in (one, other) if time is not None]
    return max(known, default=None)
