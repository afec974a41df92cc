"""A join of two Kafka clusters under kills at failpoints and at random, of the runner and of NATS; each by an account from outside."""

import os
import random
import time
from collections.abc import Iterator

import pytest
from support.join_pipeline import JoinPipeline
from support.pipeline_case import PipelineCase

from pipelines.protocol.failpoints import VARIABLE
from resources.local.kafka.broker import Kafka
from resources.local.stack import LocalStack

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("brief_inserts", "brief_brokers")]
KILLS = int(os.environ.get("TALLYFLOW_JOIN_KILLS", "4"))
RECORDS = int(os.environ.get("TALLYFLOW_JOIN_RECORDS", "300"))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory, brief_brokers: None) -> Iterator[LocalStack]:
    """Another Kafka cluster."""
    stack = LocalStack(tmp_path_factory.mktemp("second"), kinds=[Kafka()])
    stack.up()
    yield stack
    stack.down()


def send(pipeline: JoinPipeline, chance: random.Random, count: int) -> None:
    """Records of both sides over few keys, so that each is met, replaced and waited for; every 50th is broken."""
    keys = max(10, count // 5)
    for source, share in (("events", 0.8), ("names", 0.2)) if chance.random() < 0.5 else (("names", 0.2), ("events", 0.8)):
        text = f"n{chance.randrange(10**6)} "
        pipeline.send(source, [-1 if chance.random() < 0.02 else chance.randrange(keys) for _ in range(int(count * share))], text)


@pytest.mark.parametrize(
    "points",
    [
        ("process.before-state:1", "process.after-state:3", "process.between-frames:2"),
        ("process.after-publish:1", "leg.before-commit:2", "sink.after-insert:1"),
    ],
)
@pytest.mark.parametrize("copies", [None, ("1h", "1h")], ids=["join", "dedup and join"])
def test_a_join_is_exact_after_kills_at_failpoints(
    case: PipelineCase, second: LocalStack, points: tuple[str, ...], copies: tuple[str, str] | None
) -> None:
    chance, pipeline = random.Random(7), JoinPipeline(case, second.addresses(), copies=copies)
    case.warm_run()
    for point in points:
        send(pipeline, chance, RECORDS)
        killed = case.run_plain(**{VARIABLE: point})
        assert killed.returncode == -9, (point, killed.stderr)
    case.warm_run()
    counts = pipeline.account()
    assert counts["joined"] > 0 and counts["waiting"] > 0 and counts["broken"] == len(case.dead_letters())
    assert (counts["copies"] > 0) == (copies is not None)


def test_a_join_by_time_is_exact_after_kills(case: PipelineCase, second: LocalStack) -> None:
    """At failpoints and at random; the times of both sides go on, with late records, and each side stands still for a while."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pipeline = JoinPipeline(case, second.addresses(), windows=("4s", "6s"), by_time=("1s", "1s"), unmatched="emit")
    case.warm_run()
    points = iter(("process.before-state:1", "process.after-state:2", "process.between-frames:1", "process.after-publish:1"))
    now_ms = 1_750_000_000_000

    def some(source: str) -> None:
        times = [now_ms + chance.randrange(-4_000, 1_000) for _ in range(RECORDS // 3)]
        keys = 45 if source == "events" else 40  # five that nothing on the right ever has
        pipeline.send(source, [chance.randrange(keys) for _ in times], f"n{now_ms} ", times.__getitem__)

    for number in range(KILLS + 4):
        now_ms += 3_000
        quiet = chance.choice(("events", "names", ""))
        if point := next(points, ""):
            for source in ("events", "names"):
                some(source)
            assert case.run_plain(**{VARIABLE: point}).returncode == -9, point
            continue
        process = case.start_plain()
        for source in {"events", "names"} - {quiet}:
            some(source)
        time.sleep(chance.uniform(0, 4 if quiet else 2))
        if number % 2:
            server = case.stack.server("nats")
            server.kill()
            server.start()
        process.kill()
        process.wait()
    now_ms += 20_000
    for source in ("events", "names"):
        some(source)
    case.warm_run()
    counts = pipeline.account()
    assert min(counts["joined"], counts["unmatched"], counts["late"]) > 0
    assert counts["late"] == len(case.dead_letters())


@pytest.mark.parametrize(("unmatched", "copies"), [("drop", None), ("emit", None), ("emit", ("2s", "3s"))])
def test_a_join_is_exact_after_kills_at_random(
    case: PipelineCase, second: LocalStack, unmatched: str, copies: tuple[str, str] | None
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pipeline = JoinPipeline(case, second.addresses(), windows=("4s", "6s"), unmatched=unmatched, copies=copies)
    for number in range(KILLS):
        process = case.start_plain()
        send(pipeline, chance, chance.randrange(RECORDS // 2, 2 * RECORDS))
        time.sleep(chance.uniform(0, 2))
        if number % 4 == 3:
            server = case.stack.server("nats")
            server.kill()
            server.start()
            time.sleep(chance.uniform(0, 1))
        process.kill()
        process.wait()
    case.warm_run()
    counts = pipeline.account()
    print(counts)
    assert counts["joined"] > 0
