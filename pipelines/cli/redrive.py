"""The commands of `dlq` that redrive dead letters: reprocess, discard, export, import."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from pipelines.cli import dlq
from pipelines.cli.arguments import AsJson, File, NamedFile, directory_of, err, errors_as_exit, out, print_json, progress_bar
from pipelines.cli.dlq import GroupName, Key, Since, Stage, State, Until
from pipelines.config import load
from pipelines.counts import count_of
from pipelines.errors import ConfigurationError, Fault
from pipelines.home import default_home

if TYPE_CHECKING:
    from pipelines.dead_letters.dry_run import Rehearsal
    from pipelines.dead_letters.reprocess import Outcome, Reprocessing
    from pipelines.dead_letters.triage import Selection

app = dlq.app

Positions = Annotated[
    list[str] | None, typer.Option("--position", help="Only the dead letter at this raw position, parked or not; repeatable.")
]
All = Annotated[bool, typer.Option("--all", help="All dead letters; excludes the options that select some.")]
NOTHING_FITS = "no dead letter matches; `tallyflow dlq groups FILE` and `tallyflow dlq list FILE` show all of them"
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the outcome of a redrive; change nothing.")]
Reason = Annotated[str, typer.Option(help="Why; recorded in the ledger.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Target = Annotated[Path, typer.Argument(help="The file to write, in JSON lines.", dir_okay=False)]
Source = Annotated[Path, typer.Argument(help="An edited export file.", exists=True, dir_okay=False)]


@contextmanager
def _reprocessing(file: Path) -> "Iterator[Reprocessing]":
    from pipelines.dead_letters.reprocess import reprocessing

    with errors_as_exit():
        config = load(file)
        with reprocessing(config, directory_of(config)) as work:
            yield work


@contextmanager
def _new_file(target: Path) -> Iterator[TextIO]:
    """Create a new file and yield it; delete it if the block fails. Raise ConfigurationError if it cannot be created."""
    try:
        with target.open("x", encoding="utf-8") as lines:
            try:
                yield lines
            except BaseException:
                target.unlink()
                raise
    except FileExistsError:
        fault = Fault("", "the file exists and is left unchanged; remove it, or name another file")
        raise ConfigurationError(f"writing {target}", [fault]) from None
    except OSError as error:
        fault = Fault("", f"{error.strerror}; name a file in an existing, writable directory with free space")
        raise ConfigurationError(f"writing {target}", [fault]) from None


def _wanted(chosen: "Selection", positions: list[str] | None, everything: bool) -> "Selection":
    """Return the selection with its positions. Raise BadParameter where no option says which dead letters are meant."""
    if positions:
        chosen = replace(chosen, positions=frozenset(map(dlq.parse_position, positions)))
    is_narrow = any(value is not None for value in vars(chosen).values())
    if not everything and not is_narrow:
        raise typer.BadParameter("choose the dead letters: --group, --stage, --since, --until, --key, --position, or --all")
    if everything and is_narrow:
        raise typer.BadParameter("--all selects every dead letter, the other options select some: use one or the other")
    return chosen


@app.command()
def reprocess(
    file: File,
    stage: Stage = None,
    group: GroupName = None,
    since: Since = None,
    until: Until = None,
    key: Key = None,
    position: Positions = None,
    everything: All = False,
    is_rehearsal: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Redrive dead letters: each enters the pipeline again once, whether the pipeline is running or not."""
    chosen = _wanted(dlq.selection(stage, group, since, until, key), position, everything)
    if is_rehearsal:
        _rehearse(file, chosen, as_json)
        return
    with _reprocessing(file) as work:
        outcome = work.enter(chosen)
    _show(outcome, "redriven; the pipeline processes them when it runs", as_json)
    _show_missing(file, chosen, outcome)


