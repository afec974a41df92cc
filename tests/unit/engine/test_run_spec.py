"""What the processes of one run agree on: each proves that the file means the same to it."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.config import parse
from pipelines.config.docs import EXAMPLE
from pipelines.engine.connections import Connections
from pipelines.engine.failures import last_message
from pipelines.engine.run_spec import RunSpec, read_run, resolved_digest
from pipelines.errors import ConfigurationError, HaltError
from pipelines.protocol.naming import STREAM_ID_KEY
from pipelines.runner.preflight import check_master

TEXT = EXAMPLE.replace("pipeline_id: orders-demo", "pipeline_id: ${WHICH}")
DRIVER = {"WHICH": "orders-demo"}


def run(**changes: Any) -> RunSpec:
    resolved = resolved_digest(parse(TEXT, name="driver", environment=DRIVER))
    return RunSpec(TEXT, "pipeline orders-demo", {}, {}, "", "", resolved=resolved, **changes)


def test_a_worker_that_resolves_the_same_pipeline_has_it() -> None:
    assert read_run(run().text()).resolve(DRIVER).pipeline_id == "orders-demo"


@pytest.mark.parametrize("other", [{"WHICH": "orders-other"}, {"WHICH": "orders-demo", "NATS_URL": "nats://elsewhere:4222"}])
def test_a_worker_that_resolves_another_pipeline_halts_first(other: dict[str, str]) -> None:
    with pytest.raises(HaltError, match=r"means another configuration than in the driver, so nothing was done\. .*WHICH"):
        read_run(run().text()).resolve(other)


def test_the_digest_holds_no_secret() -> None:
    before, after = (
        parse(TEXT.replace("WHICH}", f"WHICH}}\nnats: {{url: 'nats://u:{secret}@h:1'}}"), name="driver", environment=DRIVER)
        for secret in ("one", "two")
    )
    assert resolved_digest(before) == resolved_digest(after)


@pytest.mark.parametrize("state", [None, SimpleNamespace(metadata={STREAM_ID_KEY: "other"})])
def test_a_worker_that_reaches_other_streams_halts_first(state: Any) -> None:
    reached = RunSpec(TEXT, "pipeline", {"raw": "ours"}, {}, "", "")
    log = SimpleNamespace(state=lambda stream: state)
    connections = Connections(reached, keep_partitions=False, log=log, config=parse(TEXT, name="worker", environment=DRIVER))
    with pytest.raises(HaltError, match="it is not the one that the driver writes, so nothing was done"):
        connections.prove()


def test_a_master_with_other_hosts_needs_a_place_that_they_share() -> None:
    config = parse(TEXT, name="driver", environment=DRIVER)
    for master in (None, "local", "local[2,4]"):
        check_master(config, master)
    with pytest.raises(ConfigurationError, match="state_uri: --master spark://host:7077 has workers on other hosts"):
        check_master(config, "spark://host:7077")


PROXY = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised by the Python Proxy. Return Message: Traceback
  File "/a/clientserver.py", line 642, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/a/json_template.py", line 95, in _match
    raise ValueError("a source line")  # an Error in the source
pyarrow.lib.ArrowInvalid: Invalid regular expression: pattern too large - compile failed

=== Streaming Query ===
Identifier: p.process
"""
WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/a/worker.py", line 1, in main
    process()
KeyError: 'name'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/a/worker.py", line 2, in main
    raise SomeError
pipelines.x.SomeError
\tat org.apache.spark.Error(X.java:1)
"""


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (PROXY, "pyarrow.lib.ArrowInvalid: Invalid regular expression: pattern too large - compile failed"),
        (WORKER, "pipelines.x.SomeError"),
        ("\nthe JVM says so\n  and more", "the JVM says so"),
        ("", ""),
    ],
)
def test_the_last_words_are_the_error_and_no_line_of_a_source(text: str, reported: str) -> None:
    assert last_message(text) == reported
