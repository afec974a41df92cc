"""A pipeline that was never started: every command says so, in the same words and with the same exit code, and makes nothing."""

import pytest
from support.dedup_case import keyed_by
from support.pipeline_case import PipelineCase

from pipelines.protocol.naming import ROLES

pytestmark = pytest.mark.integration

COMMANDS = [
    ["tap"],
    ["tally"],
    ["tally", "--since", "1h"],
    ["audit"],
    ["verify"],
    ["verify", "--hour", "2026-11-22T05"],
    ["state"],
    ["why", "7"],
    ["compact"],
    ["rebucket"],
    ["rebuild-state"],
    ["delete", "--yes"],
    ["dlq groups"],
    ["dlq list"],
    ["dlq show", "1.0"],
    ["dlq export", "letters"],
    ["dlq import", "edited"],
    ["dlq reprocess", "--all"],
    ["dlq reprocess", "--all", "--dry-run"],
    ["dlq discard", "--all", "--reason", "none", "--yes"],
]
EDITED = '{"position": "1.0", "topic": "orders", "partition": 0, "offset": 1, "value": "x"}\n'


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_says_that_a_pipeline_was_never_started(case: PipelineCase, words: list[str]) -> None:
    case.write_file(keyed_by("id"))
    (case.directory / "edited").write_text(EDITED)
    paths = {name: str(case.directory / name) for name in ("letters", "edited")}
    command, *rest = words
    ended = case.invoke(*command.split(), str(case.file), *(paths.get(word, word) for word in rest))
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr == f"pipeline {case.pipeline} was never started: it has no streams; start it with `tallyflow run`\n"
    log = case.log()
    assert [role for role in ROLES if log.state(case.names.stream(role)) is not None] == []
    log.close()
    assert not case.names.directory(case.home).exists()
    assert not (case.directory / "letters").exists()


def test_status_knows_this_host_only_and_says_so(case: PipelineCase) -> None:
    ended = case.invoke("status", str(case.file))
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr == f"pipeline {case.pipeline} was never started on this host\n"


def test_a_lost_ledger_is_no_pipeline_that_never_started(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(10)
    case.warm_run()
    log = case.log()
    log.delete_stream(case.names.stream("ledger"))
    log.close()
    ended = case.invoke("tally", str(case.file))
    assert ended.exit_code == 1
    assert f"its stream {case.names.stream('ledger')} does not exist, but" in ended.stderr
