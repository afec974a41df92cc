"""Dead letters in a file: JSON lines that operators and tools may read, edit, and import again.

A line holds one dead letter: its position, the reason of its rejection, and the record with `key`, `value` and `headers`. Bytes that are
UTF-8 are a string, others are {"base64": ...}, so every byte is restored. Of an edited file only `position`, `key`, `value` and `headers`
are read; fields that a line leaves out stay unchanged.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.dead_letters.triage import letter_position, position_as_text
from pipelines.errors import ConfigurationError, Fault
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA
from pipelines.protocol.positions import Position, record_position
from pipelines.protocol.records import FRAMING, MAX_RECORD_BYTES, RAW_SCHEMA, UNREADABLE_HEADER, Framing, record_bytes
from pipelines.protocol.redrive import MAX_PLAN_RANGES, RowRanges, ranges_of

MAX_FAULTS = 20
"""Limit of the reported faults: in a file of another program every line may be one."""
MAX_LINE_BYTES = 8 * MAX_RECORD_BYTES
"""Limit of a line: JSON writes a byte of text as six at most."""
_CONTENT = pa.schema([RAW_SCHEMA.field(name) for name in ("key", "value", "headers")])
_DESCRIBED = ("stage", "code", "field", "message", "fingerprint", "state", "attempts")


@dataclass(frozen=True)
class Edited:
    """Dead letters of a file: the new content of each, by its position."""

    name: str
    changes: dict[Position, dict[str, Any]]

    @property
    def positions(self) -> frozenset[Position]:
        return frozenset(self.changes)


def line_of(dead_letter: dict[str, Any]) -> str:
    """Return one dead letter, a row of `DEAD_LETTER_SCHEMA` with `fingerprint` and `state`, as a line without its end."""
    size = dead_letter["oversize"]
    record = {
        "position": position_as_text(dead_letter),
        "source": dead_letter["source"],
        "topic": dead_letter["_tf_topic"],
        "partition": dead_letter["_tf_partition"],
        "offset": dead_letter["_tf_offset"],
        "arrival": dead_letter["_tf_arrival"].isoformat(timespec="microseconds"),
        **{name: dead_letter[name] for name in _DESCRIBED},
        **({"value_bytes": size["bytes"], "value_sha256": size["sha256"].hex()} if size else {}),
        "key": _written(dead_letter["key"]),
        "headers": [[_written(name), _written(value)] for name, value in dead_letter["headers"] or []],
        "value": _written(dead_letter["value"]),
    }
    return json.dumps(record, ensure_ascii=False)


def _written(content: bytes | None) -> str | dict[str, str] | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def read_edited(path: Path) -> Edited:
    """Read the dead letters of an edited file. Raise ConfigurationError with the faults of all lines, the first MAX_FAULTS by line."""
    faults: list[Fault] = []
    changes: dict[Position, dict[str, Any]] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                too_long = f"is longer than {MAX_LINE_BYTES:,} bytes, the limit of a dead letter; the rest of the file was not read"
                faults.append(Fault(f"line {number}", too_long))
                break
            if not line.strip():
                continue
            try:
                position, change = _read_line(_decoded(line))
            except ValueError as error:
                faults.append(Fault(f"line {number}", str(error)))
                continue
            if position in changes:
                repeated = f"the dead letter at {position.sequence}.{position.ordinal} occurs twice"
                faults.append(Fault(f"line {number}", repeated))
            changes[position] = change
    if not faults and not changes:
        faults.append(Fault("", "it holds no dead letters; `tallyflow dlq export` writes such a file"))
    if len(faults) > MAX_FAULTS:
        faults = [*faults[:MAX_FAULTS], Fault("", f"and {len(faults) - MAX_FAULTS:,} more")]
    if faults:
        raise ConfigurationError(f"reading {path.name}", faults)
    return Edited(path.name, changes)


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None


def _read_line(line: str) -> tuple[Position, dict[str, Any]]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(record, dict) or not isinstance(record.get("position"), str):
        raise ValueError("must be an object with `position`, as `tallyflow dlq export` writes it")
    position = record_position(record["position"])
    change: dict[str, Any] = {name: _read_content(record[name], name) for name in ("key", "value") if name in record}
    if "headers" in record:
        if not isinstance(record["headers"], list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in record["headers"]):
            raise ValueError("headers must be a list of [name, value]")
        change["headers"] = [(_read_content(name, "headers"), _read_content(value, "headers")) for name, value in record["headers"]]
    (size,) = record_bytes(pa.Table.from_pylist([change], schema=_CONTENT)).tolist()
    if size > MAX_RECORD_BYTES:
        raise ValueError(f"the record has {size} bytes, more than the limit of {MAX_RECORD_BYTES}")
    return position, change


def _read_content(value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} holds half of a surrogate pair, which has no encoding; write the bytes as base64") from None
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"{name} is not base64: {error}") from None
    raise ValueError(f"{name} must be a string, null, or an object with base64")


def edited_frames(edited: Edited, found: Iterable[tuple[int, pa.Table]], framing: Framing = FRAMING) -> Iterator[tuple[RowRanges, bytes]]:
    """Yield (places, frame) of dead letters with their new content, in portions that one plan holds.

    `found` are the dead letters that may be taken, by frame, with `row`. An edited value is the whole record, even if the dead letter held
    only its head. Raise ConfigurationError, before the first portion, for such a dead letter without an edited value.
    """
    dead_letters = [(sequence, {**row, **edited.changes[letter_position(row)]}) for sequence, table in found for row in table.to_pylist()]
    faults = []
    for _, dead_letter in dead_letters:
        if "value" in edited.changes[letter_position(dead_letter)]:
            dead_letter["oversize"] = None
            dead_letter["headers"] = [pair for pair in dead_letter["headers"] or [] if pair[0] != UNREADABLE_HEADER]
        elif dead_letter["oversize"]:
            only_head = "the dead letter holds only the head of the record; add the whole record as `value`"
            faults.append(Fault(f"position {position_as_text(dead_letter)}", only_head))
    if faults:
        raise ConfigurationError(f"reading {edited.name}", faults)
    for start in range(0, len(dead_letters), MAX_PLAN_RANGES):
        portion = dead_letters[start : start + MAX_PLAN_RANGES]
        done = 0
        for part, payload in framing.cut(pa.Table.from_pylist([dead_letter for _, dead_letter in portion], schema=DEAD_LETTER_SCHEMA)):
            yield _row_ranges(portion[done : done + part.num_rows]), payload
            done += part.num_rows


def _row_ranges(dead_letters: list[tuple[int, dict[str, Any]]]) -> RowRanges:
    rows: dict[int, list[int]] = {}
    for sequence, dead_letter in dead_letters:
        rows.setdefault(sequence, []).append(dead_letter["row"])
    return [(sequence, ranges_of(np.array(found))) for sequence, found in rows.items()]
