"""Records as they pass a stream of a pipeline: raw ones, rows of a table, or dead letters. Read only, and no consumer is made in NATS.

Frames that are purged before they are read are not shown: a tap is a look, and no proof.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import PipelineConfig
from pipelines.config.source_ids import chosen_source
from pipelines.connectors.nats.client import JetStream, fetch_whole
from pipelines.errors import ConfigurationError, Fault, RetryableError
from pipelines.protocol.existence import check_started
from pipelines.protocol.naming import Names, is_tick, source_of_subject, subject_token
from pipelines.protocol.records import HEADER_TOPIC, POSITION_COLUMNS, Message, decode_frame, describe_frame
from pipelines.protocol.topology import LegId

Point = Literal["raw", "out", "dlq"]
POINTS: tuple[Point, ...] = ("raw", "out", "dlq")
_POLL_SECONDS = 0.25
_PATIENCE_SECONDS = 15.0
"""A replica that lags, or a server that restarts, is waited for so long."""


class Tap:
    """A look at one point of a pipeline.

    `source_id`: only records of this source, at raw and dlq. `sink_id`: the table whose rows are looked at, at out.
    `key`: only records with this Kafka key, at raw and dlq; at out only rows whose columns hold this dedup key, a value for each field.
    Raise ConfigurationError for an id that the file does not have, and for a key that cannot be compared.
    """

    def __init__(
        self,
        config: PipelineConfig,
        log: JetStream,
        at: Point,
        source_id: str | None = None,
        sink_id: str | None = None,
        key: Sequence[str] = (),
    ) -> None:
        self._config, self._log, self._at = config, log, at
        self._names = Names(config.pipeline_id)
        self._source = chosen_source(config, source_id).source_id if source_id is not None else None
        sink = _sink_leg(config, sink_id) if at == "out" else None
        role = sink.input_role if sink else at
        self._stream, self._subjects = self._names.stream(role), self._names.subjects(role)
        if at == "raw" and self._source is not None:
            self._subjects = f"{self._subjects.removesuffix('>')}{subject_token(self._source)}.>"
        self.key_columns = _key_columns(config, sink, key)
        """The columns that the key is compared with, each with its value."""

    def beginning(self, is_now: bool) -> int:
        """Return the sequence after which the tap begins: the present end, or that before the first frame that is left.

        Raise HaltError for a pipeline that was never started.
        """
        check_started(self._log, self._names)
        state = self._log.state(self._stream)
        if state is None:
            return 0
        return state.last_sequence if is_now else state.first_sequence - 1

    def records(self, after: int, is_over: Callable[[], bool] = lambda: False) -> Iterator[dict[str, Any]]:
        """Yield, as JSON values, the records behind the sequence `after`, then those that come.

        `is_over`: whether to end, asked at the end of the stream. Raise RetryableError if NATS stays away.
        """
        failing_since: float | None = None
        while True:
            try:
                for message in self._newer(after):
                    yield from self._selected(message)
                    after = message.sequence
                failing_since = None
            except RetryableError:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > _PATIENCE_SECONDS:
                    raise
            if is_over():
                return
            time.sleep(_POLL_SECONDS)

    def _newer(self, after: int) -> Iterator[Message]:
        state = self._log.state(self._stream)
        if state is None or state.last_sequence <= after:
            return
        last = self._log.last(self._stream, self._subjects)
        if last is not None and last.sequence > after:
            yield from fetch_whole(self._log, self._stream, self._subjects, after, last.sequence)

    def _selected(self, message: Message) -> Iterator[dict[str, Any]]:
        if is_tick(message.subject) or (self._at != "dlq" and not message.rows):
            return
        frame = decode_frame(message.payload, describe_frame(message))
        if self._at == "raw":
            # Numbers of the records are their ordinals.
            frame = frame.append_column("_tf_ordinal", pa.array(range(frame.num_rows), pa.uint32()))
        for column, value in self.key_columns:
            frame = frame.filter(pa.array([_text(found) == value for found in frame.column(column).to_pylist()], pa.bool_()))
        if self._at == "dlq" and self._source is not None:
            frame = frame.filter(pc.fill_null(pc.equal(frame.column("source"), self._source), False))
        shown = {"raw": self._raw, "out": _row, "dlq": _dead_letter}[self._at]
        yield from (json_value(shown(row, message)) for row in frame.to_pylist())

    def _raw(self, row: dict[str, Any], message: Message) -> dict[str, Any]:
        return {
            "position": f"{message.sequence}.{row['_tf_ordinal']}",
            "source": source_of_subject(message.subject) if len(self._config.sources) > 1 else self._config.sources[0].source_id,
            "topic": message.headers.get(HEADER_TOPIC, ""),
            "partition": row["partition"],
            "offset": row["offset"],
            "at": message.time,
            "timestamp": row["timestamp"],
            **_record(row),
        }


def _row(row: dict[str, Any], message: Message) -> dict[str, Any]:
    return {**_place(row), "at": message.time, "row": {name: value for name, value in row.items() if name not in POSITION_COLUMNS}}


def _dead_letter(row: dict[str, Any], message: Message) -> dict[str, Any]:
    why = {name: row[name] for name in ("source", "stage", "code", "field", "message", "sink")}
    return {**_place(row), "at": message.time, **why, **_record(row)}


def _place(row: dict[str, Any]) -> dict[str, Any]:
    coordinates = {name: row[f"_tf_{name}"] for name in ("topic", "partition", "offset")}
    # A record of which a function makes several rows has as many, each with its number.
    emit = f".{row['_tf_emit']}" if row.get("_tf_emit") else ""
    return {"position": f"{row['_tf_sequence']}.{row['_tf_ordinal']}{emit}", **coordinates}


def _record(row: dict[str, Any]) -> dict[str, Any]:
    """Return what Kafka holds of a record; of one that was too large, its head and its size."""
    whole = {"value_bytes": row["oversize"]["bytes"]} if row["oversize"] else {}
    return {"headers": row["headers"] or [], "key": row["key"], "value": row["value"], **whole}


def _sink_leg(config: PipelineConfig, sink_id: str | None) -> LegId:
    """Return the leg of a sink of rows; without an id, the only one. Raise ConfigurationError for another id, and for none of several."""
    sinks = {config.topology.file_id(leg): leg for leg in config.topology.sinks}
    if sink_id is None and len(sinks) == 1:
        return next(iter(sinks.values()))
    if sink_id not in sinks:
        asked = "several sinks, so one must be named" if sink_id is None else f"no sink {sink_id!r}"
        raise ConfigurationError(f"pipeline {config.pipeline_id}", [Fault("sinks", f"it has {asked}: {', '.join(filter(None, sinks))}")])
    return sinks[sink_id]


def _key_columns(config: PipelineConfig, sink: LegId | None, key: Sequence[str]) -> tuple[tuple[str, str], ...]:
    if not key:
        return ()
    if sink is None:
        if len(key) > 1:
            raise ConfigurationError("--key", [Fault("", "a record has one Kafka key: give --key once")])
        return (("key", key[0]),)
    # Of a join each side may have a dedup of its own; that of the joined records has no source.
    dedups = [transform for transform in config.transforms if transform.type == "dedup"]
    fields = next((each.config.key for each in sorted(dedups, key=lambda each: each.source_id is not None)), ())
    columns = {mapped.name: mapped.column_name for mapped in config.seen_from(sink).sink.mapping}
    if len(fields) != len(key) or not columns.keys() >= {*fields}:
        known = f"the dedup key is {', '.join(fields)}, each of which must be mapped" if fields else "the pipeline has no dedup"
        what = f"at out it is compared with the columns of the dedup key, a --key for each field; {known}"
        raise ConfigurationError("--key", [Fault("", what)])
    return tuple((columns[field], value) for field, value in zip(fields, key, strict=True))


def _text(value: Any) -> str | None:
    """Return a value as a user writes it; None for null."""
    shown = json_value(value)
    return shown if shown is None or isinstance(shown, str) else json.dumps(shown)


def json_value(value: Any) -> Any:
    """Return a value of a record as JSON has it.

    Bytes are text, or in hex where they are none; instants in ISO 8601; numbers that JSON lacks, such as NaN, and decimals are text.
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"hex:{value.hex()}"
    if isinstance(value, dict):
        return {str(name): json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    return str(value)
