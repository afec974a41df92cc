"""An open plan of ingest of which a partition has lost its leader: it is narrowed to what stands on raw, so that the others go on.

Decided by amending the plan, before anything follows from it. `to` of such a partition then ends behind its last frame on raw, wherever
the plan's attempts have come; the partition is one of `standing`: what the plan has of it is counted and not read again. An attempt at
the plan (a task, a publish on its way, a runner that was overtaken) may still write up to where the plan ended before. That end is the
partition's `rest`, kept in every `done` until it is covered: the next plan of the partition reaches at least as far, so no frame ever
goes beyond the plan that counts it.
"""

from collections.abc import Mapping
from typing import Any

Offsets = dict[str, int]
Body = Mapping[str, Any]


def narrowing(plan: Body, reached: Mapping[str, int]) -> dict[str, Any]:
    """What the plan says anew when no more can be read of the partitions in `reached`, whose frames on raw end before these offsets."""
    begin, to = plan["from"], plan["to"]
    ends = {p: min(max(offset, begin[p]), to[p]) for p, offset in reached.items()}
    rest = {p: to[p] for p, end in ends.items() if end < to[p]}
    return {"to": {**to, **ends}, "rest": {**plan.get("rest", {}), **rest}, "standing": [*plan.get("standing", []), *sorted(ends)]}


def rest_behind(done: Body, plan: Body) -> Offsets:
    """What narrowed plans have left, once `plan` is done behind `done`: by partition where the narrowed plan had ended."""
    rest = {**done.get("rest", {}), **plan.get("rest", {})}
    return {p: end for p, end in rest.items() if plan["to"].get(p, 0) < end}


def rest_to_plan(done: Body, start: Offsets, end: Offsets) -> Offsets:
    """The end of a plan for one partition's rest, where `end` goes on with such a partition; else nothing.

    One at a time, so that no plan is larger than the one which was narrowed.
    """
    for partition, until in done.get("rest", {}).items():
        if end.get(partition, 0) > start[partition]:
            return {**start, partition: until}
    return {}
