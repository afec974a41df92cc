"""A first start begins where the file says, or where another consumer has stopped: nothing before is read, nothing behind is missed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.pipeline_case import PipelineCase, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]


def begin(case: PipelineCase, **where: Any) -> None:
    """Lets the file say where the first start begins."""
    case.write_file(lambda document: document["sources"][0].update(where))


def offsets(case: PipelineCase) -> dict[int, list[int]]:
    """The offsets in the table, by partition."""
    found = case.client().query(
        f"SELECT _tf_partition, arraySort(groupArray(_tf_offset)) FROM {case.table} GROUP BY _tf_partition ORDER BY _tf_partition"
    )
    return dict(found.result_rows)


@contextmanager
def consumer(case: PipelineCase, group: str) -> Iterator[Consumer]:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    made = Consumer({"log_level": 0, **case.addresses.kafka_client, **settings})
    yield made
    made.close()


def commit(case: PipelineCase, group: str, committed: dict[int, int]) -> None:
    """Leaves the offsets of a consumer that has ended."""
    with consumer(case, group) as one:
        one.commit(offsets=[TopicPartition(case.topic, *found) for found in committed.items()], asynchronous=False)


def refusal(case: PipelineCase) -> str:
    """What a start says that begins nothing."""
    ended = case.invoke("run", str(case.file), "--until-caught-up")
    assert ended.exit_code == 1, ended.output
    return " ".join(ended.output.split())


@pytest.mark.parametrize("initial", ["earliest", "latest"])
def test_a_first_start_begins_at_the_named_offsets(case: PipelineCase, initial: str) -> None:
    case.create_topic()
    case.send_events(30)
    begin(case, start_offsets={"0": 4, "2": 10}, consumer_group_initial_offset=initial)
    case.warm_run()
    case.send_events(3)
    # Later starts go on where the pipeline has stopped, whatever the file says.
    begin(case, start_offsets={"0": 1}, consumer_group_initial_offset=initial)
    case.warm_run()
    others = range(11) if initial == "earliest" else [10]
    assert offsets(case) == {0: [*range(4, 11)], 1: [*others], 2: [10]}
    for command in ("verify", "audit"):
        assert json.loads(case.invoke(command, str(case.file), "--json").stdout)["verdict"] == "clean"


def test_a_first_start_goes_on_behind_another_consumer(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(30)
    commit(case, f"old-{case.topic}", {0: 7, 1: 10})
    begin(case, start_group=f"old-{case.topic}")
    case.warm_run()
    assert offsets(case) == {0: [7, 8, 9], 2: [*range(10)]}
    assert json.loads(case.invoke("audit", str(case.file), "--json").stdout)["verdict"] == "clean"


def test_a_beginning_that_is_not_there_starts_nothing(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(30)
    begin(case, start_offsets={"3": 0})
    assert f"topic {case.topic} has no partition 3" in refusal(case)
    begin(case, start_offsets={"1": 11})
    assert f"partition 1 of topic {case.topic} ends at offset 10, so it cannot begin at 11" in refusal(case)
    group = f"old-{case.topic}"
    begin(case, start_group=group)
    assert f"consumer group {group} of start_group has committed no offset" in refusal(case)
    commit(case, group, {0: 5, 1: 5, 2: 5})
    with consumer(case, group) as running:
        running.subscribe([case.topic])
        wait_until(lambda: [running.poll(0.1), running.assignment()][1], "an assignment")
        assert f"consumer group {group} of start_group still has 1 member" in refusal(case)
    case.warm_run()
    assert offsets(case) == {partition: [*range(5, 10)] for partition in range(3)}
