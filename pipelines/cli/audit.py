"""The commands that account for a pipeline's records."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from pipelines.cli.arguments import AsJson, File, errors_as_exit, out, print_json, progress_bar, since_instant
from pipelines.config import load
from pipelines.proof.report import EXIT_CODES, RESIDUE_EXIT_CODE, Report

Since = Annotated[
    datetime | None,
    typer.Option(parser=since_instant, help="Only work done since this instant (UTC) or within this time: 30m, 1h, 2d.", metavar="TIME"),
]


def tally(file: File, since: Since = None, as_json: AsJson = False) -> None:
    """Show the records in and out of each leg, as the ledger counts them; `audit` proves the counts.

    Exits with code 5 if the ledger's numbers do not add up.
    """
    from pipelines.proof.ask import tally_of

    with errors_as_exit():
        config = load(file)
        tallied = tally_of(config, since)
    if as_json:
        *legs, dead_letters = ({**asdict(leg), "residue": leg.residue} for leg in (*tallied.legs, tallied.dead_letters))
        facts = {"since": since, "residue": tallied.residue, "legs": legs, "dead_letters": dead_letters}
        print_json({"pipeline": config.pipeline_id, **facts})
    else:
        from pipelines.proof.terminal import tally_table

        out.print(tally_table(config.pipeline_id, tallied))
    if tallied.residue:
        raise typer.Exit(RESIDUE_EXIT_CODE)


Examples = Annotated[int, typer.Option(min=0, help="How many faults of each kind to list with their coordinates.")]


def audit(
    file: File,
    examples: Examples = 20,
    as_json: AsJson = False,
) -> None:
    """Recount every record from Kafka, the streams and the table.

    Exits with code 0 if every record is accounted for, 4 if a record is missing, duplicated or extra, and 3 if none is but something
    is not proven yet, such as records that are still waiting.
    """
    from pipelines.proof.ask import audit_of

    with errors_as_exit(), progress_bar() as progress:
        report = audit_of(load(file), examples, progress)
    exit_with(report, as_json)


def exit_with(report: Report, as_json: bool) -> None:
    """Print a report, and exit with the code of its verdict."""
    if as_json:
        print_json(report.plain())
    else:
        from pipelines.proof.terminal import show_report

        show_report(out, report)
    raise typer.Exit(EXIT_CODES[report.verdict])
