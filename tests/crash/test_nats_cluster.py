"""A NATS cluster: streams with three replicas go on when the server that leads them is killed, and nothing is lost or doubled."""

import json
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.forked import Forked
from support.nats_cluster import NatsCluster
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until

from pipelines.protocol.naming import all_roles

pytestmark = pytest.mark.crash


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path / "nats") as cluster:
        yield cluster


def _on(cluster: NatsCluster, replicas: int | None = 3) -> Callable[[dict[str, Any]], None]:
    """The change of a file that keeps its streams on the cluster."""

    def change(document: dict[str, Any]) -> None:
        document["nats"] = cluster.connection
        if replicas is not None:
            document["resources"] = {"nats": {"stream": {"replicas": replicas}}}

    return change


def _stop(process: Forked) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0


def test_leaders_that_are_killed_lose_nothing(case: PipelineCase, cluster: NatsCluster) -> None:
    case.write_file(_on(cluster))
    case.create_topic()
    process = case.start_plain()
    with case.load():
        case.wait_count(1000)
        for stream in map(case.names.stream, ("raw", "ledger", "out")):
            lost = cluster.leader(stream)
            cluster.kill(lost)
            case.wait_count(case.good + 300)
            cluster.start(lost)
            wait_until(partial(cluster.is_whole, stream), "all replicas of a stream")
    wait_until(lambda: case.count() == case.good, "all rows")
    _stop(process)
    case.check()


def test_a_lost_majority_is_waited_for(case: PipelineCase, cluster: NatsCluster) -> None:
    case.write_file(_on(cluster))
    case.create_topic()
    process = case.start_plain()
    with case.load():
        case.wait_count(1000)
        lost = cluster.names[:2]
        for name in lost:
            cluster.kill(name)
        wait_until(lambda: "NATS" in json.dumps(case.ask()), "a leg that waits for NATS")
        rows = case.count()
        for name in lost:
            cluster.start(name)
        case.wait_count(rows + 1000)
    wait_until(lambda: case.count() == case.good, "all rows")
    _stop(process)
    case.check()


def test_streams_that_are_there_get_the_replicas_of_the_file(case: PipelineCase, cluster: NatsCluster) -> None:
    streams = [case.names.stream(role) for role in all_roles(1)]
    case.create_topic()
    for replicas, expected in ((None, 1), (3, 3), (None, 3), (1, 1)):
        case.write_file(_on(cluster, replicas))
        case.send_events(300, bad_every=100)
        assert case.run_plain().returncode == 0
        log = case.log()
        assert {state.settings.num_replicas for state in log.states(streams).values() if state is not None} == {expected}
        log.close()
        if expected == 3:
            for stream in streams:
                wait_until(partial(cluster.is_whole, stream), "all replicas of a stream")
    case.check()


def test_replicas_without_a_cluster_are_refused(case: PipelineCase) -> None:
    case.write_file(lambda document: document.update(resources={"nats": {"stream": {"replicas": 3}}}))
    case.create_topic()
    found = case.run_plain()
    assert found.returncode != 0
    assert "leave out `resources.nats.stream.replicas`, or name the servers of a NATS cluster in `nats.url`" in found.stderr
