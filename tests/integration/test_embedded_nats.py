"""A pipeline whose file and environment name no NATS: the commands start, share and find the local one of their home."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import Result
from support.dedup_case import event
from support.pipeline_case import PipelineCase

from resources.local.nats import Nats
from resources.local.stack import LocalStack
from resources.local_servers import local_servers_for

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.fixture
def embedded(case: PipelineCase) -> Iterator[LocalStack]:
    """The NATS of the case's own home, which only commands start."""
    case.create_topic(1)
    case.send([event(number, number) for number in range(300)], partitions=1)
    stack = LocalStack(case.home, kinds=[Nats()])
    yield stack
    stack.down()


def without_nats(case: PipelineCase, command: str, *arguments: str) -> Result:
    return case.invoke(command, str(case.file), *arguments, NATS_URL="")


def test_run_starts_it_and_every_command_finds_the_same_state(case: PipelineCase, embedded: LocalStack) -> None:
    early = without_nats(case, "tally")
    assert early.exit_code == 1
    assert f"none was ever started in {case.home}" in early.stderr
    ran = without_nats(case, "run", "--until-caught-up")
    assert ran.exit_code == 0, ran.stderr
    place = f"it keeps the streams in {case.home}/servers/nats and runs until `tallyflow down nats`"
    assert f"started now; {place}" in ran.stderr
    for command in ("audit", "verify", "tally"):
        found = without_nats(case, command)
        assert found.exit_code == 0, found.stderr
        assert f"{embedded.addresses().nats_address}; {place}" in found.stderr
        assert "300" in found.stdout


@pytest.mark.crash
def test_it_outlives_a_killed_runner_and_keeps_what_it_held(case: PipelineCase, embedded: LocalStack) -> None:
    killed = case.start_plain("--until-caught-up", NATS_URL="", TALLYFLOW_FAILPOINT="sink.after-insert:1")
    assert killed.wait(240) == -9
    pid = embedded.server("nats").pid
    assert pid is not None
    again = without_nats(case, "run", "--until-caught-up")
    assert again.exit_code == 0, again.stderr
    assert embedded.server("nats").pid == pid
    embedded.server("nats").kill()
    audited = without_nats(case, "audit")
    assert audited.exit_code == 0, audited.stdout + audited.stderr
    assert "started now" in audited.stderr
    assert "raw 300, out 300, dead letters 0" in audited.stdout


def test_two_pipelines_that_start_at_once_share_one(tmp_path: Path) -> None:
    environment = {"TALLYFLOW_HOME": str(tmp_path)}
    stack = LocalStack(tmp_path, kinds=[Nats()])
    try:
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda name: local_servers_for(f"pipeline_id: {name}", environment, "start"), ["one", "two"])
        assert first.variables == second.variables == {"NATS_URL": stack.addresses().nats_url}
        assert [one.state for one in stack.status()] == ["healthy"]
    finally:
        stack.down()
