"""A pipeline that reads keys, headers and positions of Kafka's records, and records for it."""

from datetime import UTC, datetime
from typing import Any

from support.dedup_case import keyed_by

SENT = datetime(2026, 1, 31, 12, 0, 0, 250_000, UTC)
Sent = tuple[bytes | None, list[tuple[str, bytes | None]]]
RECORDS: list[Sent] = [
    (b"a", [("trace", b"1"), ("who", "Zoë".encode())]),
    (None, [("trace", b"0"), ("trace", b"2"), ("none", None)]),
    (b"\xff", [("trace", b"3")]),
    (b"b", [("trace", b"1")]),
    (b"c", []),
    (b"d", [("trace", b"\xfe")]),
]
"""Key and headers: a record, one with a null key and a header twice, a key that is not UTF-8, a copy, no header, one that is not UTF-8."""


def with_columns(key_type: str = "string") -> Any:
    def change(document: dict[str, Any]) -> None:
        source = document["sources"][0]
        source["schema_fields"] = [{"name": "id", "type": "int"}]
        source["columns"] = [
            {"name": "key", "from": "key", "type": key_type},
            {"name": "trace", "from": "headers", "header": "trace"},
            {"name": "headers", "from": "headers"},
            {"name": "sent_at", "from": "timestamp"},
            {"name": "at", "from": "arrival"},
            *({"name": name, "from": name} for name in ("topic", "partition", "offset", "value")),
        ]
        columns = {
            "id": "Int64",
            "key": "Nullable(String)",
            "trace": "LowCardinality(String)",
            "headers": "Map(String, Nullable(String))",
            "sent_at": "DateTime64(3)",
            "at": "DateTime64(6)",
            "topic": "String",
            "partition": "Int32",
            "offset": "Int64",
            "value": "String",
        }
        document["sink"]["mapping"] = [{"name": name, "column_name": name, "column_type": kind} for name, kind in columns.items()]
        keyed_by("trace")(document)

    return change
