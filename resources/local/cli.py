"""The commands `up`, `down`, `status` and `env` of the local servers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Column, Table

from pipelines.home import default_home
from resources.local.errors import LocalServerError
from resources.local.server import START_TIMEOUT, Patience, Progress, ServerStatus

if TYPE_CHECKING:
    from resources.local.stack import LocalStack

app = typer.Typer(help="The local servers: real Kafka, NATS and ClickHouse on loopback.", no_args_is_help=True)

Home = Annotated[
    Path | None, typer.Option("--home", envvar="TALLYFLOW_HOME", help="Directory of all state.", show_default=".tallyflow", file_okay=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]

_COLOURS = {"healthy": "green", "starting": "yellow", "unhealthy": "red", "dead": "red", "stopped": "dim"}


@app.command()
def up(
    home: Home = None,
    user: Annotated[
        list[str] | None,
        typer.Option(help="ClickHouse user as name:password[:rights], kept for later starts; may repeat, the first is the one in `env`."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for each server to answer.")] = START_TIMEOUT.total_seconds(),
    new_ports: Annotated[bool, typer.Option("--new-ports", help="Move servers whose port another process has taken.")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="Start a Spark cluster, too: a master and two workers.")] = False,
) -> None:
    """Start stopped servers, repair servers that do not answer, leave the rest alone."""
    stack = _stack(home, timedelta(seconds=timeout))
    with errors_as_exit(), _live_progress() as progress:
        stack.up(progress, users=user or (), new_ports=new_ports, with_spark=spark)
    Console().print(_table(stack.status()))
    Console().print('Addresses for this shell: eval "$(tallyflow env)"', highlight=False)


@app.command()
def down(
    servers: Annotated[list[str] | None, typer.Argument(metavar="[SERVER]...", help="Only these: kafka, nats, clickhouse.")] = None,
    home: Home = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete all that the servers hold, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --purge.")] = False,
) -> None:
    """Stop the servers, or some of them; their data stays."""
    stack = _stack(home)
    if purge and not yes:
        what = f"the data of {', '.join(servers)}" if servers else "all topics, streams and tables"
        typer.confirm(f"Delete {what} under {stack.home}?", abort=True)
    with errors_as_exit(), _live_progress() as progress:
        stack.down(progress, purge=purge, names=servers or ())


@app.command()
def status(home: Home = None, as_json: AsJson = False) -> None:
    """Show the servers; the exit code is 0 only if all are healthy."""
    with errors_as_exit():
        found = _stack(home).status()
    if as_json:
        typer.echo(json.dumps([{**asdict(one), "since": one.since and one.since.isoformat()} for one in found], indent=2))
    else:
        Console().print(_table(found))
    if any(one.state != "healthy" for one in found):
        raise typer.Exit(1)


@app.command()
def env(home: Home = None, as_json: AsJson = False) -> None:
    """Print addresses and passwords as shell exports."""
    with errors_as_exit():
        addresses = _stack(home).addresses()
    typer.echo(json.dumps(addresses.environment(), indent=2) if as_json else addresses.shell_exports())


def _stack(home: Path | None, start_timeout: timedelta = START_TIMEOUT) -> "LocalStack":
    # It imports the clients of all three servers, which no other command of `tallyflow` needs.
    from resources.local.stack import LocalStack

    return LocalStack(home or default_home(), Patience(start=start_timeout))


@contextmanager
def errors_as_exit() -> Iterator[None]:
    """Print an error of the local servers as one message and exit with code 1."""
    try:
        yield
    except LocalServerError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error


@contextmanager
def _live_progress() -> Iterator[Progress]:
    """Yield a progress that rewrites one line per server on a terminal; elsewhere it prints one line per change, without counters."""
    console = Console(stderr=True)
    latest: dict[str, str] = {}
    if not console.is_terminal:

        def print_change(server: str, text: str) -> None:
            subject = text.split(",")[0].split(":")[0]
            if latest.get(server) != subject:
                latest[server] = subject
                console.print(f"{server}: {text}", markup=False, highlight=False, soft_wrap=True)

        yield print_change
        return

    spinner = Spinner("dots")
    with Live(console=console, refresh_per_second=12) as live:

        def show(server: str, text: str) -> None:
            latest[server] = text
            spinner.update(text="\n  ".join(f"{name:<11}{doing}" for name, doing in sorted(latest.items())))
            live.update(spinner)

        yield show


def _table(found: list[ServerStatus]) -> Table:
    names = ("server", "state", "pid", "address", "version", "since", "memory")
    table = Table(*(Column(name, no_wrap=True) for name in names), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for one in found:
        since = "" if one.since is None else _age(datetime.now(UTC) - one.since)
        memory = "" if one.rss_bytes is None else f"{one.rss_bytes / 2**20:.0f} MiB"
        state = f"[{_COLOURS[one.state]}]{one.state}[/]"
        table.add_row(one.name, state, str(one.pid or ""), one.address, one.version or "", since, memory)
    faults = [f"{one.name}: {one.detail}" for one in found if one.detail]
    table.caption = "\n".join(faults) or None
    return table


def _age(age: timedelta) -> str:
    minutes, seconds = divmod(max(0, int(age.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((index for index, (count, _unit) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])
