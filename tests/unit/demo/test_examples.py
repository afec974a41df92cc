"""The records of each example, through the steps of its pipeline file, against the account that the example makes by itself."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.config import load
from pipelines.demo import examples
from pipelines.demo.events import Recipe
from pipelines.demo.examples import DIRECTORY, Account, example_file, load_example, side_by_side, variables
from pipelines.errors import ConfigurationError
from pipelines.preview.cases import FIRST_ARRIVAL
from pipelines.preview.declared import declared_program
from pipelines.preview.given import Given, frames_of
from pipelines.preview.joined import KEPT, WAITING
from pipelines.preview.run import REJECTED, ROW, preview
from pipelines.preview.tables import with_tables
from pipelines.preview.trial import DROPPED, DUPLICATE

NAMES = sorted(path.parent.name for path in DIRECTORY.glob("*/pipeline.yaml"))
ADDRESSES = {"KAFKA_BOOTSTRAP": "127.0.0.1:1", "CLICKHOUSE_HOST": "127.0.0.1", "CLICKHOUSE_PORT": "1"}
MIXED = Recipe(seed=3, duplicate_share=0.2, bad_share=0.2)


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_make_of_the_records_what_the_example_says(name: str) -> None:
    example, config = load_example(name), load(example_file(name), ADDRESSES)
    account = example.account(example.generator.events(MIXED, 3000))
    given = [
        Given(value, FIRST_ARRIVAL, key, source=source)
        for source, beside in example.beside.items()
        for events in beside.generator.events(Recipe(), beside.count)
        for key, value, _ in events
    ]
    given += [Given(value, FIRST_ARRIVAL, key) for events in example.generator.events(MIXED, 3000) for key, value, _ in events]
    found = preview(with_tables(declared_program(config), config, offline=True), frames_of(given, config.sources))
    # The first table of each example has all rows.
    rows = account.rows[config.sink.id or ""]
    outcomes = {ROW: rows, DROPPED: account.filtered, DUPLICATE: account.duplicates, REJECTED: account.dead_letters.total()}
    outcomes |= {KEPT: account.kept, WAITING: account.waiting}
    assert found.outcomes() == Counter({outcome: count for outcome, count in outcomes.items() if count})
    assert Counter(record.last.code for record in found.records if record.last.outcome == REJECTED) == account.dead_letters


@pytest.mark.parametrize("name", NAMES)
def test_an_example_has_every_kind_of_bad_record(name: str) -> None:
    example = load_example(name)
    events = list(example.generator.events(MIXED, 3000))
    assert sum((block.count_kinds() for block in events), Counter[str]()).keys() == set(example.generator.kinds)
    assert sum(len(block) for block in events) == 3000


@pytest.mark.parametrize("name", NAMES)
def test_an_example_takes_its_names_from_the_environment(name: str) -> None:
    config = load(example_file(name), {**ADDRESSES, **variables(name, "7")})
    assert (config.pipeline_id, config.sources[0].topic, config.sink.table) == (f"{name}-demo-7", f"{name}-demo-7", f"{name}_demo_7")
    assert [source.topic for source in config.sources[1:]] == [f"{name}-demo-7-{source}" for source in load_example(name).beside]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_has_its_page_and_its_cases(name: str) -> None:
    assert {"README.md", "events.py", "pipeline.yaml", "pipeline.tests.yaml"} <= {path.name for path in (DIRECTORY / name).iterdir()}


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({}, []),
        ({"rows": Counter({"": 1, "big": 1})}, ["rows in ClickHouse"]),
        ({"rows": Counter({"": 2})}, ["rows in ClickHouse, big"]),
        ({"untaken": 1}, ["taken by no sink"]),
        ({"filtered": 0}, ["dropped by filter"]),
        ({"duplicates": 2}, ["duplicates dropped"]),
        ({"dead_letters": Counter(odd=1)}, ["dead letters, late", "dead letters, odd"]),
        ({"kept": 2}, ["kept for the join"]),
        ({"kept": 2, "waiting": 3}, ["kept for the join", "waiting in the join"]),
        ({"answer": [("a", 2)]}, ["answer, row 1"]),
        ({"answer": [("a", 1), ("b", 1)]}, ["answer, row 2"]),
        ({"answer": []}, ["answer, row 1"]),
    ],
)
def test_each_part_of_an_account_that_differs_is_named(change: dict[str, Any], differing: list[str]) -> None:
    expected = Account(Counter({"": 2, "big": 1}), 0, 1, 1, Counter(late=1), [("a", 1)])
    assert [name for name, wanted, actual in side_by_side(expected, replace(expected, **change)) if wanted != actual] == differing


def test_a_directory_that_states_no_example_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "DIRECTORY", tmp_path)
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "pipeline.yaml").write_text("version: v3\n")
    (tmp_path / "clicks" / "events.py").write_text("EXAMPLE = 1\n")
    with pytest.raises(ConfigurationError, match="EXAMPLE: must be an Example"):
        load_example("clicks")


def test_an_unknown_example_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"no example 'clicks'; there are .*fraud, orders"):
        load_example("clicks")


def test_missing_examples_are_named_with_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "DIRECTORY", tmp_path)
    with pytest.raises(ConfigurationError, match=f"{tmp_path} has none; install the wheel again"):
        example_file("orders")
