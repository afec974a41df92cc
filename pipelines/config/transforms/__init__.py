"""The `transforms` and the `join` of the pipeline file. `rules` checks their fields and expressions."""

import pkgutil
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pipelines.config.base import Duration, Faults, FieldPath, Key, Location, Model, Text, Window, ours, repeated, theirs
from pipelines.config.transform_model import SOURCE_ID, TransformConfig, TransformModel


class DedupConfig(TransformConfig):
    """Which records are duplicates."""

    key: Key = theirs(..., "Field or fields that make two records the same; several are Tallyflow's. A null in one rejects the record.")
    time_window: Window = theirs(..., "A record with a key seen less than this long ago is a duplicate.")
    time: Literal["arrival", "event"] = ours("arrival", "Time that the window is measured on: arrival in the pipeline, or `time_field`.")
    time_field: FieldPath | None = ours(None, "Field with the event's own time; needed with `time: event`.")
    allowed_lateness: Duration = ours(
        timedelta(0),
        "With `time: event`: how far a record may be behind the newest record before it in its partition; a later one is rejected.",
    )
    max_ahead: Duration = ours(
        timedelta(hours=1),
        "With `time: event`: how far a record's time may be ahead of its arrival; one further ahead is rejected, and makes no other late.",
    )
    keep_duplicates: bool = ours(
        False,
        "Write dropped copies, as the rows they would have become, to the stream `tf-<pipeline>-duplicates`. Copies are always counted; "
        "one that a step behind dedup would drop has no row and is not written.",
    )

    def faults(self) -> Faults:
        if self.time == "event" and self.time_field is None:
            yield ("time_field",), "is required with 'time: event'"
        if self.time == "arrival" and self.time_field is not None:
            yield ("time_field",), "is only for 'time: event'"
        if self.time == "arrival" and self.allowed_lateness:
            yield ("allowed_lateness",), "is only for 'time: event'"
        if self.time == "arrival" and "max_ahead" in self.model_fields_set:
            yield ("max_ahead",), "is only for 'time: event'"

    def fields_read(self) -> Iterable[tuple[Location, Sequence[str]]]:
        yield ("key",), self.key
        if self.time_field:
            yield ("time_field",), [self.time_field]


class DedupTransform(TransformModel):
    """Drops records whose key was seen within the window; the first one stays."""

    is_of_glassflow = True

    type: Literal["dedup"] = theirs(..., "Kind of transform.")
    source_id: Text | None = theirs(None, SOURCE_ID)
    config: DedupConfig = theirs(..., "Which records are duplicates.")


if TYPE_CHECKING:
    from pipelines.config.transforms.compute import ComputeTransform
    from pipelines.config.transforms.filter import FilterTransform
    from pipelines.config.transforms.stateless import StatelessTransform

    Transform = DedupTransform | FilterTransform | ComputeTransform | StatelessTransform
else:
    # Dedup, and that of each module of this package.
    _own = [import_module(f"{__name__}.{module.name}").TRANSFORM for module in pkgutil.iter_modules(__path__)]
    Transform = Annotated[reduce(or_, [DedupTransform, *_own]), Field(discriminator="type")]


class JoinSide(Model):
    """One side of the join."""

    source_id: Text = theirs(..., "The source of this side.")
    key: Key = theirs(..., "Field or fields to join on, in the same order on both sides; several are Tallyflow's.")
    time_window: Window = theirs(..., "How long a record of this side waits for the other.")
    time_field: FieldPath | None = ours(None, "Field with the record's own time; needed on both sides with `time: event`.")


class JoinOutput(Model):
    """One field of the joined record."""

    source_id: Text = theirs(..., "The source the field comes from.")
    name: FieldPath = theirs(..., "Field of that source.")
    output_name: FieldPath | None = theirs(None, "Name in the joined record. Default: `name`.")

    @property
    def joined_name(self) -> str:
        return self.output_name or self.name


class Join(Model):
    """Joins two sources on a key within a time window."""

    enabled: bool = theirs(False, "False disables the join.")
    type: Literal["temporal"] = theirs("temporal", "Kind of join.")
    left_source: JoinSide | None = theirs(None, "Left side: each of its records is emitted at most once. Needed when enabled.")
    right_source: JoinSide | None = theirs(None, "Right side: the newest record per key within its window. Needed when enabled.")
    output_fields: tuple[JoinOutput, ...] = theirs((), "Fields of the joined record. Needed when enabled.")
    unmatched: Literal["drop", "emit", "dead_letter"] = ours(
        "drop", "What to do with a left record that has no match: count and drop it, emit it with nulls, or make it a dead letter."
    )
    time: Literal["arrival", "event"] = ours(
        "arrival", "Time by which records meet: arrival in the pipeline, or the `time_field` of each side, in whatever order they arrive."
    )
    allowed_lateness: Duration = ours(
        timedelta(0),
        "With `time: event`: how far the watermark stays behind the newest record of the partition that is furthest behind; a record older "
        "than the watermark is rejected.",
    )
    max_ahead: Duration = ours(
        timedelta(hours=1),
        "With `time: event`: how far a record's time may be ahead of its arrival; one further ahead is rejected, and makes no other late.",
    )
    idle_after: Window = ours(
        timedelta(seconds=30),
        "With `time: event`: a partition without a new record for so long no longer holds back the watermark, until its next record.",
    )

    def faults(self) -> Faults:
        yield from self._faults_of_time()
        if self.enabled:
            for name in ("left_source", "right_source", "output_fields"):
                if not getattr(self, name):
                    yield (name,), "is required when the join is enabled"
        if self.left_source and self.right_source:
            if self.left_source.source_id == self.right_source.source_id:
                yield ("right_source", "source_id"), "must be another source than the left one"
            if len(self.left_source.key) != len(self.right_source.key):
                yield ("right_source", "key"), "must have as many fields as the left one"
        for index, name in repeated(field.joined_name for field in self.output_fields):
            yield ("output_fields", index), f"the name {name!r} is given twice: set output_name"

    def _faults_of_time(self) -> Faults:
        for name in ("left_source", "right_source"):
            side = getattr(self, name)
            if side is not None and (self.time == "event") != (side.time_field is not None):
                yield (name, "time_field"), "is required with 'time: event'" if self.time == "event" else "is only for 'time: event'"
        for name in ("allowed_lateness", "max_ahead", "idle_after"):
            if self.time == "arrival" and name in self.model_fields_set:
                yield (name,), "is only for 'time: event'"
