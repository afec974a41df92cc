"""Records made to break a parser, each in the middle of good ones: only they become dead letters, and at the first attempt."""

import pytest
from pyspark.sql import SparkSession
from support.bad_records import DEAD_LETTERS, KIB, ROWS, event
from support.pipeline_case import PipelineCase

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_poison_becomes_dead_letters_and_nothing_else_does(case: PipelineCase, way: None) -> None:
    case.create_topic(1, **{"max.message.bytes": str(8 * KIB * KIB)})
    values = [
        value
        for pair in zip((v for v, _ in [*DEAD_LETTERS.values(), *ROWS.values()]), map(event, range(100)), strict=False)
        for value in pair
    ]
    case.send(values, partitions=1)
    runner = case.warm_run()
    assert [leg.status.retries for leg in runner.legs.values()] == [0, 0, 0]
    case.check()
    # By content: a producer that sends again under load may change the order.
    names = {value: name for name, (value, _) in {**DEAD_LETTERS, **ROWS}.items()}
    records = case.records()
    dead_letters = {names.get(records[le["_tf_partition"], le["_tf_offset"]], "a good record"): le["code"] for le in case.dead_letters()}
    assert dead_letters == {name: code for name, (_, code) in DEAD_LETTERS.items()}
    rows = {names.get(records[position], "a good record"): tuple(row) for position, *row in case.rows()}
    del rows["a good record"]
    assert rows == {name: row for name, (_, row) in ROWS.items()}
    assert case.count() == len(DEAD_LETTERS) + 2 * len(ROWS)


def test_one_percent_of_poison_at_volume(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    case.create_topic()
    poison = [value for value, code in DEAD_LETTERS.values() if code == "invalid_json" and len(value) < 10_000]
    case.send(poison[number % len(poison)] if number % 100 == 50 else event(number) for number in range(100_000))
    case.warm_run()
    assert (case.count(), len(case.dead_letters())) == (99_000, 1000)
    case.check()
