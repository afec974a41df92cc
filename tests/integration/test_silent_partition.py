"""A partition that loses its leader while the pipeline runs, or has none at a start: it stops alone, is named, and loses nothing."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Uuid
from support.kafka_mock import MockKafka, Record
from support.pipeline_case import PipelineCase, wait_until

import pipelines.engine.leg
from pipelines.config import load
from pipelines.connectors.kafka import client as kafka
from pipelines.connectors.kafka.client import KafkaTopic, topic_facts
from pipelines.connectors.sources import SourceFacts, open_source
from pipelines.errors import RetryableError
from pipelines.protocol.bodies import INGEST_CHAIN
from pipelines.protocol.ledger import Entry, read_chain
from pipelines.protocol.tally import tally
from pipelines.runner.pace import Pace
from pipelines.runner.status import StatusServer
from pipelines.testing import SINGLE

pytestmark = [pytest.mark.integration, pytest.mark.crash]

NOON_MS = 1_767_960_000_000


def facts(topic: KafkaTopic, timeout_seconds: float = 10) -> SourceFacts:
    """What the topic's description would say: the mock cluster has no controller, which would be asked for it."""
    found = topic._admin.list_topics(topic._topic, timeout=timeout_seconds)
    return topic_facts(str(Uuid(0, 0)), found.topics[topic._topic].partitions)


@pytest.fixture
def cluster(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> Iterator[MockKafka]:
    """Two partitions of the case's topic, each on a broker of its own."""
    monkeypatch.setattr(KafkaTopic, "facts", facts)
    with MockKafka(case.topic, partitions=2, brokers=2) as made:
        for partition in (0, 1):
            made.give_leader(partition, partition + 1)

        def there(document: dict[str, Any]) -> None:
            document["sources"][0]["connection_params"] = {"brokers": made.bootstrap.split(",")}

        case.write_file(there)
        yield made
        case.end()


def events(numbers: Sequence[int]) -> list[Record]:
    return [(json.dumps({"id": number, "name": "n", "amount": 1.0}).encode(), NOON_MS, []) for number in numbers]


def ledger(case: PipelineCase) -> list[Entry]:
    stream = case.names.stream("ledger")
    with closing(case.log()) as log:
        last = read_chain(log, case.names, INGEST_CHAIN).sequence
        return [INGEST_CHAIN.decode(message) for message in log.fetch(stream, case.names.chain("ingest"), 0, last)]


def loses_its_leader_in_the_first_plan(case: PipelineCase, cluster: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition 1, of which the plan has records that nobody has read yet."""
    reach, lost = pipelines.engine.leg.reach, list[str]()

    def lose(point: str) -> None:
        if point == "leg.after-plan" and not lost:
            with closing(case.log()) as log:
                plan = read_chain(log, case.names, INGEST_CHAIN).plan
            if plan is not None and plan.body.to["1"] > plan.body.start["1"]:
                cluster.take_leader(1)
                lost.append(point)
        reach(point)

    monkeypatch.setattr(pipelines.engine.leg, "reach", lose)


def test_a_leaderless_partition_in_a_plan_stops_alone(case: PipelineCase, cluster: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "GIVE_UP_SECONDS", 4.0)
    cluster.produce(0, events(range(100)))
    cluster.produce(1, events(range(1000, 1080)))
    runner = case.warm_runner(until_caught_up=False)
    runner.on_start = StatusServer
    loses_its_leader_in_the_first_plan(case, cluster, monkeypatch)
    case.in_background(runner)
    case.wait_count(100)
    cluster.produce(0, events(range(100, 150)))
    case.wait_count(150)
    shown = case.ask()
    assert shown is not None
    assert shown["lag"] == {"0": 0}
    assert f"partition 1 of {case.topic} does not answer: " in shown["legs"]["ingest"]["message"]
    with closing(case.log()) as log:
        account = tally(log, case.names, SINGLE)
        config = load(case.file, case.environment())
        pace = Pace(log, case.names, SINGLE, {SINGLE.ingests[0]: open_source(config, config.sources[0].source_id)}, {})
        pace.look(0.0)
        cluster.produce(0, events(range(150, 160)))
        case.wait_count(160)
        pace.look(10.0)
    assert (account.residue, [leg.rows_in for leg in account.legs]) == (0, [150, 150, 150])
    assert pace.legs["ingest"].rows_per_second == 1
    cluster.give_leader(1, 2)
    case.wait_count(240)
    runner.request_stop()
    positions = Counter(position for position, *_ in case.rows())
    assert positions == Counter([*((0, offset) for offset in range(160)), *((1, offset) for offset in range(80))])
    narrowed = [entry.body for entry in ledger(case) if getattr(entry.body, "standing", ())]
    assert [(body.standing, body.to["1"], body.rest) for body in narrowed] == [(("1",), 0, {"1": 80})]


def test_a_start_beside_a_silent_partition_reads_the_others(case: PipelineCase, cluster: MockKafka) -> None:
    cluster.produce(0, events(range(10)))
    cluster.produce(1, events(range(1000, 1010)))
    case.warm_run()
    assert case.count() == 20
    cluster.produce(0, events(range(10, 20)))
    cluster.produce(1, events(range(1010, 1020)))
    cluster.take_leader(1)
    with pytest.raises(RetryableError, match=f"partition 1 of {case.topic} does not answer: "):
        case.warm_run(connect_seconds=1)
    assert case.count() == 20
    assert any(text.startswith(f"waiting: partition 1 of {case.topic} does not answer: ") for text in case.reported)
    case.in_background(case.warm_runner(until_caught_up=False))
    case.wait_count(30)
    case.end()
    cluster.give_leader(1, 2)
    case.warm_run()
    assert case.count() == 40


def test_an_end_moved_back_is_found_when_a_leader_is_there(case: PipelineCase, cluster: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.produce(0, events(range(10)))
    cluster.produce(1, events(range(1000, 1010)))
    case.warm_run()
    cluster.take_leader(1)
    runner = case.warm_runner(until_caught_up=False)
    case.in_background(runner)
    heard = KafkaTopic.heard

    def gone_back(topic: KafkaTopic, asked: Any) -> Any:
        ends, silent = heard(topic, asked)
        return {partition: min(end, 7) if partition == 1 else end for partition, end in ends.items()}, silent

    monkeypatch.setattr(KafkaTopic, "heard", gone_back)
    cluster.give_leader(1, 2)
    wait_until(lambda: runner.legs["ingest"].failure, "a halt")
    assert "partition 1 at 7, and 10 was confirmed" in str(runner.legs["ingest"].failure)
