"""The `alerts` of the pipeline file: from when on people are called, and how often what has died is started again before.

They decide nothing about a record: the config version does not depend on them, and a running pipeline needs no restart for them.
"""

from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, Field

from pipelines.config.base import Duration, Faults, Model, Positive, Window, no_flag, ours


class LagAlert(Model):
    """When people are called for a pipeline that falls behind its topic."""

    offsets: Positive = ours(100_000, "Offsets that ingest has not confirmed: so many, and more, are too many.")
    lasting: Duration = ours(
        timedelta(minutes=2), "People are called once it has been so for so long, and is not catching up; 0s at once.", alias="for"
    )


class DeadLettersAlert(Model):
    """When people are called for dead letters that wait."""

    count: Positive = ours(100, "So many letters are worth a call however young they are.")
    age: Window = ours(timedelta(hours=1), "A letter that has waited for so long is worth a call, even if it is the only one.")


class Alerts(Model):
    """When the sensors of Dagster act on a pipeline and call people for it."""

    lag: LagAlert = ours(LagAlert(), "The pipeline falls behind its topic.")
    dead_letters: DeadLettersAlert = ours(DeadLettersAlert(), "Dead letters wait.")
    stuck_after: Window = ours(
        timedelta(minutes=10),
        "A leg that has work and ends no batch for so long is stuck: its runner is replaced. The sink has `sink.max_delay_time` more.",
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000), BeforeValidator(no_flag)] = ours(
        5, "How often a runner that died, or does not work, is started again before people are called; 0 calls them at once."
    )
    repeat_after: Window = ours(
        timedelta(hours=1),
        "A lag that lasts is told again after so long; new dead letters are told not sooner than that after the last call.",
    )

    def faults(self) -> Faults:
        if self.stuck_after < timedelta(minutes=1):
            yield ("stuck_after",), "must be at least 1m"
