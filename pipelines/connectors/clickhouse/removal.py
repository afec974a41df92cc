"""Tables of ClickHouse that remove rows by themselves, according to their definition."""

import re

from pipelines.connectors.sinks import Table

KEEPS_EVERY_ROW = frozenset({"MergeTree", "ReplicatedMergeTree", "SharedMergeTree"})
_TTL = re.compile(r"\bTTL (.+?)(?: SETTINGS |$)", re.DOTALL)
_MOVES = re.compile(r"\bTO (?:DISK|VOLUME)\b|\bRECOMPRESS\b")
_BRACKETS = re.compile(r"\([^()]*\)")


def removes_rows(table: Table) -> str:
    """Name what in the table's definition removes rows in the background; empty if nothing does."""
    if "MergeTree" in table.engine and table.engine not in KEEPS_EVERY_ROW:
        return f"its engine {table.engine}"
    return "its TTL" if has_removing_ttl(table) else ""


def has_removing_ttl(table: Table) -> bool:
    """Return True if rows expire.

    A TTL that only moves or compresses rows removes none.
    """
    ttl = _TTL.search(table.definition)
    plain, was = ttl[1] if ttl else "", None
    while plain != was:
        plain, was = _BRACKETS.sub("", plain), plain
    return any(one.strip() and not _MOVES.search(one) for one in plain.split(","))
