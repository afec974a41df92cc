"""The command that shows what becomes of records before anything is started."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from pipelines.cli.arguments import AsJson, File, errors_as_exit, out
from pipelines.cli.samples import DLQ_HELP, KEYS_HELP, RAW_HELP, SOURCE_HELP, Sample, load_for
from pipelines.config import PipelineConfig
from pipelines.config.transforms.python import PythonTransform

if TYPE_CHECKING:
    from pipelines.preview.run import Preview, Traced
    from pipelines.process.program import Program
    from pipelines.process.steps.mapping import MapToTable

_ANY_WIDTH = 10_000_000
"""More columns than any row takes: what a table would be wide if nothing bounded it."""


def preview(
    file: File,
    given: Annotated[
        Path | None, typer.Option("--input", help="Records to try: a JSON value per line; - is standard input.", allow_dash=True)
    ] = None,
    with_keys: Annotated[bool, typer.Option("--with-keys", help=KEYS_HELP)] = False,
    from_topic: Annotated[
        int | None,
        typer.Option("--from-topic", min=1, max=100_000, help="Try as many of the newest records of each partition of the topic."),
    ] = None,
    from_raw: Annotated[str | None, typer.Option("--from-raw", metavar="RANGE", help=RAW_HELP)] = None,
    from_dlq: Annotated[str | None, typer.Option("--from-dlq", metavar="SELECTION", help=DLQ_HELP)] = None,
    against_table: Annotated[
        bool, typer.Option("--against-table", help="Ask ClickHouse for the table: its DEFAULTs and nullness decide, not the mapping alone.")
    ] = False,
    source: Annotated[str | None, typer.Option("--source", metavar="ID", help=SOURCE_HELP)] = None,
    limit: Annotated[int, typer.Option(min=1, help="Records to read, except with --from-topic.")] = 10_000,
    rows: Annotated[int, typer.Option(min=0, help="Rows to show.")] = 10,
    explain: Annotated[int | None, typer.Option(min=1, help="Show this record, counted from 1, at every step.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the pipeline would make of some records: which become rows, which are dropped or rejected, and why.

    Nothing is started or written. Servers are asked only for --from-topic, --from-raw, --from-dlq and --against-table, and for the tables
    of look-ups, which are read as they are now. Dedup knows no earlier records. Example: tallyflow preview orders.yaml --from-dlq
    stage=parse,since=1h
    """
    from pipelines.functions.host import open_early

    sample = Sample(given, from_topic, from_dlq, from_raw, source, limit, with_keys)
    with errors_as_exit():
        config = load_for(file, sample.needs_servers or against_table)
        # They import what they need while the rest of this command is imported.
        open_early(sum(isinstance(transform, PythonTransform) for transform in config.transforms))
        from pipelines.preview.declared import declared_program
        from pipelines.preview.run import preview as run
        from pipelines.preview.tables import with_tables

        program = with_tables(_program_of_tables(config) if against_table else declared_program(config), config)
        with sample.frames(config) as frames:
            found = run(program, frames)
    if not found.records:
        raise typer.BadParameter("there is no record to try")
    if as_json:
        typer.echo(json.dumps([_document(record, program) for record in found.records], default=_plain))
    elif explain is not None:
        _print_record(found, explain, program)
    else:
        _print(found, rows, program)


def _program_of_tables(config: PipelineConfig) -> "Program":
    from pipelines.dead_letters.dry_run import program_of_tables
    from pipelines.runner.file_checks import check_supported

    check_supported(config)
    return program_of_tables(config)


def _print(found: "Preview", rows: int, program: "Program") -> None:
    steps = Table(box=None)
    outcomes = {"dropped": "dropped", "duplicates": "duplicate", "rejected": "rejected"}
    if program.join is not None:
        outcomes |= {name: name for name in ("unmatched", "kept", "waiting")}
    for name in ("step", "in", "passed", *outcomes):
        steps.add_column(name, justify="left" if name == "step" else "right")
    for name, counts in found.counts():
        figures = (counts.total(), counts["passed"] + counts["row"], *(counts[outcome] for outcome in outcomes.values()))
        steps.add_row(name, *(f"{figure:,}" if figure else "." for figure in figures))
    out.print(steps)
    _print_reasons(found)
    for table in program.tables.tables:
        _print_rows(found, rows, program, table)