@app.command()
def discard(
    file: File,
    reason: Reason,
    stage: Stage = None,
    group: GroupName = None,
    since: Since = None,
    until: Until = None,
    key: Key = None,
    position: Positions = None,
    everything: All = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Discard dead letters permanently: they are counted as discarded and can never be redriven."""
    chosen = _wanted(dlq.selection(stage, group, since, until, key), position, everything)
    from pipelines.protocol.redrive import WAITING

    with dlq.dead_letters(file) as reader, progress_bar() as progress:
        groups = reader.groups(replace(chosen, states=WAITING), progress)
    copies = sum(cause.copies_dropped for cause in groups)
    if copies:
        counted_from = next((cause.copies_counted_from for cause in groups if cause.copies_counted_from), None)
        err.print(f"{dlq.copies_text(copies, counted_from)}: if these are discarded, their keys have no row in the table", highlight=False)
    count = sum(cause.letters for cause in groups)
    if count and not yes:
        typer.confirm(f"Discard {count_of(count, 'dead letter')} permanently?", abort=True)
    with _reprocessing(file) as work:
        outcome = work.discard(chosen, reason)
    _show(outcome, "discarded", as_json, copies_dropped=copies)
    _show_missing(file, chosen, outcome)


@app.command()
def export(
    file: NamedFile,
    target: Target,
    stage: Stage = None,
    group: GroupName = None,
    since: Since = None,
    until: Until = None,
    key: Key = None,
    state: State = "waiting",
) -> None:
    """Export dead letters in full to a file of JSON lines: to read, to keep, or to edit and redrive with `import`."""
    from pipelines.dead_letters.export_file import line_of

    count = 0
    with dlq.dead_letters(file) as reader, _new_file(target) as lines:
        for table in reader.frames(dlq.selection(stage, group, since, until, key, state)):
            for row in table.to_pylist():
                lines.write(line_of(row) + "\n")
            count += table.num_rows
    out.print(f"{count_of(count, 'dead letter')} written to {target}", highlight=False, soft_wrap=True)


@app.command("import")
def import_dead_letters(file: NamedFile, source: Source, as_json: AsJson = False) -> None:
    """Redrive the dead letters of an edited export file, each with its edited content."""
    from pipelines.dead_letters.export_file import read_edited

    with errors_as_exit():
        edited = read_edited(source)
    with _reprocessing(file) as work:
        outcome = work.enter_edited(edited)
    _show(outcome, "redriven as edited; the pipeline processes them when it runs", as_json)


def _show(outcome: "Outcome", done: str, as_json: bool, **more: int) -> None:
    if as_json:
        print_json({**asdict(outcome), **more})
        return
    out.print(f"{count_of(outcome.taken, 'dead letter')} {done}", highlight=False)
    why = {
        "parked": "rejected too often (select them with --position, or raise dead_letters.max_attempts)",
        "oversize": "only the head of the record is kept (fetch the record from Kafka, then `import` or `discard` it)",
        "redriven": "already redriven",
        "discarded": "already discarded",
    }
    for state, count in sorted(outcome.left.items()):
        err.print(f"{count_of(count, 'dead letter')} skipped: {why[state]}", highlight=False)


def _show_missing(file: Path, chosen: "Selection", outcome: "Outcome") -> None:
    """Report a selection that matches nothing, and positions without a dead letter."""
    selected = outcome.taken + sum(outcome.left.values())
    if chosen.positions and selected < len(chosen.positions):
        err.print(
            f"no dead letter at {len(chosen.positions) - selected:,} of {count_of(len(chosen.positions), 'position')}", highlight=False
        )
    elif not selected and any(value is not None for value in vars(chosen).values()):
        _show_nothing(file, chosen)


def _show_nothing(file: Path, chosen: "Selection") -> None:
    """Report that nothing matches, and the groups that there are where the wanted one is none of them."""
    if chosen.fingerprint is not None:
        with dlq.dead_letters(file) as reader:
            if dlq.show_unknown_group(reader, chosen.fingerprint):
                return
    err.print(NOTHING_FITS, highlight=False)


def _rehearse(file: Path, chosen: "Selection", as_json: bool) -> None:
    from pipelines.dead_letters.dry_run import rehearse
    from pipelines.maintenance.inspect import KeyState

    with dlq.dead_letters(file) as reader:
        config = load(file)
        with closing(KeyState(config, file.read_text(), default_home(), needs="nothing")) as state:
            rehearsal = rehearse(config, state, reader.frames(replace(chosen, states=chosen.states_that_enter)))
    if as_json:
        print_json({**asdict(rehearsal), "rejected": [dlq.plain_group(group) for group in rehearsal.rejected]})
        return
    _show_rehearsal(rehearsal)
    if not rehearsal.letters:
        _show_nothing(file, chosen)


def _show_rehearsal(rehearsal: "Rehearsal") -> None:
    again = sum(group.letters for group in rehearsal.rejected)
    out.print(f"{count_of(rehearsal.letters, 'dead letter')} would be redriven; nothing was changed", highlight=False)
    out.print(f"  {rehearsal.passed:,} would pass to the sink", highlight=False)
    if rehearsal.refused:
        out.print(
            f"    {rehearsal.refused:,} of them were refused by ClickHouse: only an insert can tell whether it accepts them now",
            highlight=False,
        )
    dropped = [(count, f"would be {label}") for label, count in rehearsal.dropped.items()]
    for count, what in (
        *dropped,
        (rehearsal.duplicates, "would be dropped as duplicates"),
        (rehearsal.late, "would be rejected again as late"),
    ):
        if count:
            out.print(f"  {count:,} {what}", highlight=False)
    if rehearsal.released:
        out.print(f"  {count_of(rehearsal.released, 'record')} waiting in the join would meet one of them", highlight=False)
    out.print(f"  {again:,} would be rejected again", highlight=False)
    dlq.print_groups(rehearsal.rejected)
