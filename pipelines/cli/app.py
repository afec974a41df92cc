"""The `tallyflow` command. A composition root: the one place under pipelines/ (with demo.py) that knows the local servers."""

import json
import time
from collections.abc import Collection
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pipelines.cli import audit as audit_commands
from pipelines.cli import dagster as dagster_commands
from pipelines.cli import dashboard as dashboard_commands
from pipelines.cli import diff as diff_commands
from pipelines.cli import init as init_commands
from pipelines.cli import lint as lint_commands
from pipelines.cli import plan as plan_commands
from pipelines.cli import preview as preview_commands
from pipelines.cli import redrive as redrive_commands
from pipelines.cli import state as state_commands
from pipelines.cli import test as test_commands
from pipelines.cli import types as types_commands
from pipelines.cli import verify as verify_commands
from pipelines.cli.arguments import AsJson, File, announce, directory_of, err, errors_as_exit, out, selected
from pipelines.config import json_schema, load, notes
from pipelines.config.source_ids import chosen_source
from pipelines.counts import count_of
from pipelines.errors import ConfigurationError, HaltError, TallyflowError
from pipelines.home import default_home
from pipelines.protocol.topology import KINDS
from resources.local import cli as local_cli

app = typer.Typer(
    help="Kafka into ClickHouse, exactly once, with every event accounted for.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for of_servers in (local_cli.up, local_cli.down, local_cli.env):
    app.command()(of_servers)

_STOP_SECONDS = 60.0
_ANSWER_SECONDS = 10.0


@app.command()
def validate(file: File) -> None:
    """Check a pipeline file: report every fault at once, then notes on settings to review. Connects to nothing."""
    from pipelines.runner.preflight import check_functions, check_supported, check_types

    with errors_as_exit():
        config = load(file)
        check_types(config)
        check_functions(config)
        for note in notes(config):
            out.print(f"note: {note}", style="yellow", markup=False)
        check_supported(config)
    out.print(f"{file}: pipeline {config.pipeline_id} is valid", markup=False)


@app.command()
def ddl(
    file: File,
    after: Annotated[
        int, typer.Option(min=0, help="Let the views of rollups count rows behind this raw sequence; a message of the sink names it.")
    ] = 0,
) -> None:
    """Print the statements that create the tables and rollups of a pipeline file, with what exactly once needs. Connects to nothing."""
    from pipelines.connectors.sinks.clickhouse import create_statement
    from pipelines.rollups.ddl import RollupStatements

    with errors_as_exit():
        tables = load(file, offline=True).by_table
        statements = [text for seen in tables for text in (create_statement(seen), *RollupStatements(seen).all(after))]
    for statement in statements:
        typer.echo("\n".join(line for line in statement.splitlines() if not line.startswith("--")) + ";")


@app.command()
def prepare() -> None:
    """Make a Python environment faster, once: build the JSON reader if a C compiler is there, and archive the classes of Spark's JVM.

    The archive halves the JVM's start; another Java version needs one of its own.
    """
    from pipelines.engine.class_archive import make_archive
    from pipelines.native_library import build_all
    from pipelines.spark_classes import archive_path

    with errors_as_exit():
        for line in build_all() or ["the native JSON reader is built"]:
            out.print(line, highlight=False, markup=False)
        path = archive_path()
        if path is None:
            raise HaltError("preparing Spark: no java found on PATH or in JAVA_HOME; install Java 17 or later")
        if path.exists():
            out.print("Spark is already prepared", highlight=False)
            return
        out.print("preparing Spark: archiving its classes for faster starts (about 20 s, once)", highlight=False)
        make_archive(path)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the pipeline file, for editors."""
    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def run(
    context: typer.Context,
    file: File,
    leg: Annotated[list[str] | None, typer.Option(help=f"Run only this leg ({', '.join(KINDS)}); repeatable.")] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Exit once every record now in Kafka is in ClickHouse.")
    ] = False,
    connect_timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for Kafka, NATS and ClickHouse at startup.")] = 60.0,
    master: Annotated[str | None, typer.Option(help="Spark master. Default: this machine, all cores.")] = None,
    spark_conf: Annotated[
        Path | None,
        typer.Option(
            envvar="TALLYFLOW_SPARK_CONF", help="Spark's properties file for --master: a cluster's secret, memory.", dir_okay=False
        ),
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Let the records that the rejection limit holds become dead letters, however many.")
    ] = False,
) -> None:
    """Run a pipeline until it is stopped (SIGTERM, Ctrl-C or `tallyflow stop`)."""
    from pipelines.dead_letters.reprocess import expire_dead_letters
    from pipelines.engine.session import is_cluster
    from pipelines.runner.runner import Runner, RunOptions
    from pipelines.runner.spark_engine import SparkEngine
    from pipelines.runner.status import StatusServer

    # Who invokes the command from Python may hand in another engine as the context's object.
    engine: SparkEngine = context.obj or SparkEngine()
    with errors_as_exit():
        config = load(file)
        legs = selected(config, leg or ())
        for note in notes(config):
            err.print(f"note: {note}", style="yellow", markup=False)
        options = RunOptions(legs, until_caught_up, connect_timeout, master, accept, spark_conf if is_cluster(master) else None)
        runner = Runner(config, file.read_text(), default_home(), options, expire_dead_letters, announce, engine)
        runner.on_start = StatusServer
        try:
            runner.run()
        except TallyflowError as error:
            err.print(str(error), style="red", markup=False, highlight=False)
            engine.leave(2 if isinstance(error, ConfigurationError) else 1)
        engine.leave(0)


@app.command()
def stop(
    file: File,
    leg: Annotated[list[str] | None, typer.Option(help="Stop only the runners of this leg; repeatable. Default: all runners.")] = None,
) -> None:
    """Stop the runners of a pipeline on this host; batches in progress finish first."""
    from pipelines.control.control import note_stop, stop_runners

    with errors_as_exit():
        config = load(file)
        directory = directory_of(config)
        legs = selected(config, leg) if leg else None
    note_stop(directory, legs)
    count, left = stop_runners(directory, legs, timedelta(seconds=_STOP_SECONDS))
    if left:
        named = ", ".join(str(process.pid) for process in left)
        err.print(f"process {named} did not stop within {_STOP_SECONDS:.0f} s; its state is safe, so kill -9 loses nothing")
        raise typer.Exit(1)
    out.print("stopped" if count else "no runner of this pipeline is running on this host")


@app.command()
def status(
    file: Annotated[Path | None, typer.Argument(help="A pipeline file.", exists=True, dir_okay=False)] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the legs, lag, throughput and errors of a running pipeline; without a file, show the local servers."""
    if file is None:
        local_cli.status(as_json=as_json)
        return
    with errors_as_exit():
        directory = directory_of(load(file))
        if not directory.is_dir():
            raise HaltError(f"pipeline {directory.name} was never started on this host")
        now = _ask(directory)
        if now is None:
            out.print("not running on this host; `tallyflow tally` shows what it has processed")
            _print_halts(directory, ())
            raise typer.Exit(1)
        if as_json:
            typer.echo(json.dumps(now, indent=2))
        elif not watch:
            out.print(_status_view(now, None))
            _print_halts(directory, now["legs"])
        else:
            _watch(directory, now)
    if not now["healthy"]:
        raise typer.Exit(1)


def _print_halts(directory: Path, running: Collection[str]) -> None:
    """Print why the last runners of the legs that are not `running` halted, for each leg that did."""
    from pipelines.control.control import by_halt, read_halts

    halts = {leg: halt for leg, halt in read_halts(directory).items() if leg not in running}
    for halt, names in by_halt(halts).items():
        out.print(f"{names} halted at {halt.at}: {halt.message}", markup=False, highlight=False)


def _watch(directory: Path, now: dict[str, Any]) -> None:
    with Live(_status_view(now, None), console=out) as live:
        while True:
            time.sleep(1)
            newer = _ask(directory)
            if newer is None:
                return
            live.update(_status_view(newer, now))
            now = newer


def _ask(directory: Path) -> dict[str, Any] | None:
    from pipelines.control.control import ask, find_runners, together

    answers = [answer for runner in find_runners(directory) if (answer := ask(runner, timedelta(seconds=_ANSWER_SECONDS))) is not None]
    if len(answers) < len(find_runners(directory)):
        raise HaltError(f"asking the runner of {directory.name}: no answer within {_ANSWER_SECONDS:.0f} s; ask again, or stop and start it")
    return together(answers) if answers else None


def _status_view(now: dict[str, Any], before: dict[str, Any] | None) -> Group:
    warnings = [facts["advice"] for facts in now["streams"].values() if facts["advice"]]
    if now["purge_failure"]:
        warnings.append(f"purging the streams failed and will be retried: {now['purge_failure']}")
    for table, facts in now.get("lookup_tables", {}).items():
        warnings.append(f"table {table}: {facts['rows']:,} rows, {facts['age_seconds']:,.0f} s old")
        if facts["failure"]:
            warnings.append(facts["failure"])
    return Group(_status_table(now, before), *(Text(line) for line in warnings))


def _status_table(now: dict[str, Any], before: dict[str, Any] | None) -> Table:
    """Return one row per leg.

    Rates cover the time between two looks; at the first look they are the runner's own, over its last half minute.
    """
    lag = sum(leg["waiting"] for leg in now["legs"].values())
    oldest = max(leg["waiting_seconds"] for leg in now["legs"].values())
    caption = f"lag {count_of(lag, 'record')} across all legs, oldest waiting {oldest:,.0f} s; {count_of(len(now['lag']), 'partition')}"
    caption += f"; up {now['uptime_seconds']:,.0f} s"
    if (wanted := now["lanes"]["wanted"]) > 1:
        caption += f"; {now['lanes']['working']} of {wanted} lanes"
    for copied in now.get("ledger_tables", {}).values():
        caption += f"\nledger table: {escape(copied['message'])}" if copied["message"] else ""
    title = f"pipeline {now['pipeline']}"
    table = Table("leg", "state", "waiting", "rows in", "rows out", "rows/s", "last batch", "message", title=title, caption=caption)
    for name, leg in now["legs"].items():
        totals, last = leg["totals"], leg["last_batch"]
        earlier = before["legs"][name]["totals"].get("rows_in", 0) if before and name in before["legs"] else None
        seconds = now["at"] - before["at"] if before else 0.0
        pace = leg["rows_per_second"] if earlier is None else (totals.get("rows_in", 0) - earlier) / max(seconds, 1e-3)
        rate = f"{pace:,.0f}" if pace is not None else ""
        waiting = f"{leg['waiting']:,}" + (f", {leg['waiting_seconds']:,.0f} s" if leg["waiting"] else "")
        batch = f"{last['counts'].get('rows_in', 0):,} rows, {last['seconds'] * 1000:,.0f} ms" if last else ""
        table.add_row(
            name, leg["state"], waiting, f"{totals.get('rows_in', 0):,}", f"{totals.get('rows_out', 0):,}", rate, batch, leg["message"]
        )
    return table


for command in (
    init_commands.init,
    lint_commands.lint,
    preview_commands.preview,
    diff_commands.diff,
    test_commands.test,
    types_commands.types,
    dagster_commands.dagster,
    dashboard_commands.dashboard,
    audit_commands.tally,
    audit_commands.audit,
    verify_commands.verify,
    *state_commands.COMMANDS,
):
    app.command()(command)
app.add_typer(redrive_commands.app, name="dlq")
app.add_typer(plan_commands.app, name="plan")


@app.command()
def delete(
    file: File,
    keep_table: Annotated[bool, typer.Option("--keep-table", help="Keep the ClickHouse table.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a stopped pipeline: its streams, its state on this host and, with `create_table: true`, its table. Asks first."""
    from pipelines.maintenance.delete import Deletion

    with errors_as_exit():
        config = load(file)
        deletion = Deletion(config, directory_of(config), keep_table)
        for line in deletion.lines():
            out.print(f"  - {line}", markup=False, highlight=False)
        if not yes:
            typer.confirm("Delete all of this permanently?", abort=True)
        deletion.run()
    out.print("deleted")


@app.command()
def produce(
    file: File,
    count: Annotated[int, typer.Option(min=1, help="Events to send.")] = 100_000,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Events per second. Default: as fast as possible.")] = None,
    size: Annotated[int, typer.Option(min=150, help="Approximate bytes per event.")] = 200,
    duplicate_share: Annotated[float, typer.Option(min=0, max=1, help="Share of events that are copies of earlier ones.")] = 0.0,
    bad_share: Annotated[float, typer.Option(min=0, max=1, help="Share of records that no pipeline can parse.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same events.")] = 1,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions, if the topic must be created.")] = 4,
    example: Annotated[str | None, typer.Option(help="Example whose records to send. Default: those of orders.")] = None,
    source_id: Annotated[str | None, typer.Option("--source", metavar="ID", help="Source to send to, of a pipeline with several.")] = None,
) -> None:
    """Send the records of an example to the topic of a pipeline file."""
    from pipelines.connectors.kafka.settings import client_settings
    from pipelines.demo.events import Recipe
    from pipelines.demo.examples import load_example
    from pipelines.demo.orders import ORDERS
    from pipelines.demo.produce import produce as send

    with errors_as_exit():
        source = chosen_source(load(file), source_id)
        generator = load_example(example).generator_of(source.source_id) if example else ORDERS
        recipe = Recipe(seed, size, duplicate_share, bad_share)
        summary = send(client_settings(source), source.topic, recipe, count, rate, partitions, generator=generator)
    typer.echo(json.dumps(asdict(summary), indent=2))


@app.command()
def demo(
    count: Annotated[int, typer.Option(min=1, help="Events to produce.")] = 300_000,
    size: Annotated[int, typer.Option(min=150, help="Approximate bytes per event.")] = 200,
    duplicate_share: Annotated[float, typer.Option(min=0, max=1, help="Share of records that are copies of earlier ones.")] = 0.1,
    bad_share: Annotated[float, typer.Option(min=0, max=1, help="Share of records that cannot be parsed.")] = 0.001,
    seed: Annotated[int, typer.Option(help="Same seed, same events.")] = 1,
    example: Annotated[str, typer.Option(help="Directory below examples/.")] = "orders",
    kill: Annotated[bool, typer.Option("--kill", help="Kill the runner right behind its first insert; a second run continues.")] = False,
    cluster: Annotated[bool, typer.Option("--cluster", help="Run on a Spark cluster: a master and two workers, started here.")] = False,
) -> None:
    """Start real servers, produce the records of an example, run its pipeline, and check every position against the table."""
    from pipelines.demo.demo import demo as show
    from pipelines.demo.events import Recipe

    with errors_as_exit():
        code = show(example, Recipe(seed, size, duplicate_share, bad_share), count, cluster, kill)
    raise typer.Exit(code)
