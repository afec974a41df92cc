"""The command that shows what an edit of a pipeline file changes, on real records."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pipelines.cli.apply import show_edit
from pipelines.cli.arguments import AsJson, directory_of, errors_as_exit, out
from pipelines.cli.samples import DLQ_HELP, KEYS_HELP, RAW_HELP, SOURCE_HELP, Sample, load_for, opened_raw
from pipelines.config import PipelineConfig
from pipelines.counts import count_of
from pipelines.errors import NotSupportedError

if TYPE_CHECKING:
    from pipelines.preview.difference import Change, Difference
    from pipelines.preview.ends import Ending
    from pipelines.preview.stored import StoredFrames
    from pipelines.process.program import Program

_MEMORY = {
    "none": "Dedup knows no record before the first.",
    "cut": "Raw no longer holds the whole dedup window before the range: a record whose key was last seen before that counts as the first.",
    "window": "Dedup knows the records of its window before the range; where a key has repeated for longer than the window, another of its "
    "records may count as the first.",
    "whole": "Dedup knows every record that raw ever held before the range.",
}
"""What the memory of dedup at the beginning of the range is worth."""
_MEMORY_OF_JOIN = {
    "none": "The join knows no record before the first.",
    "cut": "Raw no longer holds the windows of the join before the range: a left record of the range may lack the right one that it met.",
    "window": "The join knows the records of its windows before the range; what still waits at its end may be joined later.",
    "whole": "The join knows every record that raw ever held before the range; what still waits at its end may be joined later.",
}


def diff(
    old: Annotated[
        Path,
        typer.Argument(
            help="The pipeline file as it runs; alone: the edited file, compared with its last start.", exists=True, dir_okay=False
        ),
    ],
    new: Annotated[Path | None, typer.Argument(help="The edited file.", exists=True, dir_okay=False)] = None,
    from_raw: Annotated[str | None, typer.Option("--from-raw", metavar="RANGE", help=RAW_HELP)] = None,
    from_dlq: Annotated[str | None, typer.Option("--from-dlq", metavar="SELECTION", help=DLQ_HELP)] = None,
    from_topic: Annotated[
        int | None, typer.Option("--from-topic", min=1, max=100_000, help="Try so many of the newest records of each partition.")
    ] = None,
    given: Annotated[
        Path | None, typer.Option("--input", help="Records to try: a JSON value per line; - is standard input.", allow_dash=True)
    ] = None,
    with_keys: Annotated[bool, typer.Option("--with-keys", help=KEYS_HELP)] = False,
    source: Annotated[str | None, typer.Option("--source", metavar="ID", help=SOURCE_HELP)] = None,
    limit: Annotated[int, typer.Option(min=1, help="Records to read of --input and --from-dlq.")] = 100_000,
    examples: Annotated[int, typer.Option(min=0, max=100, help="Examples of each change.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Show what an edit of a pipeline file changes: what it needs of the running pipeline; with records, the rows gained, lost and changed.

    With one FILE and no records: its changes since its last start on this host, and what `tallyflow apply` would do. With records
    (--from-raw, --from-dlq, --from-topic, --input) both files take the same ones of OLD's pipeline; look-ups read the tables as they are
    now. Nothing is started or written.

    Exit code 0: no difference, 1: a difference, 2: the
    comparison failed. Example: tallyflow diff orders.yaml edited.yaml --from-raw 1h
    """
    if new is None and given is None and from_topic is None and from_dlq is None and from_raw is None:
        show_edit(old, as_json)
        return
    from pipelines.preview.declared import declared_program
    from pipelines.preview.difference import difference
    from pipelines.preview.tables import with_tables

    sample = Sample(given, from_topic, from_dlq, from_raw, source, limit, with_keys)
    with errors_as_exit(failure=2):
        edited = load_for(new or old, needs_servers=False)
        if new is None:
            from pipelines.edits.last_run import as_it_ran

            config, _ = as_it_ran(old, edited, directory_of(edited))
        else:
            config = load_for(old, sample.needs_servers)
        programs = declared_program(config), declared_program(edited)
        if (programs[0].join is None) != (programs[1].join is None):
            raise NotSupportedError(
                "comparing a file with a join and one without is not supported: their records are not the same. Try the edited file alone "
                "with `tallyflow preview` or `tallyflow test`"
            )
        programs = with_tables(programs[0], config), with_tables(programs[1], edited)
        with _stored(config, sample, programs) as stored:
            found = difference(*programs, stored.frames, stored.first, stored.watermarks, examples)
    if not found.records:
        raise typer.BadParameter("there is no record to try")
    remembers = any(_window(program) for program in programs)
    if as_json:
        typer.echo(json.dumps({**_document(found), "memory": stored.memory if remembers else None}, indent=2, default=_plain))
    else:
        _print(found)
        if remembers:
            texts = _MEMORY if programs[0].join is None else _MEMORY_OF_JOIN
            out.print(texts[stored.memory], markup=False, highlight=False, soft_wrap=True)
    if not found.is_none:
        raise typer.Exit(1)


