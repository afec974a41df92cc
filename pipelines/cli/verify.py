"""The command that proves the table against the records."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from pipelines.cli.arguments import AsJson, File, errors_as_exit, progress_bar, since_instant
from pipelines.cli.audit import Examples, exit_with
from pipelines.config import load
from pipelines.home import default_home
from pipelines.protocol.naming import Names


def hour_instant(text: str) -> datetime:
    """Parse the beginning of an hour, UTC."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H").replace(tzinfo=UTC)
    except ValueError:
        raise typer.BadParameter("must be an hour such as 2026-01-31T12 (UTC)") from None


def verify(
    file: File,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--from", parser=since_instant, help="Records that arrived at this instant (UTC) or later, or so long ago.", metavar="TIME"
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
    """Compute the table's rows again from the raw records, in DuckDB, and compare.

    The exit code is 0 if all is clean, 4 if anything differs, 3 if nothing does but something is not proven, such as rows that wait.
    """
    from pipelines.connectors.nats.client import JetStream
    from pipelines.proof.verification.run import Request
    from pipelines.proof.verification.run import verify as run

    if hour is not None:
        if since or until:
            raise typer.BadParameter("--hour is a range of its own: leave out --from and --to")
        since, until = hour, hour + timedelta(hours=1)
    with errors_as_exit(), progress_bar() as progress:
        config = load(file)
        directory = Names(config.pipeline_id).directory(default_home())
        log = JetStream(config.nats).connect()
        try:
            report = run(config, log, Request(directory, since, until, examples, kafka), progress)
        finally:
            log.close()
    exit_with(report, as_json)
