"""The commands on open plans: work that a leg has begun and not finished."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from pipelines.cli.arguments import AsJson, File, announce, directory_of, errors_as_exit, out, print_json, selected, utc
from pipelines.config import load
from pipelines.counts import count_of
from pipelines.errors import HaltError
from pipelines.protocol.naming import Names
from pipelines.protocol.topology import DEAD_LETTERS, INGEST, PROCESS, SINK, for_every_kind

if TYPE_CHECKING:
    from pipelines.maintenance.plans import GivenUp, OpenPlan

app = typer.Typer(help="Inspect and abandon open plans: work that a leg has begun and not finished.", no_args_is_help=True)

_NOT_OFFERED = for_every_kind(
    {
        INGEST: "its offsets are not stored yet, and skipping them would lose records. Fix what the leg is waiting for, or see "
        "`on_data_loss` in the pipeline file",
        PROCESS: "only its own replay knows which of its rows, dead letters and keys are written: abandoning it would lose or double some. "
        "Start the pipeline: it finishes the plan under the plan's own configuration. If the rejection limit holds it, start with --accept",
        SINK: "",
        DEAD_LETTERS: "its rows are dead letters, which would become dead letters again. Mend the table, or drop it and create it anew "
        "(`tallyflow ddl`), and start the pipeline: the same rows are sent with their tokens",
    }
)
"""Why a plan of a kind of leg cannot be abandoned; empty for the sink, where it can."""


@app.command()
def show(file: File, as_json: AsJson = False) -> None:
    """Show the open plan of each leg: its range, configuration and table, when it was opened, and what blocks it."""
    from pipelines.connectors.nats.client import JetStream
    from pipelines.control.control import read_halts
    from pipelines.maintenance.plans import open_plans

    with errors_as_exit():
        config = load(file)
        with closing(JetStream.of(config).connect()) as log:
            plans = open_plans(log, Names(config.pipeline_id), config.topology)
        halts = {leg: halt.message for leg, halt in read_halts(directory_of(config)).items()}
    if as_json:
        print_json([{**asdict(plan), "halted": halts.get(plan.leg)} for plan in plans])
        return
    if not plans:
        out.print("no plan is open", highlight=False)
        return
    table = Table("leg", "range", "configuration", "table", "rows", "open since", "so far", title=f"open plans of {config.pipeline_id}")
    for plan in plans:
        rows = "" if plan.rows is None else f"{plan.rows:,}"
        table.add_row(plan.leg, f"{plan.begin} .. {plan.to}", plan.config, plan.table, rows, utc(plan.since), _so_far(plan))
    out.print(table)
    for plan in plans:
        if plan.leg in halts:
            out.print(f"{plan.leg} has halted: {halts[plan.leg]}", markup=False, highlight=False, soft_wrap=True)


def _so_far(plan: "OpenPlan") -> str:
    if plan.leg.kind not in (SINK, DEAD_LETTERS):
        return ""
    if plan.abandoned:
        return f"{count_of(plan.abandoned, 'row')} abandoned; writing the dead letters"
    return f"{count_of(plan.settled, 'row')} settled, {plan.refused:,} of them refused; {count_of(plan.pieces, 'piece')} to send"


@app.command()
def abandon(
    file: File,
    leg: Annotated[str, typer.Option(help="The leg to abandon rows of; only `sink` is supported.")],
    reason: Annotated[str, typer.Option(help="Why; recorded in the ledger and the dead letters.")],
    waiting: Annotated[bool, typer.Option("--waiting", help="Also abandon all rows that wait for the sink behind the plan.")] = False,
    not_stored: Annotated[
        bool,
        typer.Option("--not-stored", help="Confirm that you checked: the table, which has no position columns, holds no row of the plan."),
    ] = False,
    is_rehearsal: Annotated[bool, typer.Option("--dry-run", help="Show what would be abandoned; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Abandon rows of a stopped sink that cannot be delivered: they become dead letters, are counted, and can be redriven."""
    with errors_as_exit():
        if why := _NOT_OFFERED.get(leg.partition(":")[0], "unknown leg; the legs are ingest, process and sink"):
            raise HaltError(f"giving up a plan of {leg}: not supported: {why}")
        _abandon(file, leg, reason, waiting, not_stored, is_rehearsal, yes, as_json)


def _abandon(file: Path, leg: str, reason: str, waiting: bool, not_stored: bool, is_rehearsal: bool, yes: bool, as_json: bool) -> None:
    from pipelines.maintenance.plans import Abandonment, reached

    config = load(file)
    sinks = selected(config, [leg])
    if len(sinks) > 1:
        options = ", ".join(map(config.topology.option, sinks))
        raise HaltError(f"giving up a plan of {leg}: there are several sinks: give one of {options}")
    with closing(Abandonment(config, reached(config, file.read_text(), sinks[0], directory_of(config)), announce)) as work:
        given_up = work.find(waiting, not_stored)
        if not as_json:
            _show(given_up)
        count = 0
        if not is_rehearsal:
            if given_up.rows and not yes:
                _ask(given_up)
            count = work.run(reason)
    if as_json:
        print_json({**asdict(given_up), "given_up": count})
    elif not is_rehearsal:
        out.print(f"{count_of(count, 'row')} abandoned; `tallyflow dlq list FILE --stage sink` lists them", highlight=False)


def _show(given_up: "GivenUp") -> None:
    if given_up.table:
        out.print(
            f"open plan for {given_up.table}: {count_of(given_up.stored, 'row')} in the table already, which stay; "
            f"{given_up.refused:,} refused; {given_up.rows - given_up.waiting:,} would be abandoned",
            highlight=False,
        )
    if given_up.waiting:
        out.print(f"{count_of(given_up.waiting, 'row')} waiting behind it would be abandoned too", highlight=False)
    if not given_up.rows:
        out.print("nothing to abandon", highlight=False)
        return
    out.print(f"in total {count_of(given_up.rows, 'row')} of out sequences {given_up.first}..{given_up.last}", highlight=False)
    for bounds in given_up.positions:
        out.print(f"  raw positions {bounds}", highlight=False)


def _ask(given_up: "GivenUp") -> None:
    """Ask for the number of rows as confirmation. Raise Abort for any other answer."""
    answer = typer.prompt(f"To abandon these rows, type their number ({given_up.rows:,})")
    if answer.replace(",", "").strip() != str(given_up.rows):
        raise typer.Abort
