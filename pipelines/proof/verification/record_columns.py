"""The kind and the text of the columns of a record beside its JSON, as SQL over raw frames (`reference.FRAME_SCHEMA`).

Independent of the stages: it implements docs/pipeline-file.md. Kinds are those of `json_type`, besides `BLOB`: bytes that are no text, or
of which none is asked for. The text of a column of bytes is these bytes, that of an instant its microseconds since 1970.
"""

from collections.abc import Sequence

from pipelines.proof.verification.values import literal
from pipelines.types.record_columns import RecordColumn

_NUMBERS = {"offset": '"offset"', "partition": '"partition"', "timestamp": "timestamp_us", "arrival": "arrival_us"}
_LAST_HEADERS = "list_filter(headers, lambda h, i: NOT list_contains(list_transform(headers[i + 1:], lambda o: o.name), h.name))"
"""The headers without those that a later one of their name replaces."""


def parts_read(columns: Sequence[RecordColumn]) -> set[str]:
    """Return the columns of raw frames that some of `columns` come from, and that are not read anyway."""
    return {str(column.origin) for column in columns} & {"key", "headers", "timestamp"}


def source_of(declared: str) -> str:
    """Return the type as which `values` reads a field of this declared type that does not come from JSON."""
    return "blob" if declared == "bytes" else declared


def kind_and_text(column: RecordColumn, topic: str) -> tuple[str, str]:
    """Return SQL of the kind and of the text of a column."""
    if column.origin in _NUMBERS:
        number = _NUMBERS[column.origin]
        return f"CASE WHEN {number} IS NULL THEN 'NULL' WHEN {number} < 0 THEN 'BIGINT' ELSE 'UBIGINT' END", f"{number}::VARCHAR"
    if column.origin == "topic":
        return "'VARCHAR'", literal(topic)
    if column.type == "map":
        return _headers()
    part = str(column.origin)
    if column.header:
        part = f"list_filter(headers, lambda h: h.name = encode({literal(column.header)}))[-1].value"
    if column.type == "bytes":
        return f"CASE WHEN {part} IS NULL THEN 'NULL' ELSE 'BLOB' END", part
    text = f"try(decode({part}))"
    return f"CASE WHEN {part} IS NULL THEN 'NULL' WHEN {text} IS NULL THEN 'BLOB' ELSE 'VARCHAR' END", text


def size() -> str:
    """Return SQL of the bytes of a record, its key and its headers included where they are read."""
    headers = "coalesce(list_sum(list_transform(headers, lambda h: octet_length(h.name) + coalesce(octet_length(h.value), 0))), 0)"
    return f"coalesce(octet_length(value), 0) + coalesce(octet_length(key), 0) + {headers}"


def _headers() -> tuple[str, str]:
    is_text = "try(decode(h.name)) IS NOT NULL AND (h.value IS NULL OR try(decode(h.value)) IS NOT NULL)"
    member = "to_json(try(decode(h.name)))::VARCHAR || ':' || coalesce(to_json(try(decode(h.value)))::VARCHAR, 'null')"
    are_texts = f"coalesce(list_bool_and(list_transform({_LAST_HEADERS}, lambda h: {is_text})), true)"
    members = f"coalesce(array_to_string(list_transform({_LAST_HEADERS}, lambda h: {member}), ','), '')"
    return f"CASE WHEN {are_texts} THEN 'OBJECT' ELSE 'BLOB' END", f"'{{' || {members} || '}}'"
