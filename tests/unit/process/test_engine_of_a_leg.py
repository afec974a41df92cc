"""A leg goes on with its engine, unless stages may have left it unusable: then the next batch has another one."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pipelines.engine.connections import Connections
from pipelines.process.isolation import INTERNAL_ERROR
from pipelines.process.run import in_engine


@pytest.fixture
def connections() -> Iterator[Connections]:
    run: Any = SimpleNamespace(config=SimpleNamespace(pipeline_id="p"), state_storage="")
    opened = Connections(run, keep_partitions=False)
    yield opened
    opened.discard_engine()


def rejected(*codes: str) -> pa.Table:
    return pa.table({"code": pa.array(codes, pa.string())})


@pytest.mark.parametrize(("codes", "is_kept"), [((), True), (("wrong_type", "missing"), True), (("wrong_type", INTERNAL_ERROR), False)])
def test_an_engine_that_a_record_may_have_ended_is_replaced(connections: Connections, codes: tuple[str, ...], is_kept: bool) -> None:
    used = connections.engine
    assert in_engine(connections, lambda engine, _: engine, lambda _: rejected(*codes)) is used
    assert (connections.engine is used) == is_kept


def test_after_an_error_of_the_work_the_next_has_another_engine(connections: Connections) -> None:
    used = connections.engine

    def work(*_: object) -> pa.Table:
        raise MemoryError

    with pytest.raises(MemoryError):
        in_engine(connections, work, lambda table: table)
    assert connections.engine is not used
