"""The command that proves the table against the records."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from pipelines.cli.arguments import AsJson, File, errors_as_exit, progress_bar, since_instant
from pipelines.cli.audit import Examples, exit_with
from pipelines.config import load


def hour_instant(text: str) -> datetime:
    """Return the beginning of an hour, UTC, of its text."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H").replace(tzinfo=UTC)
    except ValueError:
        raise typer.BadParameter("must be an hour (UTC) such as 2026-01-31T12") from None


def verify(
    file: File,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--from", parser=since_instant, help="Records that arrived at or after this instant (UTC), or within this time.", metavar="TIME"
        ),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--to", parser=since_instant, help="Records that arrived before this instant.", metavar="TIME")
    ] = None,
    hour: Annotated[
        datetime | None, typer.Option(parser=hour_instant, help="Records that arrived in this hour, such as 2026-01-31T12.", metavar="HOUR")
    ] = None,
    kafka: Annotated[bool, typer.Option("--kafka", help="Compare the bytes of the raw records with Kafka's as well.")] = False,
    examples: Examples = 10,
    as_json: AsJson = False,
) -> None:
    """Recompute the table's rows from the raw records, in DuckDB, and compare them with the table.

    The exit code is 0 if everything is clean, 4 if anything differs, 3 if nothing differs but something (such as waiting rows) is not
    proven.
    """
    from pipelines.proof.ask import verification_of

    if hour is not None:
        if since or until:
            raise typer.BadParameter("--hour is a range of its own: remove --from and --to")
        since, until = hour, hour + timedelta(hours=1)
    with errors_as_exit(), progress_bar() as progress:
        report = verification_of(load(file), since, until, examples, kafka, progress)
    exit_with(report, as_json)
