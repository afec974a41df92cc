"""What the processes of one run agree on: each proves that the file means the same to it."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.config import parse
from pipelines.config.docs import EXAMPLE
from pipelines.config.variables import open_variables
from pipelines.engine.connections import Connections
from pipelines.engine.failures import last_message
from pipelines.engine.run_spec import RunSpec, read_run, resolved_digest
from pipelines.errors import ConfigurationError, HaltError
from pipelines.protocol.naming import STREAM_ID_KEY
from pipelines.runner.file_checks import check_master

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


def test_a_variable_without_a_secret_travels_along() -> None:
    shipped = read_run(run(variables=open_variables(TEXT, DRIVER)).text())
    assert shipped.resolve({"WHICH": "orders-other"}).pipeline_id == "orders-demo"


def test_a_worker_without_a_secret_says_where_it_is_missing() -> None:
    text = TEXT.replace("WHICH}", "WHICH}\nnats: {url: 'nats://h:1', username: u, password: '${SECRET}'}")
    environment = {**DRIVER, "SECRET": "s3cret"}
    digest = resolved_digest(parse(text, name="driver", environment=environment))
    shipped = RunSpec(text, "pipeline p", {}, {}, "", "", resolved=digest, variables=open_variables(text, environment))
    assert "s3cret" not in shipped.text()
    missing = r"(?s)in process \d+ of .*SECRET is not set\nGive every worker .* values of CLICKHOUSE_PASSWORD, NATS_URL, SECRET$"
    with pytest.raises(HaltError, match=missing):
        read_run(shipped.text()).resolve({})


def test_only_variables_outside_of_secrets_are_open() -> None:
    text = """
pipeline_id: ${NAME:-p}
nats: {url: "nats://${HOST}:4222", user: "${USER_NAME}"}
state_uri: ${STATE}
sources: [{topic: "${NAME}-${UNSET:-x}", connection_params: {brokers: ["${HOST}"], password: "${NAME_OF_PASSWORD}"}}]
note: $${NO_REFERENCE}
"""
    given = {"NAME": "orders", "HOST": "h", "USER_NAME": "u", "NAME_OF_PASSWORD": "p", "STATE": "s", "OTHER": "o"}
    assert open_variables(text, given) == {"NAME": "orders", "UNSET": "", "USER_NAME": "u"}


def test_the_digest_holds_no_secret() -> None:
    before, after = (
        parse(TEXT.replace("WHICH}", f"WHICH}}\nnats: {{url: 'nats://u:{secret}@h:1'}}"), name="driver", environment=DRIVER)
        for secret in ("one", "two")
    )
    assert resolved_digest(before) == resolved_digest(after)


@pytest.mark.parametrize("state", [None, SimpleNamespace(metadata={STREAM_ID_KEY: "other"})])
def test_a_worker_that_reaches_other_streams_halts_first(state: Any) -> None:
    reached = RunSpec(TEXT, "pipeline", {"raw": "ours"}, {}, "", "")
    log = SimpleNamespace(states=lambda streams: dict.fromkeys(streams, state))
    connections = Connections(reached, keep_partitions=False, log=log, config=parse(TEXT, name="worker", environment=DRIVER))
    with pytest.raises(HaltError, match="it is not the one that the driver writes, so nothing was done"):
        connections.prove()


def test_a_master_with_other_hosts_needs_a_place_that_they_share() -> None:
    config = parse(TEXT, name="driver", environment=DRIVER)
    for master in (None, "local", "local[2,4]"):
        check_master(config, master)
    with pytest.raises(ConfigurationError, match="state_uri: --master spark://host:7077 has workers on other hosts"):
        check_master(config, "spark://host:7077")


@pytest.mark.parametrize("master", ["spark://host:7077", "spark://one:7077,other:7078", "k8s://https://host:6443", "yarn", "local[*]"])
def test_a_master_that_all_hosts_share_a_place_for_is_taken(master: str) -> None:
    check_master(parse(TEXT + "\nstate_uri: file:///shared", name="driver", environment=DRIVER), master)


def test_a_properties_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    config = parse(TEXT + "\nstate_uri: file:///shared", name="driver", environment=DRIVER)
    with pytest.raises(ConfigurationError, match=r"--spark-conf: .*missing\.conf cannot be read"):
        check_master(config, "spark://host:7077", tmp_path / "missing.conf")


@pytest.mark.parametrize("master", ["", "locale[2]", "spark://host", "http://host:7077", "mesos://host:5050"])
def test_a_master_that_cannot_be_is_refused(master: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--master: '{re.escape(master)}' is no Spark master"):
        check_master(parse(TEXT, name="driver", environment=DRIVER), master)


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
