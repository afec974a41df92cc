"""The work on a plan of the process leg, and its result."""

from dataclasses import dataclass, field

from pipelines.process.arrivals import FRAMES_PER_STEP
from pipelines.protocol.bodies import NOTHING, ClockReset, Lookups, Poison, Waiting, Watermarks
from pipelines.protocol.codec import Count, Flag, Form, Long, Text, Version
from pipelines.protocol.ledger import Totals
from pipelines.protocol.run_lists import Lists

SubjectTail = tuple[Count, Text]
"""The end of a subject: its last sequence, and the last position that its frames cover; empty if there is none."""


@dataclass(frozen=True)
class Admission(Form):
    """What `on_error` says of dead letters when the leg begins the work: whether any stops it, and the share of the rejection limit."""

    halts: Flag
    percent: Count


@dataclass(frozen=True, kw_only=True)
class ProcessItem(Form):
    """A plan of the process leg: raw frames from `start` (exclusive) to `to`, under the configuration of a version.

    As of the last `done`: `clock_us`, `clock_resets`, `watermarks`, the live `runs` by bucket, and the known `tails` of subjects. `poison`:
    records that are not tried. `lookups`, `times`: as in the plan. `step_frames`: the most frames that pass through the stages together.
    `oldest`: the first raw sequence of which a join may still write a row. `admission`: by it every process admits the dead letters.
    """

    start: Count
    to: Count
    config: Version
    admission: Admission
    clock_us: Long = 0
    clock_resets: tuple[ClockReset, ...] = ()
    watermarks: Watermarks = NOTHING
    tails: dict[Text, SubjectTail] = field(default_factory=dict)
    runs: Lists = field(default_factory=dict)
    poison: tuple[Poison, ...] = ()
    lookups: Lookups = field(default_factory=dict)
    times: tuple[tuple[Count, Long, Long, Count], ...] = ()
    step_frames: Count = FRAMES_PER_STEP
    oldest: Count = 0


@dataclass(frozen=True)
class ProcessReport:
    """The result of a plan: counts of the stages, ends of subjects, segments for the next `done`, and watermarks.

    The watermarks follow the plan, and are given if windows are measured on a field. `waiting`: the oldest left record that a join has
    stored, if there is one.
    """

    counts: Totals = field(default_factory=dict)
    tails: dict[str, SubjectTail] = field(default_factory=dict)
    runs: Lists = field(default_factory=dict)
    watermarks: Watermarks | None = None
    waiting: Waiting | None = None
