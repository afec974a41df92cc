"""Whether schedules and sensors run as soon as they are there: in `tallyflow dagster` yes, in a deployment when somebody says so."""

import os

import dagster as dg

VARIABLE = "TALLYFLOW_SCHEDULES"


def schedule_status() -> dg.DefaultScheduleStatus:
    return dg.DefaultScheduleStatus.RUNNING if is_running() else dg.DefaultScheduleStatus.STOPPED


def is_running() -> bool:
    return os.environ.get(VARIABLE) == "running"