@contextmanager
def _stored(config: PipelineConfig, sample: Sample, programs: "tuple[Program, Program]") -> "Iterator[StoredFrames]":
    """Open the records; of raw also those before the range that dedup must know, and the range as a whole."""
    from pipelines.preview.stored import StoredFrames, raw_frames

    if sample.from_raw is None:
        with sample.frames(config) as frames:
            yield StoredFrames(frames, 0)
        return
    window = max(map(_window, programs))
    with opened_raw(config, sample.from_raw) as (log, names, span):
        yield raw_frames(log, names, span, window or None)


def _window(program: "Program") -> timedelta:
    """Return how far back a program remembers records: the windows of its dedup and of its join; zero if it remembers none."""
    dedups = [program.dedup, *program.side_dedups.values()]
    of_join = 0 if program.join is None else program.join.kept_us + program.join.lateness_us
    return timedelta(microseconds=max([of_join, *(step.window_us for step in dedups)]))


def _print(found: "Difference") -> None:
    out.print(f"{count_of(found.records, 'record')}; rows {found.old_rows:,} before, {found.new_rows:,} now", highlight=False)
    for what, columns in (("added", found.added), ("dropped", found.dropped)):
        for name, kind in columns.items():
            out.print(f"column {what}: {name} {kind}", markup=False, highlight=False)
    for name, (before, now) in found.retyped.items():
        out.print(f"column retyped: {name} {before}, now {now}", markup=False, highlight=False)
    if not found.changes:
        out.print("every record ends as before", highlight=False)
        return
    counts = _counts(found)
    table = Table(*counts, box=None)
    table.add_row(*(f"{count:,}" for count in counts.values()))
    out.print(table)
    for name, count in found.columns.most_common():
        out.print(f"{count_of(count, 'row')} with another {name}", markup=False, highlight=False)
    for ends, change in sorted(found.changes.items(), key=lambda item: -item[1].records):
        _print_change(ends, change)


def _print_change(ends: "tuple[Ending, Ending]", change: "Change") -> None:
    was, now = ends
    title = f"{count_of(change.records, 'record')}: " + (f"{was} as before, with other values" if was == now else f"{was}, now {now}")
    out.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    for example in change.examples:
        where = f"raw {example.position}, partition {example.partition} offset {example.offset}"
        out.print(f"  {where}: {example.value}", markup=False, highlight=False, soft_wrap=True)
        for when, reason in (("before", example.old_reason), ("now", example.new_reason)):
            if reason:
                out.print(f"    {when}: {reason}", markup=False, highlight=False, soft_wrap=True)
        for name, (old, new) in example.values.items():
            out.print(f"    {name}: {_text(old)}, now {_text(new)}", markup=False, highlight=False, soft_wrap=True)


def _counts(found: "Difference") -> dict[str, int]:
    return {
        "gained": found.count(was_row=False, is_row=True),
        "lost": found.count(was_row=True, is_row=False),
        "changed": found.count(was_row=True, is_row=True),
        "no row, otherwise": found.count(was_row=False, is_row=False),
    }


def _document(found: "Difference") -> dict[str, Any]:
    return {
        "is_same": found.is_none,
        "records": found.records,
        "rows": {"old": found.old_rows, "new": found.new_rows, **_counts(found)},
        "changed_columns": dict(found.columns),
        "columns": {"added": found.added, "dropped": found.dropped, "retyped": found.retyped},
        "changes": [
            {"old": was._asdict(), "new": now._asdict(), "records": change.records, "examples": [vars(one) for one in change.examples]}
            for (was, now), change in found.changes.items()
        ],
    }


def _text(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
