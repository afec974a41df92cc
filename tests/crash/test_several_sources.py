"""Two Kafka clusters into one table: runners killed at failpoints and at random, one cluster away; each by an account of its own."""

import os
import random
import time
from collections.abc import Iterator

import pytest
from support.pipeline_case import PipelineCase, wait_until
from support.union_case import DEDUP, Union

from pipelines.protocol.failpoints import VARIABLE
from resources.local.kafka.broker import Kafka
from resources.local.stack import LocalStack

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("brief_inserts", "brief_brokers")]
KILLS = int(os.environ.get("TALLYFLOW_SOURCE_KILLS", "3"))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory, brief_brokers: None) -> Iterator[LocalStack]:
    """Another Kafka cluster."""
    stack = LocalStack(tmp_path_factory.mktemp("second"), kinds=[Kafka()])
    stack.up()
    yield stack
    stack.down()


class Sent:
    """Ids sent to both sources: half of those of `crm` are copies of the events before, and every 50th record is broken."""

    def __init__(self, union: Union) -> None:
        self.union, self.ids, self.last = union, {"events": list[int](), "crm": list[int]()}, 0

    def more(self, count: int) -> None:
        first, self.last = self.last, self.last + count
        self.to("events", range(first, first + count))
        self.to("crm", range(first + count // 2, first + count + count // 2))

    def to(self, source: str, ids: range) -> None:
        named = [one if one % 50 else -1 for one in ids]
        self.ids[source] += named
        self.union.send(source, named)


@pytest.mark.parametrize(
    "points",
    [
        ("process.between-frames:1", "leg.before-commit:2", "sink.after-insert:1"),
        ("process.after-state:1", "leg.after-plan:3", "process.after-publish:1"),
    ],
)
def test_a_union_is_exact_after_kills_at_failpoints(case: PipelineCase, second: LocalStack, points: tuple[str, ...]) -> None:
    union = Union(case, second.addresses(), DEDUP)
    case.warm_run()
    sent = Sent(union)
    for point in points:
        sent.more(200)
        killed = case.run_plain(**{VARIABLE: point})
        assert killed.returncode == -9, (point, killed.stderr)
    case.warm_run()
    union.check(sent.ids)


def test_a_union_is_exact_after_kills_at_random(case: PipelineCase, second: LocalStack) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, union = random.Random(seed), Union(case, second.addresses(), DEDUP)
    sent = Sent(union)
    for _ in range(KILLS):
        process = case.start_plain()
        sent.more(chance.randrange(100, 400))
        time.sleep(chance.uniform(0, 1.5))
        process.kill()
        process.wait()
    case.warm_run()
    union.check(sent.ids)


def test_a_cluster_that_is_away_stops_its_own_source_only(case: PipelineCase, second: LocalStack) -> None:
    union = Union(case, second.addresses(), DEDUP)
    sent = Sent(union)
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    sent.more(100)
    wait_until(lambda: len(union.rows()) == len({one for ids in sent.ids.values() for one in ids if one >= 0}), "rows of both")
    server = second.server("kafka")
    server.kill()
    before = len(union.rows())
    sent.to("events", range(1001, 1040))
    wait_until(lambda: len(union.rows()) == before + 39, "rows of the other source")
    server.start()
    sent.to("crm", range(1020, 1049))
    wait_until(lambda: len(union.rows()) == before + 48, "rows of the source that was away")
    runner.request_stop()
    thread.join()
    case.warm_run()
    union.check(sent.ids)
