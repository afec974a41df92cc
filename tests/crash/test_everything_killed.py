"""Everything killed at the same moment, as when a machine resets: servers, runner, JVM, workers; then `up`, and a run."""

import os
import signal
import subprocess
from contextlib import suppress

import psutil
import pytest
from support.dedup_case import check_first_of_keys, copies, keyed_by
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, family_of, survivors

pytestmark = pytest.mark.crash


def _kill_everything(case: PipelineCase, process: "subprocess.Popen[str]") -> None:
    servers = [psutil.Process(pid) for name in ("kafka", "nats", "clickhouse") if (pid := case.stack.server(name).pid)]
    doomed = [
        psutil.Process(process.pid),
        *family_of(process),
        *servers,
        *(child for one in servers for child in one.children(recursive=True)),
    ]
    for one in doomed:
        # Some follow another one by themselves.
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    assert process.wait(PATIENCE_SECONDS) == -9
    assert len(servers) == 3 and not survivors(doomed, 30)


@pytest.mark.parametrize("rows", [1, 6000])
def test_a_kill_of_everything_at_once_loses_and_doubles_nothing(case: PipelineCase, rows: int) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    process = case.start_plain()
    case.send(copies(20_000, keys=10_007))
    case.wait_count(rows)
    _kill_everything(case, process)
    case.stack.up()
    case.send(copies(1000, first=20_000, keys=10_007))
    case.warm_run()
    assert check_first_of_keys(case)["row"] > 9_900


def test_a_kill_of_everything_with_spark_loses_nothing(case: PipelineCase) -> None:
    case.create_topic()
    process = case.start()
    case.wait_ready(process)
    case.send_events(30_000, bad_every=100)
    case.wait_count(1)
    _kill_everything(case, process)
    case.stack.up()
    case.send_events(1000)
    case.warm_run()
    case.check()
