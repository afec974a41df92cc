"""A pipeline with a table of dead letters beside the tables of its records."""

from collections.abc import Callable
from typing import Any

from pipelines.protocol.topology import LegId

LEG = LegId("dead_letters", "rejected")


def with_dead_letters(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """The case's sink, one that takes some of the records, and a table of dead letters; `changes` are of the last."""

    def change(document: dict[str, Any]) -> None:
        sink = document.pop("sink")
        document["transforms"] = [{"type": "dedup", "config": {"key": "id", "time_window": "1h"}}]
        document["on_error"] = {"max_rejected_percent": 100}
        letters = {name: value for name, value in sink.items() if name != "mapping"}
        document["sinks"] = [
            {**sink, "id": "every"},
            {**letters, "id": "rejected", "from": "dead_letters", "table": f"{sink['table']}_rejected", **changes},
            {**sink, "id": "cheap", "when": "amount < 10", "table": f"{sink['table']}_cheap"},
        ]

    return change