def _print_rows(found: "Preview", rows: int, program: "Program", table: "MapToTable") -> None:
    from pipelines.preview.readable import readable_row, rows_by_table

    ended = [(number, record.last) for number, record in enumerate(found.records, 1) if record.last.outcome == "row"]
    ends = [(number, fields) for number, last in ended for fields in last.rows]
    made = [(number, row) for number, fields in ends for of, row in rows_by_table(fields, program) if of is table]
    out.print(f"\n{len(made):,} rows for {table.database}.{table.table}{':' if rows and made else ''}", highlight=False)
    if rows and made:
        columns = [column.name for column in table.columns]
        shown = ((number, readable_row(row, table)) for number, row in made[:rows])
        _print_whole(columns, [(number, [_shown(row[name]) for name in columns]) for number, row in shown])


def _print_whole(columns: list[str], rows: list[tuple[int, list[str]]]) -> None:
    """Print rows as a table where it fits into the width of the terminal, else each with a line per column: no value is cut."""
    shown = Table(box=None)
    for name in ("record", *columns):
        shown.add_column(name, no_wrap=True)
    for number, values in rows:
        shown.add_row(str(number), *(escape(value) for value in values))
    if Measurement.get(out, out.options.update(width=_ANY_WIDTH), shown).maximum <= out.width:
        out.print(shown)
        return
    width = max(map(len, columns))
    for number, values in rows:
        out.print(f" record {number}", highlight=False)
        for name, value in zip(columns, values, strict=True):
            out.print(f"   {name:<{width}}  {value}".rstrip(), markup=False, highlight=False, soft_wrap=True)


def _print_reasons(found: "Preview") -> None:
    causes: Counter[tuple[str, str, str | None]] = Counter()
    first: dict[tuple[str, str, str | None], tuple[int, str]] = {}
    for number, record in enumerate(found.records, 1):
        if record.last.outcome == "rejected":
            cause = (record.last.step, record.last.code, record.last.column)
            causes[cause] += 1
            first.setdefault(cause, (number, record.last.reason))
    for cause, count in causes.most_common():
        step, code, column = cause
        number, reason = first[cause]
        out.print(f"{count:,} rejected by {step}: {code}{f' of {column}' if column else ''}: record {number}: {reason}", markup=False)


def _print_record(found: "Preview", number: int, program: "Program") -> None:
    if number > len(found.records):
        raise typer.BadParameter(f"--explain {number}: there are {len(found.records)} records")
    record = found.records[number - 1]
    value = (record.value or b"").decode(errors="backslashreplace")
    out.print(f"record {number}: {value}", markup=False, highlight=False, soft_wrap=True)
    for seen in _document(record, program)["steps"]:
        reason = f": {seen['code']}: {seen['reason']}" if "code" in seen else ""
        rows = seen.get("rows", [seen["fields"]] if "fields" in seen else [])
        fields = " ".join(json.dumps(row, default=_plain, ensure_ascii=False) for row in rows)
        out.print(f"{seen['step']}: {seen['outcome']}{reason} {fields}".rstrip(), markup=False, highlight=False, soft_wrap=True)


def _readable(fields: dict[str, Any], program: "Program") -> dict[str, Any]:
    """Return a row as it is shown, of several tables by their legs."""
    from pipelines.preview.readable import readable_rows

    rows = readable_rows(fields, program)
    return {table.leg: row for table, row in rows} if program.tables.routes else rows[0][1]


def _document(record: "Traced", program: "Program") -> dict[str, Any]:
    steps, is_mapped = [], False
    for seen in record.steps:
        is_mapped = is_mapped or seen.step == program.tables.name
        shown = [_readable(fields, program) if is_mapped and fields else fields for fields in seen.rows]
        step: dict[str, Any] = {"step": seen.step, "outcome": seen.outcome}
        if shown:
            # A record of several rows has the fields of each.
            step |= {"fields": shown[0]} if len(shown) == 1 else {"rows": shown}
        if seen.code:
            step |= {"code": seen.code, "field": seen.column, "reason": seen.reason}
        steps.append(step)
    value = None if record.value is None else record.value.decode(errors="backslashreplace")
    place = {"position": record.position, "partition": record.partition, "offset": record.offset}
    return {**place, "value": value, "outcome": record.last.outcome, "steps": steps}


def _shown(value: Any) -> str:
    """Return a value as text on one line."""
    if isinstance(value, list | dict):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return "" if value is None else str(_plain(value)).replace("\n", "\\n")


def _plain(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
