"""The `alerts` of the pipeline file: when to send an alert, and how often a dead runner is restarted before that.

They do not affect records: the config version does not depend on them, and a change needs no restart of a running pipeline.
"""

from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, Field

from pipelines.config.base import Duration, Faults, Model, Positive, Window, no_flag, ours


class LagAlert(Model):
    """When to alert about a pipeline that falls behind its topic."""

    offsets: Positive = ours(100_000, "Alert when ingest has not confirmed this many offsets or more.")
    lasting: Duration = ours(
        timedelta(minutes=2), "Alert only if the lag has lasted this long and is not shrinking; 0s alerts at once.", alias="for"
    )


class DeadLettersAlert(Model):
    """When to alert about waiting dead letters."""

    count: Positive = ours(100, "Alert when this many dead letters wait, however young they are.")
    age: Window = ours(timedelta(hours=1), "Alert when a dead letter has waited this long, even if it is the only one.")


class Alerts(Model):
    """When Dagster's sensors act on a pipeline and send alerts."""

    lag: LagAlert = ours(LagAlert(), "Alert when the pipeline falls behind its topic.")
    dead_letters: DeadLettersAlert = ours(DeadLettersAlert(), "Alert when dead letters wait.")
    stuck_after: Window = ours(
        timedelta(minutes=10),
        "A leg with work that completes no batch for this long is stuck: its runner is replaced. The sink gets `sink.max_delay_time` more.",
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000), BeforeValidator(no_flag)] = ours(
        5, "How often a runner that died or is stuck is restarted before an alert; 0 alerts at once."
    )
    repeat_after: Window = ours(
        timedelta(hours=1),
        "A lasting lag is alerted again after this long; new dead letters are alerted this long after the last alert at the earliest.",
    )

    def faults(self) -> Faults:
        if self.stuck_after < timedelta(minutes=1):
            yield ("stuck_after",), "must be at least 1m"
