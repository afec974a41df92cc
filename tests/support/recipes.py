"""The pipelines of the integration tests, each with records of theirs: what a preview must say the same of."""

import json
import random
from typing import Any

from support.bad_records import BAD_VALUES, DEAD_LETTERS, ROWS
from support.column_values import CASES
from support.columns_case import RECORDS, with_columns
from support.computed_case import COMPUTE, DEDUP, FILTER, events, with_transforms
from support.dedup_case import copies, keyed_by, timed_by, with_lanes
from support.random_programs import Change, Recipe, Sent

KEYED_BY_UPPER = {"type": "compute", "config": {"fields": [{"name": "name", "expression": "upper(name)"}]}}
STATELESS = {
    "type": "stateless",
    "config": {
        "transforms": [
            {"expression": "id * 2", "output_name": "id", "output_type": "int"},
            {"expression": "upper(name)", "output_name": "name", "output_type": "string"},
            {"expression": "amount", "output_name": "amount", "output_type": "float"},
        ]
    },
}
EXPR = {"type": "filter", "config": {"language": "expr", "expression": 'name != "8" && id > 3'}}


def _unchanged(document: dict[str, Any]) -> None:
    """The case's file as it is."""


def _sent(values: list[bytes | None]) -> list[Sent]:
    return [Sent(value, str(number).encode(), partition=number % 3) for number, value in enumerate(values)]


def _timed(count: int) -> list[bytes | None]:
    draw = random.Random(1)
    at = [None if number % 97 == 0 else 1_780_000_000 + number // 10 + draw.randrange(-20, 20) for number in range(count)]
    return [json.dumps({"id": draw.randrange(40), "name": "x", "amount": None, "at": one}).encode() for one in at]


def _every_type(document: dict[str, Any]) -> None:
    fields = [{"name": f"f{number}", "type": source} for number, (_, source, _, _) in enumerate(CASES)]
    document["sources"][0]["schema_fields"] = fields
    document["sink"]["mapping"] = [
        {"name": f"f{number}", "column_name": f"c{number}", "column_type": kind} for number, (kind, _, _, _) in enumerate(CASES)
    ]


def _into_tables(transform: dict[str, Any], *conditions: str | None) -> Change:
    """The case's sink once for each condition; the first one keeps the case's table."""

    def change(document: dict[str, Any]) -> None:
        sink = document.pop("sink")
        document["transforms"] = [transform]
        document["sinks"] = [
            {**sink, "id": f"s{number}", "table": f"{sink['table']}{number or ''}", **({"when": when} if when else {})}
            for number, when in enumerate(conditions)
        ]

    return change


_NO_TEXT = [value for value, _ in BAD_VALUES.values()]
_POISON = [value for value, _ in (*DEAD_LETTERS.values(), *ROWS.values()) if len(value) < 500_000]
_EVERY_VALUE = json.dumps({f"f{number}": value for number, (_, _, value, _) in enumerate(CASES)}).encode()


def _transformed(*transforms: dict[str, Any]) -> Change:
    return with_transforms(*transforms, order="file")


RECIPES: dict[str, Recipe] = {
    "good, bad and poisonous records": Recipe(_unchanged, _sent([*events(60), *_NO_TEXT, *_POISON]), parts=2),
    "filter, compute and dedup": Recipe(_transformed(FILTER, COMPUTE, DEDUP), _sent([*events(200)])),
    "a computed key": Recipe(_transformed(KEYED_BY_UPPER, {**DEDUP, "config": {"key": "name", "time_window": "1h"}}), _sent([*events(60)])),
    "stateless, in GlassFlow's order": Recipe(with_transforms(STATELESS, DEDUP, FILTER), _sent([*events(60)])),
    "expr-lang": Recipe(_transformed(EXPR, DEDUP), _sent([*events(60)])),
    "copies over two runs": Recipe(keyed_by("id"), _sent(copies(300, keys=37)), parts=2),
    "a key of two fields": Recipe(keyed_by("id", "name"), _sent([*events(60), *events(60)])),
    "copies that are kept": Recipe(keyed_by("id", keep_duplicates=True), _sent(copies(200, keys=37))),
    "a short window": Recipe(keyed_by("id", window="5ms"), _sent(copies(300, keys=37)), parts=2),
    "event times": Recipe(timed_by("at", "id", "15s", "5s"), _sent(_timed(300)), parts=2),
    "lanes": Recipe(with_lanes(2), _sent(copies(200, keys=37))),
    "columns beside the JSON": Recipe(with_columns(), [Sent(b'{"id": 1}', key, tuple(headers)) for key, headers in RECORDS]),
    "several tables": Recipe(_into_tables(DEDUP, None, "amount < 10"), _sent([*events(100)])),
    "tables that leave records": Recipe(_into_tables(FILTER, "amount < 12", "amount / nullif(id, 7) > 1"), _sent([*events(100)])),
    "every column type": Recipe(_every_type, _sent([_EVERY_VALUE, b"{}"])),
}
