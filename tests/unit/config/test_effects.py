"""When a change of each field of the pipeline file takes effect: every field has a decision, and a restart is the default."""

from pathlib import Path

import pytest

from pipelines.config.base import Effect, Model, effect_of_field, models_in, ours
from pipelines.config.effects import effect_at, effects, shown
from pipelines.config.faults import hidden_names
from pipelines.config.pipeline import PipelineConfig

RELOADED = {
    "tables.*.refresh",
    "tables.*.min_rows",
    "tables.*.max_rows",
    "tables.*.max_bytes",
    "tables.*.max_age",
    "tables.*.timeout",
    "sink.max_batch_size",
    "sink.max_delay_time",
    "sinks[].max_batch_size",
    "sinks[].max_delay_time",
    "resources.nats.stream.max_age",
    "lanes",
    "on_error.rejected",
    "on_error.max_rejected_percent",
    "dead_letters.max_attempts",
    "dead_letters.max_age",
}
"""All fields that a running pipeline takes up. One more must decide nothing about a row, its identity, a plan or a proof."""
DECIDED = Path(__file__).with_name("fields_by_effect.txt")
"""Every field with its effect, a line each: a new field needs a line, and so a decision."""


def test_these_fields_and_no_others_are_reloaded() -> None:
    assert {shown(place) for place, effect in effects().items() if effect == Effect.RELOAD} == RELOADED


def test_every_field_has_a_decision() -> None:
    decided = {place: effect for effect, place in map(str.split, DECIDED.read_text().splitlines())}
    assert {shown(place): effect.name.lower() for place, effect in effects().items()} == decided


def test_a_field_without_a_mark_needs_a_restart() -> None:
    class New(Model):
        """An object."""

        size: int = ours(1, "A size.")

    assert effect_of_field(New.model_fields["size"]) == Effect.RESTART
    assert effect_at("a_field_of_a_later_release") == Effect.RESTART


def test_no_reloaded_field_is_hidden_or_one_of_a_connection() -> None:
    assert not {name.rpartition(".")[2] for name in RELOADED} & hidden_names()
    assert not any("connection_params" in name or name.startswith("nats.") for name in RELOADED)


def test_what_is_reloaded_are_single_values() -> None:
    models, seen = [PipelineConfig], set()
    while models:
        model = models.pop()
        seen.add(model)
        for field in model.model_fields.values():
            inner = models_in(field.annotation)
            assert not inner or effect_of_field(field) != Effect.RELOAD
            models += [one for one in inner if one not in seen]


@pytest.mark.parametrize(
    ("path", "effect"),
    {
        "sinks[a].max_batch_size": Effect.RELOAD,
        "tables.cities.refresh": Effect.RELOAD,
        "tables.cities": Effect.RESTART,
        "sinks": Effect.RESTART,
        "checks.views.totals": Effect.AT_ONCE,
        "checks.views.totals[0].table": Effect.AT_ONCE,
        "alerts": Effect.AT_ONCE,
        "on_error": Effect.RESTART,
        "sources[refresh].topic": Effect.RESTART,
    }.items(),
)
def test_the_slowest_field_at_a_path_counts(path: str, effect: Effect) -> None:
    assert effect_at(path) == effect
