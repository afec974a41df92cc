"""A kill between the decision to purge and the purge: the next start does what was decided, and nothing is missing."""

import pytest
from support.pipeline_case import PipelineCase, wait_until

from pipelines.protocol.failpoints import VARIABLE
from pipelines.protocol.purge import read_purged

pytestmark = pytest.mark.crash


def _keep_a_second(document: dict[str, object]) -> None:
    document["resources"] = {"nats": {"stream": {"max_age": "1s"}}}


@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_purge_that_was_decided_is_done_after_a_kill(case: PipelineCase, nth: int) -> None:
    case.write_file(_keep_a_second)
    case.create_topic()
    running = case.start_plain(**{VARIABLE: f"purge.after-decision:{nth}"})
    with case.load():
        wait_until(lambda: running.poll() is not None, "the failpoint")
    assert running.returncode == -9, running.communicate()[1]
    log = case.log()
    decided = {role: read_purged(log, case.names, role).below for role in ("raw", "out")}
    assert max(decided.values()) > 0
    case.warm_run()
    for role, below in decided.items():
        stream, subjects = case.names.stream(role), case.names.subjects(role)
        left = [message.sequence for message in log.fetch(stream, subjects, 0, below - 1)]
        assert len(left) <= len(log.subjects(stream, subjects))
    log.close()
    case.check()
