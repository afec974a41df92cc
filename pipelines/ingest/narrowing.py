"""Narrowing of an open plan of ingest: if a partition has lost its leader, its part ends with its frames on raw, so the others continue.

It is decided by amending the plan, before it has any effect. `to` of such a partition then ends after its last frame on raw, however far
the plan's attempts have come. The partition becomes one of `standing`: its part of the plan is counted and not read again. An attempt at
the plan (a task, a publish on its way, a runner that was fenced) may still write up to the plan's earlier end. This end is the partition's
`rest`, kept in every `done` until it is covered: the next plan of the partition reaches at least as far, so no frame ever extends beyond
the plan that counts it.
"""

from collections.abc import Mapping
from dataclasses import replace

from pipelines.protocol.bodies import IngestDone, IngestPlan, Offsets


def narrowed(plan: IngestPlan, reached: Mapping[str, int]) -> IngestPlan:
    """Return the plan if nothing more can be read of the partitions in `reached`, whose frames on raw end before these offsets."""
    begin, to = plan.start, plan.to
    ends = {p: min(max(offset, begin[p]), to[p]) for p, offset in reached.items()}
    rest = {p: to[p] for p, end in ends.items() if end < to[p]}
    return replace(plan, to={**to, **ends}, rest={**plan.rest, **rest}, standing=(*plan.standing, *sorted(ends)))


def rest_behind(done: IngestDone, plan: IngestPlan) -> Offsets:
    """Return the earlier ends of narrowed plans, by partition, once `plan` is done after `done`."""
    rest = {**done.rest, **plan.rest}
    return {p: end for p, end in rest.items() if plan.to.get(p, 0) < end}


def rest_to_plan(done: IngestDone, start: Offsets, end: Offsets) -> Offsets:
    """Return the end of a plan for one partition's rest, if `end` includes such a partition; else nothing.

    One partition at a time, so that no plan is larger than the narrowed one.
    """
    for partition, until in done.rest.items():
        if end.get(partition, 0) > start[partition]:
            return {**start, partition: until}
    return {}
