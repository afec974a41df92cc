"""The account that a program from outside makes of a run: it is even, or it names what differs."""

import pytest
from support.dedup_case import event, keyed_by
from support.hosts_case import count_outside
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration

RECORDS: list[bytes | None] = [event(0, 1), event(1, 2), b"{", event(3, 1), event(4, 5), event(5, 6)]
"""Keys by partition: 1, 1 in the first, 2, 5 in the second, 6 behind a broken record in the third."""


@pytest.fixture
def ran(case: PipelineCase) -> PipelineCase:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(RECORDS)
    case.warm_run()
    return case


def test_an_even_account_has_the_first_of_each_key(ran: PipelineCase) -> None:
    counts = count_outside(ran)
    assert {name: counts[name] for name in ("records", "keys", "rows", "dead letters")} == {
        "records": 6,
        "keys": 4,
        "rows": 4,
        "dead letters": 1,
    }


COLUMNS = "_tf_sequence, _tf_ordinal, _tf_emit, _tf_topic, _tf_partition, _tf_offset, _tf_arrival, id, name, amount"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("DELETE FROM {} WHERE id = 2", {"lost rows": 1, "rows too many": 0}),
        (f"INSERT INTO {{}} ({COLUMNS}) SELECT {COLUMNS} FROM {{}} WHERE id = 2", {"lost rows": 0, "rows too many": 1}),
        ("ALTER TABLE {} UPDATE _tf_offset = 1, name = 'record 3' WHERE id = 1", {"lost rows": 1, "rows too many": 1}),
    ],
    ids=["lost", "doubled", "a copy for the first"],
)
def test_a_row_that_differs_is_counted(ran: PipelineCase, change: str, found: dict[str, int]) -> None:
    ran.client().command(change.replace("{}", ran.table), settings={"mutations_sync": 1})
    _is_uneven(ran, found)


def test_a_record_without_a_dead_letter_is_counted(ran: PipelineCase) -> None:
    ran.send([b"no object"])
    _is_uneven(ran, {"lost dead letters": 1, "lost rows": 0})


def _is_uneven(case: PipelineCase, found: dict[str, int]) -> None:
    with pytest.raises(AssertionError) as uneven:
        count_outside(case)
    for name, count in found.items():
        assert f'"{name}": {count}' in str(uneven.value)
