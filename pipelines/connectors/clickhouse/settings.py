"""Settings that an insert, and a read of stored rows, set themselves, because profiles differ and defaults change.

Each decides whether an insert is one atomic, deduplicated block of exactly the values that were sent (reference/reliability.md section
2.2).
"""

from collections.abc import Container, Mapping
from typing import Any

MAX_PARTITIONS_PER_INSERT = 100
"""Partitions that one block may touch: a larger block is refused as a whole, and split. The server's own default."""

_TRANSPORT = {"wait_end_of_query"}
"""Parameters of the HTTP interface, which `system.settings` does not list."""

INSERT_SETTINGS: Mapping[str, Any] = {
    "wait_end_of_query": 1,
    "async_insert": 0,
    # Tokens count. `deduplicate_insert` (26.2) overrides the older setting.
    "insert_deduplicate": 1,
    "deduplicate_insert": "enable",
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    # A failing view fails the insert; views run after the table, one after another.
    "materialized_views_ignore_errors": 0,
    "ignore_materialized_views_with_dropped_target_table": 0,
    "parallel_view_processing": 0,
    # With `break` an insert that is too slow stores nothing, or half, and is acknowledged (measured, 26.9).
    "timeout_overflow_mode": "throw",
    # One block per chunk: the same token with another split loses rows silently (reliability.md 2.1, row 7q).
    "max_insert_threads": 1,
    "max_insert_block_size": 4_000_000,
    "max_insert_block_size_bytes": 0,
    "min_insert_block_size_rows": 0,
    "min_insert_block_size_bytes": 0,
    "use_strict_insert_block_limits": 0,
    "max_partitions_per_insert_block": MAX_PARTITIONS_PER_INSERT,
    "throw_on_max_partitions_per_insert_block": 1,
    # Values are stored as sent: nulls as the column's default, nothing skipped for an error, no wider decimal truncated.
    "input_format_null_as_default": 1,
    "input_format_allow_errors_num": 0,
    "input_format_allow_errors_ratio": 0,
    "input_format_defaults_for_omitted_fields": 1,
    "input_format_arrow_case_insensitive_column_matching": 0,
    "input_format_skip_unknown_fields": 0,
}

ROLLUP_INSERT_SETTINGS: Mapping[str, Any] = {
    **INSERT_SETTINGS,
    # The rows of a block are merged with those of other parts anyway: to add up those of a top before that takes a third of its CPU.
    "optimize_on_insert": 0,
}
"""Settings of an insert into a table with rollups, none of whose rows an engine merges."""

FILL_SETTINGS: Mapping[str, Any] = {
    **INSERT_SETTINGS,
    # The rows of one INSERT SELECT are one block, too, made of as many smaller ones each time: their number counts beside the token
    # (measured, 26.9). A sort of all rows on one thread gives them; several merge into blocks of any size.
    "deduplicate_insert_select": "force_enable",
    "max_threads": 1,
    "max_block_size": 65_536,
    "optimize_read_in_order": 0,
    "max_bytes_before_external_sort": 0,
    "max_bytes_ratio_before_external_sort": 0,
    "min_insert_block_size_rows": 2**62,
    "min_insert_block_size_bytes": 2**62,
    "max_insert_block_size": 2**32,
}
"""Settings of an INSERT SELECT that is one atomic, deduplicated block."""

DELETE_SETTINGS: Mapping[str, Any] = {
    # Rows are masked, parts are not rewritten; the caller waits, or a large table would outlast the connection.
    "enable_lightweight_delete": 1,
    "lightweight_delete_mode": "alter_update",
    "lightweight_deletes_sync": 0,
    "mutations_sync": 0,
}
"""Settings of a DELETE whose end is looked for in `system.mutations`."""

READ_SETTINGS: Mapping[str, Any] = {
    "timeout_overflow_mode": "throw",
    "read_overflow_mode": "throw",
    "result_overflow_mode": "throw",
    "max_execution_time": 0,
    "max_result_rows": 0,
    "limit": 0,
    "offset": 0,
    "final": 0,
    "additional_table_filters": "{}",
    "additional_result_filter": "",
}


def known_settings(server: Container[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `settings` that the server knows: it refuses a request with any other."""
    return {name: value for name, value in settings.items() if name in server or name in _TRANSPORT}


def insert_log_comment(work: str) -> dict[str, Any]:
    """Return the setting that names an insert in `system.processes`.

    Works on every server; a query id would have to be unique.
    """
    return {"log_comment": work} if work else {}
