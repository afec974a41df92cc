"""A command that takes letters is killed at each of its steps: the next one goes on, and no letter enters twice or never."""

import pytest
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase

from pipelines.protocol.failpoints import VARIABLE

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("point", "is_running"),
    [
        ("redrive.after-plan", False),
        ("redrive.between-frames", True),
        ("redrive.between-frames:2", False),
        ("redrive.after-publish", True),
    ],
)
def test_the_next_command_goes_on_where_a_killed_one_stood(case: PipelineCase, point: str, is_running: bool) -> None:
    case.write_file(lambda document: document.update(on_error={"max_rejected_percent": 100}))
    case.create_topic()
    case.send_events(3000, bad_every=2)
    case.warm_run()
    # The circuit breaker is on again: it does not count what enters again.
    case.write_file()
    name, _, nth = point.partition(":")
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner) if is_running else None
    killed = case.fork("dlq", "reprocess", str(case.file), "--all", **{VARIABLE: f"{name}:{nth or 1}:worker"})
    assert killed.wait(PATIENCE_SECONDS) == -9
    again = case.invoke("dlq", "reprocess", str(case.file), "--all")
    assert again.exit_code == 0, again.stderr
    if thread is not None:
        runner.request_stop()
        thread.join()
    case.warm_run()
    assert len(case.entered()) >= 1500
    case.check()
