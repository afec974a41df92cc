"""A preview beside the pipeline that ran: rows, dead letters and counts of both, over the same records.

What the preview shows is put into a table of its own as JSON; ClickHouse then says whether the two tables hold the same.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipelines.config import load, parse
from pipelines.preview.declared import declared_program
from pipelines.preview.given import Given, frames_of
from pipelines.preview.readable import readable_rows
from pipelines.preview.run import Preview, preview
from pipelines.preview.stored import Span, raw_frames
from pipelines.process.program import Program
from pipelines.process.steps.mapping import MapToTable
from pipelines.protocol.records import decode_frame
from pipelines.protocol.tally import tally
from pipelines.types.columns import value_type
from support.pipeline_case import PipelineCase
from support.producer import make_producer
from support.random_programs import Recipe, Sent

ORDER = "ORDER BY _tf_sequence, _tf_ordinal, _tf_emit"


def play(case: PipelineCase, recipe: Recipe) -> None:
    """Produce the records of a recipe and run the pipeline over them."""
    for name, text in recipe.files.items():
        case.file.with_name(name).write_text(text)
    case.write_file(recipe.change)
    case.create_topic(3)
    share = -(-len(recipe.records) // recipe.parts)
    for first in range(0, len(recipe.records), share):
        produce(case, recipe.records[first : first + share])
        case.warm_run()


def produce(case: PipelineCase, records: Sequence[Sent]) -> None:
    producer = make_producer(case.addresses.kafka_client)
    for sent in records:
        producer.produce(case.topic, sent.value, sent.key, sent.partition, headers=list(sent.headers))
    assert producer.flush(60) == 0


def previews(case: PipelineCase) -> tuple[Program, list[Preview]]:
    """Return the previews of what raw holds: of its frames, and of the records alone, as `--input` would give them."""
    config = load(case.file, case.environment())
    program = declared_program(config)
    log = case.log()
    try:
        frames = list(raw_frames(log, case.names, Span(1, 2**60)).frames)
    finally:
        log.close()
    return program, [preview(program, frames), preview(program, frames_of(_given(frames), config.sources))]


def _given(frames: Sequence[Any]) -> list[Given]:
    given = []
    for frame in frames:
        for record in decode_frame(frame.message.payload).to_pylist():
            headers = tuple(record["headers"]) if record["headers"] is not None else None
            given.append(Given(record["value"], frame.message.time, record["key"], headers, record["partition"]))
    return given


def assert_equal(case: PipelineCase) -> Counter[str]:
    """Assert that the previews equal the pipeline; return how many records ended how."""
    program, (of_frames, of_records) = previews(case)
    letters = Counter(
        (one["_tf_partition"], one["_tf_offset"], one["stage"], one["code"], one["field"], one["message"]) for one in case.dead_letters()
    )
    assert _rejected(of_frames) == letters
    assert _counts(of_frames) == _tallied(case)
    for table in program.tables.tables:
        assert _stored(case, program, of_frames, table) == _table(case, table.table)
    assert [_fate(one) for one in of_records.records] == [_fate(one) for one in of_frames.records]
    return of_frames.outcomes()


def _fate(record: Any) -> tuple[Any, ...]:
    last = record.last
    return record.partition, record.offset, last.step, last.outcome, last.code, last.column, last.reason


def _rejected(found: Preview) -> Counter[Any]:
    last = [(record.partition, record.offset, record.last) for record in found.records if record.last.outcome == "rejected"]
    return Counter((partition, offset, seen.stage, seen.code, seen.column, seen.reason) for partition, offset, seen in last)


def _counts(found: Preview) -> dict[str, int]:
    """Return what the tally would say of the records."""
    names = {"row": "written to out", "duplicate": "duplicates dropped", "rejected": "dead letters"}
    counts: Counter[str] = Counter()
    for last in (record.last for record in found.records):
        counts[names.get(last.outcome, _dropped_by(last.step))] += len(last.rows) if last.outcome == "row" else 1
    return dict(counts)


def _dropped_by(step: str) -> str:
    return {"mapping": "taken by no sink", "python": "dropped by function"}.get(step, f"dropped by {step}")


def _tallied(case: PipelineCase) -> dict[str, int]:
    log = case.log()
    account = tally(log, case.names, parse(case.file.read_text(), name="case", environment=case.environment()).topology)
    log.close()
    assert (account.residue, {leg.waiting for leg in account.legs}) == (0, {0})
    process = next(leg for leg in account.legs if leg.leg == "process")
    return {name: count for name, count in process.outcomes.items() if count}


def _stored(case: PipelineCase, program: Program, found: Preview, table: MapToTable) -> str:
    """Put the rows that are shown of a table into one like it and return its content."""
    copy = f"{table.table}_preview"
    case.client().command(f"CREATE OR REPLACE TABLE {copy} AS {table.table}")
    shapes = [column.name for column in table.columns if value_type(column.type).name == "Geometry"]
    for name in shapes:
        # ClickHouse reads no geometry from JSON: what is compared is its text.
        case.client().command(f"ALTER TABLE {copy} MODIFY COLUMN {name} Nullable(String)")
    ended = [record.last for record in found.records if record.last.outcome == "row"]
    shown = [readable_rows(row, program) for last in ended for row in last.rows]
    rows_of_table = [row for rows in shown for of, row in rows if of is table]
    for row in rows_of_table:
        row |= {name: _shape_text(row[name]["coordinates"]) for name in shapes if row.get(name)}
        for column in table.columns:
            if column.type.startswith("Nested(") and column.name in row:
                row |= _parts(column.name, row.pop(column.name))
    lines = [json.dumps(row, default=_plain, ensure_ascii=False) for row in rows_of_table]
    settings = {"date_time_input_format": "best_effort"}
    if lines:
        block = "\n".join(lines).encode("utf-8", "surrogateescape")
        case.client().raw_insert(copy, insert_block=block, settings=settings, fmt="JSONEachRow")
    return _table(case, copy)


def _parts(name: str, elements: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return a value of a Nested as the table holds it: an array for each of its parts."""
    members = elements[0] if elements else {}
    return {f"{name}.{member}": [element[member] for element in elements] for member in members}


def _shape_text(coordinates: Sequence[Any]) -> str:
    """Return coordinates of GeoJSON as ClickHouse writes a geometry."""
    if coordinates and isinstance(coordinates[0], float):
        return f"({','.join(f'{number:g}' for number in coordinates)})"
    return f"[{','.join(map(_shape_text, coordinates))}]"


def _plain(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _table(case: PipelineCase, table: str) -> str:
    content: bytes = case.client().raw_query(f"SELECT * FROM {table} {ORDER}", fmt="TabSeparatedWithNames")
    return content.decode("utf-8", "surrogateescape")
