"""An open plan of ingest of which a partition has lost its leader: it is narrowed to what stands on raw, so that the others go on.

Decided by amending the plan, before anything follows from it. `to` of such a partition then ends behind its last frame on raw, wherever
the plan's attempts have come; the partition is one of `standing`: what the plan has of it is counted and not read again. An attempt at
the plan (a task, a publish on its way, a runner that was overtaken) may still write up to where the plan ended before. That end is the
partition's `rest`, kept in every `done` until it is covered: the next plan of the partition reaches at least as far, so no frame ever
goes beyond the plan that counts it.
"""

from collections.abc import Mapping
from dataclasses import replace

from pipelines.protocol.bodies import IngestDone, IngestPlan, Offsets


def narrowed(plan: IngestPlan, reached: Mapping[str, int]) -> IngestPlan:
    """The plan when no more can be read of the partitions in `reached`, whose frames on raw end before these offsets."""
    begin, to = plan.start, plan.to
    ends = {p: min(max(offset, begin[p]), to[p]) for p, offset in reached.items()}
    rest = {p: to[p] for p, end in ends.items() if end < to[p]}
    return replace(plan, to={**to, **ends}, rest={**plan.rest, **rest}, standing=(*plan.standing, *sorted(ends)))


def rest_behind(done: IngestDone, plan: IngestPlan) -> Offsets:
    """What narrowed plans have left, once `plan` is done behind `done`: by partition where the narrowed plan had ended."""
    rest = {**done.rest, **plan.rest}
    return {p: end for p, end in rest.items() if plan.to.get(p, 0) < end}


def rest_to_plan(done: IngestDone, start: Offsets, end: Offsets) -> Offsets:
    """The end of a plan for one partition's rest, where `end` goes on with such a partition; else nothing.

    One at a time, so that no plan is larger than the one which was narrowed.
    """
    for partition, until in done.rest.items():
        if end.get(partition, 0) > start[partition]:
            return {**start, partition: until}
    return {}
