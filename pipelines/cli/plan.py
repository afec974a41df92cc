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
from pipelines.protocol.topology import INGEST, PROCESS, SINK, for_every_kind

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
        with closing(JetStream(config.nats).connect()) as log:
            found = open_plans(log, Names(config.pipeline_id), config.topology)
        halts = {leg: halt.message for leg, halt in read_halts(directory_of(config)).items()}
    if as_json:
        print_json([{**asdict(plan), "halted": halts.get(plan.leg)} for plan in found])
        return
    if not found:
        out.print("no plan is open", highlight=False)
        return
    table = Table("leg", "range", "configuration", "table", "rows", "open since", "so far", title=f"open plans of {config.pipeline_id}")
    for plan in found:
        rows = "" if plan.rows is None else f"{plan.rows:,}"
        table.add_row(plan.leg, f"{plan.begin} .. {plan.to}", plan.config, plan.table, rows, utc(plan.since), _so_far(plan))
    out.print(table)
    for plan in found:
        if plan.leg in halts:
            out.print(f"{plan.leg} has halted: {halts[plan.leg]}", markup=False, highlight=False, soft_wrap=True)


def _so_far(plan: "OpenPlan") -> str:
    if plan.leg.kind != SINK:
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
        found = work.find(waiting, not_stored)
        if not as_json:
            _show(found)
        count = 0
        if not is_rehearsal:
            if found.rows and not yes:
                _ask(found)
            count = work.run(reason)
    if as_json:
        print_json({**asdict(found), "given_up": count})
    elif not is_rehearsal:
        out.print(f"{count_of(count, 'row')} abandoned; `tallyflow dlq list FILE --stage sink` lists them", highlight=False)


def _show(found: "GivenUp") -> None:
    if found.table:
        out.print(
            f"open plan for {found.table}: {count_of(found.stored, 'row')} in the table already, which stay; {found.refused:,} refused; "
            f"{found.rows - found.waiting:,} would be abandoned",
            highlight=False,
        )
    if found.waiting:
        out.print(f"{count_of(found.waiting, 'row')} waiting behind it would be abandoned too", highlight=False)
    if not found.rows:
        out.print("nothing to abandon", highlight=False)
        return
    out.print(f"in total {count_of(found.rows, 'row')} of out sequences {found.first}..{found.last}", highlight=False)
    for bounds in found.positions:
        out.print(f"  raw positions {bounds}", highlight=False)


def _ask(found: "GivenUp") -> None:
    """Ask for the number of rows as confirmation. Raise Abort for any other answer."""
    answer = typer.prompt(f"To abandon these rows, type their number ({found.rows:,})")
    if answer.replace(",", "").strip() != str(found.rows):
        raise typer.Abort
