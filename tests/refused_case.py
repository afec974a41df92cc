"""Cases with a table that refuses some rows."""

import re

from pipeline_case import PipelineCase

BAD = [7, 107, 207, 307]


def make_strict(case: PipelineCase) -> None:
    """Makes the pipeline's table, and then a constraint on it that refuses the events of BAD."""
    case.create_topic()
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT seven CHECK id % 100 != 7")


def mend(case: PipelineCase) -> None:
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT seven")


def refused(case: PipelineCase) -> list[int]:
    """Numbers of the events that are dead letters of the sink."""
    letters = [letter for letter in case.letters() if letter["stage"] == "sink"]
    assert {letter["code"] for letter in letters} <= {"refused"}
    return sorted(int(re.findall(rb'"id": (\d+)', letter["value"])[0]) for letter in letters)
