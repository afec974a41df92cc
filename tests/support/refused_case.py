"""Cases with a table that refuses some rows."""

import re

from support.pipeline_case import PipelineCase

BAD = [7, 107, 207, 307]


def make_strict(case: PipelineCase) -> None:
    """Makes the pipeline's table, and then a constraint on it that refuses the events of BAD."""
    case.create_topic()
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT seven CHECK id % 100 != 7")


def mend(case: PipelineCase) -> None:
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT seven")


def refused(case: PipelineCase) -> list[int]:
    """Numbers of the events that are dead letters of the sink."""
    dead_letters = [dead_letter for dead_letter in case.dead_letters() if dead_letter["stage"] == "sink"]
    assert {dead_letter["code"] for dead_letter in dead_letters} <= {"refused"}
    return sorted(int(re.findall(rb'"id": (\d+)', dead_letter["value"])[0]) for dead_letter in dead_letters)


PER_PART = {
    "sorting key": "ORDER BY (toDecimal64(name, 2), _tf_sequence)",
    "skip index": "INDEX",
    "projection": "PROJECTION",
    "TTL": "ORDER BY _tf_sequence TTL toDateTime('2100-01-01 00:00:00') + INTERVAL toInt32(toDecimal64(name, 2)) SECOND",
}
"""What is evaluated while a part is written, for `make_parted`."""


def event(number: int, name: str) -> bytes:
    return b'{"id": %d, "name": "%s", "amount": 1.5}' % (number, name.encode())


def make_parted(case: PipelineCase, kind: str, partition_by: str = "id % 5") -> None:
    """Makes the pipeline's table anew, with partitions and an expression that reads `name` as a decimal while a part is written."""
    case.create_topic()
    case.warm_run()
    client = case.client()
    definition = str(client.query(f"SHOW CREATE TABLE {case.table}").result_rows[0][0])
    client.command(f"DROP TABLE {case.table}")
    order = "ORDER BY (_tf_sequence, _tf_ordinal, _tf_emit)"
    assert order in definition
    clause = PER_PART[kind]
    if clause in ("INDEX", "PROJECTION"):
        what = (
            "INDEX i toDecimal64(name, 2) TYPE minmax"
            if clause == "INDEX"
            else "PROJECTION p (SELECT toDecimal64(name, 2) AS x ORDER BY x)"
        )
        definition = definition.replace("\n)\n", f",\n    {what}\n)\n", 1)
        clause = order
    client.command(definition.replace(order, f"PARTITION BY {partition_by} {clause}"))


def positions(case: PipelineCase) -> tuple[int, int]:
    """Rows of the table, and how many positions they have."""
    asked = f"SELECT count(), uniqExact(_tf_sequence, _tf_ordinal, _tf_emit) FROM {case.table}"
    rows, unique = case.client().query(asked).result_rows[0]
    return int(rows), int(unique)
