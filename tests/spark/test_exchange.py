"""Work items over an exchange by bucket: every parcel to its bucket's task, and errors as what they are."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.pipeline_case import PipelineCase

from pipelines.config import parse
from pipelines.engine.connections import Connections
from pipelines.engine.execute import Exchange, Parcel, Tasks, Work, batch_tasks
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import DataLossError, HaltError, RetryableError, TallyflowError
from pipelines.testing import Sample

pytestmark = [pytest.mark.integration, pytest.mark.spark]

BUCKETS = 5


@pytest.fixture
def tasks(case: PipelineCase, session: SparkSession) -> Tasks:
    text = case.file.read_text()
    return batch_tasks(session, RunSpec.beside(text, parse(text, name="case", environment=case.environment())), {})


def test_every_parcel_reaches_the_task_of_its_bucket(tasks: Tasks) -> None:
    def first(_: Connections, item: Sample) -> Iterator[Parcel]:
        for number in item.numbers:
            yield number % 4, "number", str(number).encode()

    def second(_: Connections, item: Sample, bucket: int, parcels: list[tuple[str, bytes]]) -> Sample:
        kinds, numbers = tuple(sorted({kind for kind, _ in parcels})), tuple(int(payload) for _, payload in parcels)
        return Sample((bucket, *numbers), (*item.texts, *kinds))

    items = [Sample(tuple(range(start, 40, 3))) for start in range(3)]
    reports = tasks.exchange(Exchange(first, second, Sample, Sample, Sample), items, Sample(texts=("x",)), BUCKETS)
    found = {report.numbers[0]: report for report in reports}
    assert sorted(found) == [0, 1, 2, 3], "the bucket that nothing was sent to has no report"
    for bucket, report in found.items():
        assert report.texts == ("x", "number")
        assert sorted(report.numbers[1:]) == list(range(bucket, 40, 4))


ERRORS = [
    (RetryableError, "NATS did not answer", RetryableError, "^NATS did not answer$"),
    (DataLossError, "sequences are missing", DataLossError, "^sequences are missing$"),
    (ValueError, "a bug", HaltError, "running .* tasks: ValueError: a bug"),
]


@pytest.mark.parametrize(("raised", "words", "expected", "message"), ERRORS, ids=[kind.__name__ for kind, *_ in ERRORS])
def test_an_error_before_the_exchange_fails_the_whole_range(
    tasks: Tasks, tmp_path: Path, raised: type[Exception], words: str, expected: type[TallyflowError], message: str
) -> None:
    reached = str(tmp_path / "reached")

    def first(_: Connections, item: Sample) -> Iterator[Parcel]:
        yield 0, "number", b"1"
        if item.texts:
            raise raised(words)

    def second(_: Connections, item: Sample, bucket: int, parcels: list[tuple[str, bytes]]) -> Sample:
        Path(reached).write_text(json.dumps(bucket))
        return Sample()

    with pytest.raises(expected, match=message):
        exchange = Exchange(first, second, Sample, Sample, Sample)
        tasks.exchange(exchange, [Sample(), Sample(texts=("fails",))], Sample(), BUCKETS)
    assert not Path(reached).exists(), "a bucket worked on a part of the range"


def test_an_error_of_a_bucket_is_raised_as_itself(tasks: Tasks) -> None:
    def first(_: Connections, item: Sample) -> Iterator[Parcel]:
        yield from ((bucket, "number", b"1") for bucket in range(BUCKETS))

    def second(_: Connections, item: Sample, bucket: int, parcels: list[tuple[str, bytes]]) -> Sample:
        if bucket == 3:
            raise RetryableError("the disk is full")
        return Sample()

    with pytest.raises(RetryableError, match=r"^the disk is full$"):
        tasks.exchange(Exchange(first, second, Sample, Sample, Sample), [Sample()], Sample(), BUCKETS)


def test_variables_of_batch_tasks_override_the_workers(case: PipelineCase, session: SparkSession) -> None:
    def address(connections: Connections, _: Sample) -> Sample:
        return Sample(texts=(str(connections.config.nats.url),))

    work = Work(address, Sample, Sample)
    text, elsewhere = case.file.read_text(), {"NATS_URL": "nats://elsewhere:4222"}
    here = RunSpec.beside(text, parse(text, name="case", environment=case.environment()))
    there = RunSpec.beside(text, parse(text, name="case", environment={**case.environment(), **elsewhere}))
    assert batch_tasks(session, here, {}).run(work, [Sample()]) == [Sample(texts=("nats://" + case.addresses.nats_url.rpartition("@")[2],))]
    assert batch_tasks(session, there, elsewhere).run(work, [Sample()]) == [Sample(texts=("nats://elsewhere:4222",))]
    with pytest.raises(HaltError, match="means another configuration than in the driver, so nothing was done"):
        batch_tasks(session, there, {}).run(work, [Sample()])
