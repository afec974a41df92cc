"""A command that puts rows back is killed around and between its inserts: the next one goes on, and the table has each row once."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.join_pipeline import JoinPipeline
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until
from support.put_back_case import repaired

from pipelines.proof import put_back as repair
from pipelines.protocol.failpoints import VARIABLE

pytestmark = pytest.mark.crash

# Nothing of an earlier command is on its way here.
COMMAND = """
import sys
from pathlib import Path
from pipelines.proof import put_back as repair
from pipelines.config import load
from pipelines.connectors.nats.client import JetStream
from pipelines.proof.verification.run import Request
repair.QUIET_SECONDS = 0
config = load(Path(sys.argv[1]))
repair.put_back(config, JetStream.of(config).connect(), Request(Path(sys.argv[2])), frames_per_insert=int(sys.argv[3]))
"""


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "QUIET_SECONDS", 0)


@pytest.fixture
def damaged(case: PipelineCase) -> Iterator[tuple[PipelineCase, list[Any]]]:
    """Some frames of events, of which the table has lost every seventh; and what it had held before."""
    case.create_topic()
    case.send_events(5000, bad_every=100, name_bytes=800)
    case.warm_run()
    before = everything(case)
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id % 7 = 0 SETTINGS mutations_sync = 2")
    yield case, before


def everything(case: PipelineCase) -> list[Any]:
    return list(case.client().query(f"SELECT * FROM {case.table} ORDER BY id").result_rows)


def started(case: PipelineCase, frames_per_insert: int, **environment: str) -> "subprocess.Popen[str]":
    arguments = [sys.executable, "-c", COMMAND, str(case.file), str(case.names.directory(case.home)), str(frames_per_insert)]
    return subprocess.Popen(arguments, env=case.environment(**environment), stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("point", ["before-insert:1", "after-insert:1", "before-insert:3", "after-insert:3"])
def test_the_next_command_goes_on_where_a_killed_one_stood(damaged: tuple[PipelineCase, list[Any]], point: str) -> None:
    case, before = damaged
    lost = len(before) - case.count()
    killed = started(case, 1, **{VARIABLE: f"repair.{point}:worker"})
    assert killed.wait(PATIENCE_SECONDS) == -9, killed.communicate()[1]
    left = len(before) - case.count()
    assert (left < lost) == (point != "before-insert:1")
    assert left > 0, "several inserts"
    found = repaired(case)
    assert (found.missing, found.rows, found.after.is_clean) == (left, left, True)
    assert everything(case) == before
    assert repaired(case).missing == 0
    case.check()


@pytest.mark.parametrize("point", ["before-insert:2", "after-insert:2"])
def test_rows_of_a_join_come_back_behind_a_kill(case: PipelineCase, point: str) -> None:
    pipeline = JoinPipeline(case, case.addresses)
    for first in (0, 40):
        pipeline.send("events", range(first, first + 40))
        pipeline.send("names", range(first, first + 30))
        case.warm_run()
    before = everything(case)
    case.client().command(f"TRUNCATE TABLE {case.table}")
    killed = started(case, 1, **{VARIABLE: f"repair.{point}:worker"})
    assert killed.wait(PATIENCE_SECONDS) == -9, killed.communicate()[1]
    left = len(before) - case.count()
    assert 0 < left < len(before) == 60
    found = repaired(case)
    assert (found.missing, found.rows, found.after.is_clean) == (left, left, True)
    assert everything(case) == before


def test_an_insert_that_outlives_its_command_is_waited_for(case: PipelineCase) -> None:
    """It is at work for longer than it may be on its way."""
    case.create_topic()
    case.send_events(60)
    case.warm_run()
    client = case.client()
    client.command(f"TRUNCATE TABLE {case.table}")
    # Each may sleep for three seconds in a block.
    for name, seconds in (("slow", 0.04), ("slower", 0.041)):
        client.command(f"ALTER TABLE {case.table} ADD COLUMN {name} UInt8 MATERIALIZED sleepEachRow({seconds})")
    running = started(case, 12)
    looked = f"SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'tallyflow {case.pipeline} put-back'"
    wait_until(lambda: client.query(looked).result_rows[0][0], "an insert at work")
    running.kill()
    running.wait()
    found = repaired(case)
    assert (found.missing, found.rows) == (60, 0)
    assert client.query(f"SELECT count(), uniqExact(id) FROM {case.table}").result_rows[0] == (60, 60)
    case.check()
