"""Renders docs/errors.md from the table of errors. `python -m pipelines.error_classes.docs` writes it."""

import sys
from pathlib import Path

from pipelines.error_classes import TABLE
from pipelines.error_classes.rows import ErrorRow, System

TARGET = Path("docs/errors.md")

_INTRODUCTION = """\
# Errors

What ClickHouse, NATS and Kafka may answer, and what Tallyflow does then. For messages of Tallyflow itself see [halts.md](halts.md).

This page is generated from `pipelines/error_classes`; do not edit it.

- **`retryable`**: the same thing is retried, with pauses of up to 15 s, for days if need be. The leg is `waiting`, with the error. Nothing
  is dropped.
- **`record`**: ClickHouse refuses single rows. They are isolated and become dead letters; the others are inserted. Before each cut the
  table is asked which rows it has stored.
- **`halt`**: the leg stops before anything is lost or doubled. The message ends with what to do next. Nothing becomes a dead letter.

## Errors that are not listed

- They halt, except for an insert into ClickHouse. There, an unlisted code does not tell whether a row or the table is the cause, and
  neither do codes with `*` behind their class. After three refusals the chunk is cut as for a `record`; three such rows of a chunk,
  and none taken, are a halt.
- They are retried if the answer has no code and the HTTP status is 408, 429 or 5xx, for NATS's status 503, and for codes that
  librdkafka calls retriable.
- What ClickHouse refuses in a materialized view is a halt, unless it is `retryable`: the table may hold the rows already.

## Changing the class of an error

`on_error` in the pipeline file puts an error into another class, by its name, or by its code in quotes:

```yaml
on_error:
  clickhouse: {CANNOT_PARSE_UUID: halt, "164": retryable}
  kafka: {TOPIC_AUTHORIZATION_FAILED: retryable}
```

`retryable` and `halt` are always safe: the next attempt, or the next start, does the same thing again, and ClickHouse knows its token.
`record` is possible only where the last column says so. For an error that has nothing to do with what a row holds it would send every
row to the dead letters. The class of an error that the protocol answers itself is fixed.
"""

_TITLES: dict[System, str] = {"clickhouse": "ClickHouse", "nats": "NATS", "kafka": "Kafka", "tallyflow": "Tallyflow's own"}


def render() -> str:
    """Render the whole page as Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(system, title) for system, title in _TITLES.items())])


def _section(system: System, title: str) -> str:
    found = sorted((row for row in TABLE if row.system == system), key=lambda row: (row.code is None, row.code or 0, row.name))
    rows = ["| Code | Name | Class | What it means | What to do next | May become |", "|---|---|---|---|---|---|", *map(_row, found)]
    return "\n".join([f"## {title}", "", *rows, ""])


def _row(row: ErrorRow) -> str:
    meaning = f"{row.meaning} (`{row.words}`)" if row.words else row.meaning
    code = "" if row.code is None else row.code
    kind = f"`{row.error_class}`{' *' if row.is_vague else ''}"
    return f"| {code} | `{row.name}` | {kind} | {meaning} | {row.remedy} | {_others(row)} |"


def _others(row: ErrorRow) -> str:
    if row.is_fixed or row.words:
        return ""
    wanted = ("retryable", "record", "halt") if row.may_be_record else ("retryable", "halt")
    return ", ".join(f"`{kind}`" for kind in wanted if kind != row.error_class or row.is_vague)


def main() -> None:
    """Write the page to docs/errors.md under the working directory."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")


if __name__ == "__main__":
    main()
