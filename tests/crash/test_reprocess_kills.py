"""A command that makes rows anew is killed at every step: the next one goes on, each row is there once, and newer rows stay as they are."""

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.edited_case import alter, mapping
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until

from pipelines.config import load
from pipelines.errors import HaltError
from pipelines.proof import put_back as repair
from pipelines.proof import rows_anew
from pipelines.proof.put_back import put_back
from pipelines.proof.verification.run import Request, verify
from pipelines.protocol.failpoints import VARIABLE

pytestmark = pytest.mark.crash

KILLS = 4
PORTION_ROWS = 1000
"""Several portions: a frame has about as many rows."""

# Nothing of an earlier command is on its way when the next one begins, but deletions that ClickHouse has noted.
COMMAND = """
import sys
from pathlib import Path
from pipelines.config import load
from pipelines.connectors.nats.client import JetStream
from pipelines.proof import put_back as repair
from pipelines.proof import reprocess, rows_anew
repair.QUIET_SECONDS = 0
rows_anew.PORTION_ROWS, rows_anew.FRAMES_PER_STEP = int(sys.argv[3]), 1
config = load(Path(sys.argv[1]))
reprocess.reprocess(config, JetStream.of(config).connect(), Path(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def _several_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "QUIET_SECONDS", 0)
    monkeypatch.setattr(rows_anew, "PORTION_ROWS", PORTION_ROWS)
    monkeypatch.setattr(rows_anew, "FRAMES_PER_STEP", 1)


@pytest.fixture
def edited(case: PipelineCase) -> Iterator[tuple[PipelineCase, list[Any]]]:
    """Some frames under the file before, a few records under the edited one, of which one was changed by hand; and what must be there."""
    case.create_topic()
    case.send_events(6000, bad_every=100, name_bytes=800)
    case.warm_run()
    alter(case, "ADD COLUMN more String")
    case.write_file(mapping(lambda columns: columns.append({"name": "name", "column_name": "more", "column_type": "String"})))
    old = case.count()
    case.send_events(50)
    case.warm_run()
    newest = case.client().query(f"SELECT max(id) FROM {case.table}").result_rows[0][0]
    case.client().command(f"ALTER TABLE {case.table} UPDATE more = 'by hand' WHERE id = {newest} SETTINGS mutations_sync = 2")
    wanted = case.client().query(
        f"SELECT * EXCEPT(more), if(id = {newest}, 'by hand', name) FROM {case.table} ORDER BY _tf_partition, _tf_offset"
    )
    assert old < case.count()
    yield case, list(wanted.result_rows)


def everything(case: PipelineCase) -> list[Any]:
    found = case.client().query(f"SELECT * EXCEPT(more), more FROM {case.table} ORDER BY _tf_partition, _tf_offset")
    return list(found.result_rows)


def started(case: PipelineCase, **environment: str) -> "subprocess.Popen[str]":
    arguments = [sys.executable, "-c", COMMAND, str(case.file), str(case.names.directory(case.home)), str(PORTION_ROWS)]
    return subprocess.Popen(arguments, env=case.environment(**environment), stderr=subprocess.PIPE, text=True)


def finish(case: PipelineCase) -> None:
    done = case.invoke("apply", str(case.file), "--yes", "--no-start", "--reprocess")
    assert done.exit_code == 0, done.output


def check(case: PipelineCase, wanted: list[Any]) -> None:
    """Every row once, with the values of the edited file; a verification says so, but for the value that was changed by hand."""
    assert everything(case) == wanted
    assert "rows so far" not in case.invoke("diff", str(case.file)).output
    log = case.log()
    report = verify(load(case.file, case.environment()), log, Request(case.names.directory(case.home)))
    log.close()
    assert [(finding.kind, finding.count) for finding in report.findings] == [("different", 1)]
    assert report.not_proven == []


@pytest.mark.parametrize("point", [f"{name}:{nth}" for name in ("after-plan", "after-delete", "after-insert") for nth in (1, 2)])
def test_the_next_command_goes_on_where_a_killed_one_stood(edited: tuple[PipelineCase, list[Any]], point: str) -> None:
    case, wanted = edited
    killed = started(case, **{VARIABLE: f"reprocess.{point}:worker"})
    assert killed.wait(PATIENCE_SECONDS) == -9, killed.communicate()[1]
    shown = case.invoke("diff", str(case.file)).output
    assert "may be out of the table until they are made anew" in shown
    unfinished = case.invoke("apply", str(case.file), "--yes", "--no-start")
    assert unfinished.exit_code == 1
    assert "Add --reprocess, which finishes it first" in " ".join(unfinished.stderr.split())
    finish(case)
    check(case, wanted)


def test_any_moment_will_do(edited: tuple[PipelineCase, list[Any]]) -> None:
    case, wanted = edited
    chance = random.Random(5)
    for _ in range(KILLS):
        killed = started(case)
        with suppress(subprocess.TimeoutExpired):
            killed.wait(chance.uniform(1.5, 6.0))
        killed.kill()
        killed.wait()
    finish(case)
    check(case, wanted)


def test_rows_that_are_out_of_the_table_are_not_called_clean(edited: tuple[PipelineCase, list[Any]]) -> None:
    case, wanted = edited
    killed = started(case, **{VARIABLE: "reprocess.after-delete:1:worker"})
    assert killed.wait(PATIENCE_SECONDS) == -9, killed.communicate()[1]
    wait_until(lambda: case.count() < len(wanted), "the deletion")
    config, log = load(case.file, case.environment()), case.log()
    report = verify(config, log, Request(case.names.directory(case.home)))
    assert not report.is_clean
    assert any("made anew" in gap.what for gap in report.not_proven)
    with pytest.raises(HaltError, match="are out of the table to be made anew; nothing was inserted"):
        put_back(config, log, Request(case.names.directory(case.home)))
    log.close()
    case.send_events(20)
    case.warm_run()
    finish(case)
    assert case.count() == len(wanted) + 20


def test_a_later_edit_holds_for_the_rows_of_a_killed_command(edited: tuple[PipelineCase, list[Any]]) -> None:
    case, wanted = edited
    killed = started(case, **{VARIABLE: "reprocess.after-insert:1:worker"})
    assert killed.wait(PATIENCE_SECONDS) == -9, killed.communicate()[1]

    def twice(columns: list[dict[str, Any]]) -> None:
        columns += [{"name": "name", "column_name": name, "column_type": "String"} for name in ("more", "again")]

    case.write_file(mapping(twice))
    finish(case)
    found = case.client().query(f"SELECT count(), countIf(more = name), countIf(again = name) FROM {case.table}")
    assert found.result_rows == [(len(wanted),) * 3]
