"""Settings: what a running pipeline takes up of a file, and that it is nothing that decides what becomes of a record."""

import json
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.config import PipelineConfig, load, shape_of
from pipelines.config.base import Effect
from pipelines.config.differences import differences
from pipelines.config.effects import effects, shown
from pipelines.config.settings import settings_digest, settings_of, with_settings
from pipelines.preview.declared import declared_program

Document = dict[str, Any]
PLACE = {"brokers": ["kafka:9092"]}
HOUSE = {"host": "clickhouse", "port": 8123, "password": "hidden"}
MAPPING = [
    {"name": "id", "column_name": "id", "column_type": "Int64"},
    {"name": "name", "column_name": "name", "column_type": "Nullable(String)"},
]
DOCUMENT: Document = {
    "version": "v3",
    "pipeline_id": "orders",
    "buckets": 8,
    "lanes": 4,
    "sources": [
        {
            "type": "kafka",
            "topic": "orders",
            "connection_params": PLACE,
            "schema_fields": [{"name": "id", "type": "int"}, {"name": "code", "type": "string"}],
        }
    ],
    "tables": {
        "countries": {"type": "csv", "uri": "countries.csv", "key": "code", "refresh": "10s"},
        "cities": {"type": "clickhouse", "query": "SELECT 1 AS code", "key": "code"},
    },
    "transforms": [{"type": "lookup", "config": {"table": "countries", "key": "code", "fields": [{"name": "name"}]}}],
    "sinks": [
        {"id": "clicks", "type": "clickhouse", "connection_params": HOUSE, "table": "clicks", "mapping": MAPPING, "when": "id > 5"},
        {"id": "others", "type": "clickhouse", "connection_params": HOUSE, "table": "others", "mapping": MAPPING, "default": True},
    ],
}
CHANGES: dict[str, Callable[[Document], object]] = {
    "tables.*.refresh": lambda d: d["tables"]["countries"].update(refresh="1m"),
    "tables.*.min_rows": lambda d: d["tables"]["countries"].update(min_rows=7),
    "tables.*.max_rows": lambda d: d["tables"]["cities"].update(max_rows=7),
    "tables.*.max_bytes": lambda d: d["tables"]["cities"].update(max_bytes="1MiB"),
    "tables.*.max_age": lambda d: d["tables"]["countries"].update(max_age="1h"),
    "tables.*.timeout": lambda d: d["tables"]["cities"].update(timeout="3s"),
    "sinks[].max_batch_size": lambda d: d["sinks"][1].update(max_batch_size=7),
    "sinks[].max_delay_time": lambda d: d["sinks"][0].update(max_delay_time="1500ms"),
    "resources.nats.stream.max_age": lambda d: d.update(resources={"nats": {"stream": {"maxAge": "48h"}}}),
    "lanes": lambda d: d.update(lanes=2),
    "on_error.rejected": lambda d: d.update(on_error="halt"),
    "on_error.max_rejected_percent": lambda d: d.update(on_error={"max_rejected_percent": 3}),
    "dead_letters.max_attempts": lambda d: d.update(dead_letters={"max_attempts": 2}),
    "dead_letters.max_age": lambda d: d.update(dead_letters={"max_age": "7d"}),
}


def of_one_sink(document: Document) -> None:
    """Name the only sink as most files do."""
    document["sink"] = {name: value for name, value in document.pop("sinks")[1].items() if name not in ("id", "default")}


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., PipelineConfig]:
    def made(*changes: Callable[[Document], object]) -> PipelineConfig:
        document = deepcopy(DOCUMENT)
        for change in changes:
            change(document)
        path = tmp_path / "pipeline.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return load(path, {})

    return made


def test_there_is_a_change_of_every_setting() -> None:
    reloaded = {shown(place) for place, effect in effects().items() if effect == Effect.RELOAD}
    assert {*CHANGES} == {name for name in reloaded if not name.startswith("sink.")}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_setting_decides_nothing_about_a_record(loaded: Callable[..., PipelineConfig], change: Callable[[Document], object]) -> None:
    before, after = loaded(), loaded(change)
    assert declared_program(before).version == declared_program(after).version
    assert shape_of(before) == shape_of(after)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_settings_make_one_file_of_the_other(loaded: Callable[..., PipelineConfig], change: Callable[[Document], object]) -> None:
    before, after = loaded(), loaded(change)
    (one,) = differences(before, after)
    assert one.effect == Effect.RELOAD
    made = with_settings(before, settings_of(after))
    assert not [*differences(made, after)]
    assert settings_of(made) == settings_of(after) != settings_of(before)


def test_nothing_but_settings_is_taken(loaded: Callable[..., PipelineConfig]) -> None:
    def edit(document: Document) -> None:
        document["sinks"][0].update(table="elsewhere", max_batch_size=7)
        document.update(name="another", alerts={"max_restarts": 1})

    before = loaded()
    made = with_settings(before, settings_of(loaded(edit)))
    assert [(one.path, one.after) for one in differences(before, made)] == [("sinks[clicks].max_batch_size", 7)]


def test_what_was_found_at_the_load_stays(loaded: Callable[..., PipelineConfig], tmp_path: Path) -> None:
    seen = loaded().seen_from(loaded().topology.tables[1])
    made = with_settings(seen, settings_of(loaded(CHANGES["tables.*.refresh"], CHANGES["sinks[].max_batch_size"])))
    countries: Any = made.tables["countries"]
    assert (countries.place, countries.refresh) == (str(tmp_path / "countries.csv"), timedelta(minutes=1))
    assert (made.sink.table, made.sink.max_batch_size) == ("others", 7)


def test_the_only_sink_has_settings_too(loaded: Callable[..., PipelineConfig]) -> None:
    before, after = loaded(of_one_sink), loaded(of_one_sink, lambda document: document["sink"].update(max_delay_time="7s"))
    assert not [*differences(with_settings(before, settings_of(after)), after)]


def test_settings_hold_no_secret_and_have_a_name(loaded: Callable[..., PipelineConfig]) -> None:
    settings = settings_of(loaded())
    assert "hidden" not in settings
    assert settings_digest(settings) == settings_digest(settings_of(loaded()))
    assert settings_digest(settings) != settings_digest(settings_of(loaded(CHANGES["lanes"])))


@pytest.mark.parametrize("text", ["{", '{"lanes": "many"}', '{"sinks.0.max_delay_time": "soon"}'])
def test_a_text_that_is_none_is_refused(loaded: Callable[..., PipelineConfig], text: str) -> None:
    with pytest.raises(ValueError):
        with_settings(loaded(), text)


def test_settings_of_other_objects_change_nothing(loaded: Callable[..., PipelineConfig]) -> None:
    before = loaded()
    assert with_settings(before, json.dumps({"sinks.7.max_batch_size": 3, "sinks.0.table": "x", "nats.url": "nats://x:1"})) is before
