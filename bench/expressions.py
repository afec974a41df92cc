"""Filters, computed fields, two sources: CPU of the steps with them and without, from raw frames to the columns, in one process."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from pipelines.collection import collect_rarely
from pipelines.config import parse
from pipelines.preview.declared import declared_table
from pipelines.process.arrivals import Arrived
from pipelines.process.compile import compile_program
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.protocol.records import HEADER_BYTES, HEADER_PARTITION, HEADER_ROWS, HEADER_TOPIC, Message, cut_frames
from pipelines.testing import FIRST_INSTANT, records
from pipelines.types.duckdb import open_engine

EVENTS = 50_000
ROUNDS = 9
_FIELDS = ("id: int", "code: string", "country: string", "url: string", "price: float", "quantity: int", "at: string")
_FILTER = "price > 0 AND country <> 'XX'"
_COMPUTED = {
    "number": "CAST(code AS INTEGER)",
    "total": "price * quantity",
    "host": "split_part(url, '/', 3)",
    "is_large": "price > 100",
    "where_from": "upper(country)",
}
_TYPES = {"number": "Int32", "total": "Float64", "host": "String", "is_large": "Bool", "where_from": "LowCardinality(String)"}
_PLAIN = {"id": "Int64", "country": "LowCardinality(String)", "price": "Float64", "quantity": "Int32", "at": "DateTime64(3)"}


@dataclass(frozen=True)
class ExpressionCost:
    """CPU microseconds per event, all threads, median of interleaved rounds; `dead_letters`: of the last round."""

    name: str
    microseconds: float
    dead_letters: int


def measure(events: int = EVENTS, rounds: int = ROUNDS) -> list[ExpressionCost]:
    """Measure the steps without expressions, with a filter, with a filter and five fields, and the last with one failing row in 100.

    Last, those without expressions over the same records as of two sources, frame by frame.
    """
    sound, faulty = frames_of(events, 0), frames_of(events, 100)
    plain, filtered, whole = _program([], False), _program([_FILTER], False), _program([_FILTER], True)
    cases = [("parse and map", plain, sound), ("filter", filtered, sound), ("filter and five fields", whole, sound)]
    cases.append(("filter and five fields, 1 % fail", whole, faulty))
    cases.append(("parse and map, two sources", program_of([], {}, sources=("events", "others")), _of_two(sound)))
    spent: dict[str, list[float]] = {name: [] for name, *_ in cases}
    letters = {}
    collect_rarely()
    with open_engine() as engine:
        for number in range(rounds + 2):
            for name, program, frames in cases:
                begun = time.process_time()
                made = run(program, engine, frames)
                if number >= 2:
                    spent[name].append((time.process_time() - begun) / events * 1e6)
                letters[name] = made.dead_letters.num_rows
    return [ExpressionCost(name, median(found), letters[name]) for name, found in spent.items()]


def _program(filters: list[str], computes: bool) -> Program:
    transforms: list[dict[str, Any]] = [{"type": "filter", "config": {"expression": text}} for text in filters]
    if computes:
        made = [{"name": name, "expression": text} for name, text in _COMPUTED.items()]
        transforms.append({"type": "compute", "config": {"fields": made}})
    return program_of(transforms, _TYPES if computes else {})


def program_of(
    transforms: list[dict[str, Any]],
    columns: dict[str, str],
    directory: Path | None = None,
    sources: Sequence[str] = ("events",),
    tables: Mapping[str, Any] | None = None,
) -> Program:
    """The program with these transforms, for the columns of the plain one and `columns`. `directory`: where code of functions lies."""
    fields = [dict(zip(("name", "type"), field.split(": "), strict=True)) for field in _FIELDS]
    document = {
        "version": "v3",
        "pipeline_id": "bench-expressions",
        "sources": [
            {"type": "kafka", "topic": topic, "connection_params": {"brokers": ["localhost:1"]}, "schema_fields": fields}
            for topic in sources
        ],
        "transforms": transforms,
        **({"tables": tables} if tables else {}),
        "sink": {
            "type": "clickhouse",
            "connection_params": {"host": "localhost", "port": 8123},
            "table": "events",
            "mapping": [{"name": name, "column_name": name, "column_type": kind} for name, kind in (_PLAIN | columns).items()],
        },
    }
    config = parse(json.dumps(document), name="the bench", environment={})
    if directory is not None:
        for transform in config.transforms:
            transform.config.locate(directory)
    return compile_program(config, [declared_table(config)])


def _of_two(frames: Sequence[Arrived]) -> list[Arrived]:
    """Return the frames, every second one as of the source `others`."""
    return [
        replace(frame, message=replace(frame.message, subject="tf.bench.raw.others.0")) if number % 2 else frame
        for number, frame in enumerate(frames)
    ]


def frames_of(events: int, bad_every: int) -> list[Arrived]:
    """Events of about 200 bytes; the code of one in `bad_every` is no number."""
    values = [
        json.dumps(
            {
                "id": number,
                "code": "x" if bad_every and number % bad_every == 0 else str(number % 1000),
                "country": ("DE", "FR", "AT", "CH")[number % 4],
                "url": f"https://shop-{number % 50}.example.com/products/{number % 977}?ref=mail",
                "price": number % 20_000 / 100 + 0.5,
                "quantity": number % 7,
                "at": "2026-03-01T12:30:00.250Z",
                "filler": "x" * 20,
            }
        ).encode()
        for number in range(events)
    ]
    frames = []
    for sequence, (part, payload) in enumerate(cut_frames(records(0, values)), 1):
        headers = {HEADER_TOPIC: "events", HEADER_PARTITION: "0", HEADER_ROWS: str(part.num_rows), HEADER_BYTES: str(part.nbytes)}
        frames.append(Arrived(Message("tf.bench.raw.events.0", sequence, FIRST_INSTANT, payload, headers), sequence))
    return frames
