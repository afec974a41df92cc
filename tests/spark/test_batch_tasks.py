"""Work items as Spark tasks: reports in the order of the items, and errors as what they are."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.pipeline_case import PipelineCase

from pipelines.config import parse
from pipelines.engine.connections import Connections
from pipelines.engine.execute import Tasks, Work, batch_tasks
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import DataLossError, HaltError, RetryableError, TallyflowError
from pipelines.testing import Sample

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.fixture
def tasks(case: PipelineCase, session: SparkSession) -> Tasks:
    text = case.file.read_text()
    return batch_tasks(session, RunSpec.beside(text, parse(text, name="case", environment=case.environment())), {})


def test_each_item_has_its_report_in_their_order(tasks: Tasks) -> None:
    def doubled(_: Connections, item: Sample) -> Sample:
        return Sample(tuple(2 * number for number in item.numbers))

    items = [Sample((number, number + 1)) for number in range(5)]
    assert tasks.run(Work(doubled, Sample, Sample), items) == [Sample((2 * number, 2 * number + 2)) for number in range(5)]


def test_workers_take_memory_from_the_system(tasks: Tasks) -> None:
    """The pool that a first use would choose clears each page anew that it has given back."""

    def pool(_: Connections, item: Sample) -> Sample:
        return Sample(texts=(pa.default_memory_pool().backend_name,))

    assert tasks.run(Work(pool, Sample, Sample), [Sample()]) == [Sample(texts=("system",))]


ERRORS = [
    (RetryableError, "NATS did not answer", RetryableError, "^NATS did not answer$"),
    (DataLossError, "sequences are missing", DataLossError, "^sequences are missing$"),
    (ValueError, "a bug", HaltError, "running .* tasks: ValueError: a bug"),
]


@pytest.mark.parametrize(("raised", "words", "expected", "message"), ERRORS, ids=[kind.__name__ for kind, *_ in ERRORS])
def test_an_error_of_one_item_is_raised_as_itself(
    tasks: Tasks, raised: type[Exception], words: str, expected: type[TallyflowError], message: str
) -> None:
    def fail(_: Connections, item: Sample) -> Sample:
        if item.texts:
            raise raised(words)
        return Sample()

    with pytest.raises(expected, match=message):
        tasks.run(Work(fail, Sample, Sample), [Sample(), Sample(texts=("fails",))])


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
