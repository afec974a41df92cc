"""What a run takes of an edited file, and what it refuses."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.config import parse, version_of
from pipelines.config.docs import EXAMPLE
from pipelines.config.settings import settings_digest, settings_of
from pipelines.edits.last_run import last_run
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import ConfigurationError, HaltError
from pipelines.runner.reloads import Reloads, reload

EDITED = EXAMPLE.replace("table: orders", "table: orders\n  max_batch_size: 7\n  max_delay_time: 3s")


class Runner:
    """As much of a runner as a reload needs; `given`: what its threads and its legs were given."""

    def __init__(self, home: Path, lanes: int = 1) -> None:
        self.config = parse(EXAMPLE, name="example", environment={}).model_copy(update={"lanes": lanes})
        self.directory, self.own_directory = home, home / "ingest-process-sink-1"
        self.own_directory.mkdir()
        self.given = dict[str, Any]()
        self.announced = list[str]()
        self.announce = self.announced.append
        self.coordinator = SimpleNamespace(take_settings=lambda *given: self.given.update(legs=given))
        self.retention = SimpleNamespace(keep=lambda *given: self.given.update(retention=given))
        self.lookups = SimpleNamespace(take_settings=lambda config: self.given.update(lookups=config))
        self.dead_letter_retention = lambda: f"expires after {self.config.dead_letters.max_age}"
        self.run = RunSpec(EXAMPLE, "pipeline", {"raw": "1"}, {}, "v", "", file_version=version_of(self.config))
        self.run.save(self.own_directory / "run.json")
        runner: Any = self
        self.reloads: Reloads | None = Reloads(runner, self.run)

    def reload(self, text: str) -> str:
        runner: Any = self
        return reload(runner, text)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_settings_reach_the_legs_and_the_threads_of_the_runner(runner: Runner) -> None:
    text = EDITED + "resources: {nats: {stream: {max_age: 2h}}}\ndead_letters: {max_age: 7d}\n"
    digest = runner.reload(text)
    settings = settings_of(parse(text, name="edited", environment={}))
    assert digest == settings_digest(settings)
    assert runner.given["legs"] == (settings, 0)
    assert runner.given["retention"] == (timedelta(hours=2), "expires after 7 days, 0:00:00")
    assert runner.given["lookups"] is runner.config
    assert runner.config.sink.max_batch_size == 7
    (told,) = runner.announced
    assert told.startswith("reloaded: sink.max_batch_size, sink.max_delay_time, resources")


def test_the_run_file_has_the_text_that_is_in_force(runner: Runner) -> None:
    before = runner.run
    runner.reload(EDITED)
    assert runner.reloads
    assert runner.reloads.text == EDITED
    found = last_run(runner.directory)
    assert found
    assert (found.config_text, found.file_version) == (EDITED, version_of(runner.config)) != (EXAMPLE, before.file_version)
    assert found.config.sink.max_batch_size == 7
    assert (found.stream_ids, found.stage_config) == (before.stream_ids, before.stage_config)


def untouched(runner: Runner) -> bool:
    found = last_run(runner.directory)
    return found == runner.run and not runner.given and runner.config.sink.max_batch_size == 1000


def test_what_needs_more_is_refused_with_its_fields(runner: Runner) -> None:
    text = EDITED.replace("topic: orders", "topic: others").replace("database: default", "database: shop")
    with pytest.raises(
        HaltError, match=r"reloading pipeline orders-demo: sources.*, sink.connection_params.database cannot change"
    ) as caught:
        runner.reload(text)
    assert "`tallyflow apply FILE` does it" in str(caught.value)
    assert "max_batch_size" not in str(caught.value)
    assert untouched(runner)


def test_another_pipeline_is_refused(runner: Runner) -> None:
    with pytest.raises(HaltError, match="pipeline_id"):
        runner.reload(EDITED.replace("orders-demo", "others-demo"))
    assert untouched(runner)


def test_a_faulty_file_is_refused_with_every_fault(runner: Runner) -> None:
    with pytest.raises(ConfigurationError) as caught:
        runner.reload(EDITED.replace("max_batch_size: 7", "max_batch_size: none").replace("type: float", "type: floot"))
    assert "sink.max_batch_size" in str(caught.value)
    assert "floot" in str(caught.value) or "schema_fields" in str(caught.value)
    assert untouched(runner)


def test_more_lanes_are_refused_and_fewer_taken(tmp_path: Path) -> None:
    few, many = (EXAMPLE + f"buckets: 8\nlanes: {count}\n" for count in (2, 4))
    runner = Runner(tmp_path)
    runner.reloads = Reloads(runner, replace(runner.run, config_text=many))  # type: ignore[arg-type]
    runner.reload(few)
    assert runner.given["legs"][1] == 1
    with pytest.raises(HaltError, match="lanes cannot change while it runs"):
        runner.reload(many)


def test_other_code_of_functions_is_refused(runner: Runner) -> None:
    runner.reloads = Reloads(runner, replace(runner.run, codes={"own:f": "a digest"}))  # type: ignore[arg-type]
    with pytest.raises(HaltError, match="the code of its functions is not that of its start"):
        runner.reload(EDITED)


def test_variables_have_the_values_of_the_start(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICKHOUSE_HOST", "set-since")
    monkeypatch.setenv("ROWS", "70")
    host = "${CLICKHOUSE_HOST:-127.0.0.1}"
    assert host in EXAMPLE
    runner.reloads = Reloads(runner, replace(runner.run, variables={"CLICKHOUSE_HOST": ""}))  # type: ignore[arg-type]
    runner.reload(EDITED.replace("max_batch_size: 7", "max_batch_size: ${ROWS}"))
    assert runner.config.sink.max_batch_size == 70
    found = last_run(runner.directory)
    assert found
    assert found.variables["ROWS"] == "70"


def test_a_run_file_that_cannot_be_written_changes_nothing(runner: Runner) -> None:
    (runner.own_directory / "run.json").unlink()
    runner.own_directory.rmdir()
    with pytest.raises(HaltError, match=r"reloading: writing .*No such file"):
        runner.reload(EDITED)
    assert runner.reloads
    assert (runner.reloads.text, runner.given) == (EXAMPLE, {})


def test_a_runner_that_is_starting_takes_no_reload(runner: Runner) -> None:
    runner.reloads = None
    with pytest.raises(HaltError, match="its runner is still starting; ask again when it is ready"):
        runner.reload(EDITED)


def test_a_run_may_be_reloaded_again_and_back(runner: Runner) -> None:
    digests = [runner.reload(text) for text in (EDITED, EXAMPLE, EDITED)]
    assert digests[0] == digests[2] != digests[1]
    assert runner.config.sink.max_delay_time == timedelta(seconds=3)
