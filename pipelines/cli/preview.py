"""The command that shows what becomes of records before anything is started."""

import json
import sys
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pipelines.cli.arguments import AsJson, File, errors_as_exit, leave_out_pandas, out
from pipelines.config import PipelineConfig, load
from pipelines.config.source_ids import only_source

if TYPE_CHECKING:
    from pipelines.preview.run import Preview, Traced
    from pipelines.process.arrivals import Arrived
    from pipelines.process.program import Program

_SHOWN_CHARACTERS = 60


def preview(
    file: File,
    sample: Annotated[
        Path | None, typer.Option("--input", help="Records to try: a JSON value per line; - is standard input.", allow_dash=True)
    ] = None,
    from_topic: Annotated[
        int | None,
        typer.Option("--from-topic", min=1, max=100_000, help="Try as many of the newest records of each partition of the topic."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Records to read of --input.")] = 10_000,
    rows: Annotated[int, typer.Option(min=0, help="Rows to show.")] = 10,
    explain: Annotated[int | None, typer.Option(min=1, help="Show this record, counted from 1, at every step.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the pipeline would make of some records: which become rows, which are dropped or rejected, and why.

    Nothing is started or written, and no server is asked, except Kafka for --from-topic. Dedup knows no earlier records. The table is taken
    from the mapping.
    """
    leave_out_pandas()
    from pipelines.preview.declared import declared_program
    from pipelines.preview.run import preview as run

    with errors_as_exit():
        config = load(file, offline=from_topic is None)
        program = declared_program(config)
        frames = _frames(config, sample, from_topic, limit)
        found = run(program, frames)
    if as_json:
        typer.echo(json.dumps([_document(record, program) for record in found.records], default=_plain))
    elif explain is not None:
        _print_record(found, explain, program)
    else:
        _print(found, rows, program)


def _frames(config: PipelineConfig, sample: Path | None, from_topic: int | None, limit: int) -> "list[Arrived]":
    from pipelines.connectors.sources import open_source
    from pipelines.preview.given import frames_of, newest_frames, of_lines

    if (sample is None) == (from_topic is None):
        raise typer.BadParameter("name the records to try: --input FILE, or --from-topic N")
    source = only_source(config)
    if from_topic is not None:
        with closing(open_source(config, source.source_id)) as opened:
            frames = newest_frames(source, opened, from_topic)
    elif str(sample) == "-":
        frames = frames_of(islice(of_lines(sys.stdin.buffer), limit), source)
    else:
        assert sample is not None
        try:
            with sample.open("rb") as lines:
                frames = frames_of(islice(of_lines(lines), limit), source)
        except OSError as error:
            raise typer.BadParameter(f"cannot read {sample}: {error.strerror}") from error
    if not frames:
        raise typer.BadParameter("there is no record to try")
    return frames


def _print(found: "Preview", rows: int, program: "Program") -> None:
    from pipelines.preview.readable import readable_row

    steps = Table(box=None)
    for name in ("step", "in", "passed", "dropped", "duplicates", "rejected"):
        steps.add_column(name, justify="left" if name == "step" else "right")
    for name, counts in found.counts():
        passed = counts["passed"] + counts["row"]
        figures = (counts.total(), passed, counts["dropped"], counts["duplicate"], counts["rejected"])
        steps.add_row(name, *(f"{figure:,}" if figure else "." for figure in figures))
    out.print(steps)
    _print_reasons(found)
    made = [(number, record) for number, record in enumerate(found.records, 1) if record.last.outcome == "row"]
    out.print(f"\n{len(made):,} rows for {program.full_table}{':' if rows and made else ''}", highlight=False)
    if rows and made:
        table = Table(box=None)
        for name in ("record", *(column.name for column in program.mapping.columns)):
            table.add_column(name, overflow="ellipsis", no_wrap=True)
        for number, record in made[:rows]:
            row = readable_row(record.last.fields or {}, program.mapping)
            table.add_row(str(number), *(_shown(row[column.name]) for column in program.mapping.columns))
        out.print(table, markup=False)


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
        fields = json.dumps(seen["fields"], default=_plain, ensure_ascii=False) if "fields" in seen else ""
        out.print(f"{seen['step']}: {seen['outcome']}{reason} {fields}".rstrip(), markup=False, highlight=False, soft_wrap=True)


def _document(record: "Traced", program: "Program") -> dict[str, Any]:
    from pipelines.preview.readable import readable_row

    steps, is_mapped = [], False
    for seen in record.steps:
        is_mapped = is_mapped or seen.step == program.tables.name
        fields = readable_row(seen.fields, program.mapping) if is_mapped and seen.fields else seen.fields
        step: dict[str, Any] = {"step": seen.step, "outcome": seen.outcome}
        if fields is not None:
            step["fields"] = fields
        if seen.code:
            step |= {"code": seen.code, "field": seen.column, "reason": seen.reason}
        steps.append(step)
    value = None if record.value is None else record.value.decode(errors="backslashreplace")
    return {"partition": record.partition, "offset": record.offset, "value": value, "outcome": record.last.outcome, "steps": steps}


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        text = json.dumps(value, default=_plain, ensure_ascii=False)
    else:
        text = "" if value is None else str(_plain(value))
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _plain(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
