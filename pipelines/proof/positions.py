"""Compares the records of a topic with the table and the dead-letter queue: each must be there exactly once. The oracle of the demo.

Pure: it compares positions that `readers` read with clients of their own. It asks neither the ledger nor a stage.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.proof.report import Finding, Kind, Report

POSITION_SCHEMA = pa.schema([("_tf_topic", pa.string()), ("_tf_partition", pa.int32()), ("_tf_offset", pa.int64())])
"""The place of a record in Kafka; one row per occurrence, in any order."""
WHERE = "table and dead letters"


class PositionReport(Report):
    """The report of one comparison of positions; `pipeline` is the topic."""

    clean_means = "every record in Kafka is a row or a dead letter, once"

    def heading(self) -> Iterator[str]:
        """Yield the balance in one line."""
        counts = {**self.counts}
        records = counts.pop("records in Kafka")
        yield f"{records:,} records in Kafka = {' + '.join(f'{count:,} {name}' for name, count in counts.items())}"


def compare_positions(
    records: pa.Table,
    rows: pa.Table,
    dead_letters: pa.Table,
    expected_dead_letters: int | None = None,
    duplicates: pa.Table | None = None,
    examples: int = 5,
) -> PositionReport:
    """Compare positions as multisets: each of `records` must be in `rows` or `dead_letters`, exactly once in all; `duplicates` in neither.

    The tables need the columns of POSITION_SCHEMA (the topic may be a dictionary); others are ignored. `records` holds each position once.
    `expected_dead_letters`: the number of bad records produced, if known. Raise ValueError for a null.
    """
    none = POSITION_SCHEMA.empty_table()
    sources = {"records": records, "rows": rows, "dead_letters": dead_letters, "duplicates": none if duplicates is None else duplicates}
    counted = _counted(sources)
    held, is_record = pc.add(counted["rows"], counted["dead_letters"]), pc.greater(counted["records"], counted["duplicates"])
    counts = {"records in Kafka": len(records), "rows": len(rows), "dead letters": len(dead_letters)}
    report = PositionReport(records["_tf_topic"][0].as_py() if len(records) else "", counts)
    if duplicates is not None and len(duplicates):
        counts["duplicates"] = len(duplicates)
    faulty: dict[Kind, pa.Array] = {
        "missing": pc.and_(is_record, pc.equal(held, 0)),
        "doubled": pc.greater(held, 1),
        "extra": pc.and_(pc.invert(is_record), pc.greater(held, 0)),
    }
    for kind, is_faulty in faulty.items():
        found = counted.filter(is_faulty)
        report.find(WHERE, kind, found.num_rows, [_example(row) for row in found.slice(0, examples).to_pylist()])
    if expected_dead_letters not in (None, len(dead_letters)):
        example = {"expected": f"{expected_dead_letters:,} dead letters", "found": f"{len(dead_letters):,}"}
        report.findings.append(Finding("dead letters", "different", 1, None, [example]))
    return report


def _counted(sources: dict[str, pa.Table]) -> pa.Table:
    """Return each position once, sorted, with the number of times that each place holds it."""
    parts = []
    for name, table in sources.items():
        positions = table.select(POSITION_SCHEMA.names).cast(POSITION_SCHEMA)
        if any(column.null_count for column in positions.columns):
            raise ValueError("a position is null")
        for other in sources:
            positions = positions.append_column(other, pa.repeat(pa.scalar(int(other == name), pa.int64()), len(table)))
        parts.append(positions)
    groups = pa.concat_tables(parts).group_by(POSITION_SCHEMA.names).aggregate([(name, "sum") for name in sources])
    ordered = groups.select([*POSITION_SCHEMA.names, *(f"{name}_sum" for name in sources)]).rename_columns(
        [*POSITION_SCHEMA.names, *sources]
    )
    return ordered.sort_by([(name, "ascending") for name in POSITION_SCHEMA.names])


def _example(row: dict[str, object]) -> dict[str, object]:
    where = {"topic": row["_tf_topic"], "partition": row["_tf_partition"], "offset": row["_tf_offset"]}
    return {**where, "found": f"{row['rows']} in the table, {row['dead_letters']} dead letters"}


def duplicates_by_key(records: pa.Table) -> pa.Table:
    """Return the positions of records whose key an earlier record of their partition has: dedup by that key must drop them.

    `records`: POSITION_SCHEMA and `key`. Copies must have the Kafka key of their original, and so its partition, within one window; null
    keys are all different.
    """
    records = records.select([*POSITION_SCHEMA.names, "key"]).filter(pc.is_valid(records["key"]))
    order = [("key", "ascending"), ("_tf_partition", "ascending"), ("_tf_offset", "ascending")]
    ordered = records.sort_by(order).combine_chunks()
    if ordered.num_rows < 2:
        return POSITION_SCHEMA.empty_table()
    is_same = [pc.equal(ordered[name].slice(1), ordered[name].slice(0, ordered.num_rows - 1)) for name in ("key", "_tf_partition")]
    is_copy = pc.and_(*is_same)
    return ordered.slice(1).filter(is_copy).select(POSITION_SCHEMA.names)
