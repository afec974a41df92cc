"""The `tallyflow` command. A composition root: the one place under pipelines/ (with demo.py) that knows the local servers."""

import functools
import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.cli import apply as apply_commands
from pipelines.cli import audit as audit_commands
from pipelines.cli import dagster as dagster_commands
from pipelines.cli import dashboard as dashboard_commands
from pipelines.cli import diff as diff_commands
from pipelines.cli import docs as docs_commands
from pipelines.cli import init as init_commands
from pipelines.cli import lint as lint_commands
from pipelines.cli import logs as log_commands
from pipelines.cli import plan as plan_commands
from pipelines.cli import preview as preview_commands
from pipelines.cli import redrive as redrive_commands
from pipelines.cli import reload as reload_commands
from pipelines.cli import run as run_commands
from pipelines.cli import state as state_commands
from pipelines.cli import tap as tap_commands
from pipelines.cli import test as test_commands
from pipelines.cli import types as types_commands
from pipelines.cli import verify as verify_commands
from pipelines.cli.arguments import AsJson, File, NamedFile, announce, directory_of, errors_as_exit, out, selected
from pipelines.cli.default_file import VARIABLE, only_pipeline_file
from pipelines.cli.examples import add_examples, commands_of
from pipelines.cli.status import show_status
from pipelines.cli.stopping import stop_runners_of
from pipelines.cli.validate import check_file, examine_start
from pipelines.config import json_schema, load
from pipelines.config.load import read_text
from pipelines.config.source_ids import chosen_source
from pipelines.errors import HaltError
from resources.local import cli as local_cli
from resources.local.java import find_java
from resources.local_servers import NatsUse, use_local_servers

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for of_servers in (local_cli.up, local_cli.down, local_cli.env):
    app.command()(of_servers)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tallyflow {version('tallyflow')}")
        raise typer.Exit


@app.callback()
def about(
    context: typer.Context,
    _: Annotated[bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Kafka into ClickHouse, exactly once, with every event accounted for."""
    # For a command that learns of its servers while it works.
    context.meta[init_commands.FIND_SERVERS] = functools.partial(_use_servers, use="address")


@app.command()
def validate(
    file: File,
    connect: Annotated[
        bool, typer.Option("--connect", help="Ask the servers, too: addresses, rights, topics, tables, and this host. Changes nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a pipeline file: report every fault at once, then notes on settings to review. Connects to nothing without --connect."""
    if connect:
        _use_servers_of(file, "start")
        doctor(file, as_json)
    else:
        check_file(file, as_json)


@app.command()
def doctor(file: File, as_json: AsJson = False) -> None:
    """Look at all that a start needs, and report every fault at once: servers, logins, topics, tables, this host. Changes nothing.

    Starts no Spark. Exit code 0: a start would find nothing wrong, 1: faults, 2: the file is not valid.
    """
    examine_start(file, as_json, lambda: str(find_java().version))


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
    """Make a Python environment faster, once: build the readers in C if a compiler is there, and archive the classes of Spark's JVM.

    The archive halves the JVM's start; another Java version needs one of its own.
    """
    from pipelines.engine.class_archive import make_archive
    from pipelines.native_library import build_all
    from pipelines.spark_classes import archive_path

    with errors_as_exit():
        for line in build_all() or ["the readers in C are built"]:
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
def stop(
    file: File,
    leg: Annotated[list[str] | None, typer.Option(help="Stop only the runners of this leg; repeatable. Default: all runners.")] = None,
) -> None:
    """Stop the runners of a pipeline on this host; batches in progress finish first."""
    with errors_as_exit():
        config = load(file)
        count = stop_runners_of(config, selected(config, leg) if leg else None)
    out.print("stopped" if count else "no runner of this pipeline is running on this host")


@app.command()
def status(
    file: Annotated[Path | None, typer.Argument(help="A pipeline file.", envvar=VARIABLE, exists=True, dir_okay=False)] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Refresh every second until Ctrl-C, with the rates of the last minute."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the legs, lag, throughput and messages of a running pipeline; without a file, show the local servers."""
    if file is None and not watch:
        local_cli.status(as_json=as_json)
        return
    show_status(file or only_pipeline_file(), watch, as_json)


for command in (
    init_commands.init,
    run_commands.run,
    log_commands.logs,
    tap_commands.tap,
    lint_commands.lint,
    preview_commands.preview,
    diff_commands.diff,
    apply_commands.apply,
    reload_commands.reload,
    test_commands.test,
    types_commands.types,
    docs_commands.docs,
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
    file: NamedFile,
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
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The pipeline file (YAML or JSON). Default: that of --example, else the only one in this directory.",
            exists=True,
            dir_okay=False,
            envvar=VARIABLE,
            show_default=False,
        ),
    ] = None,
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
    from pipelines.demo.examples import example_file, load_example
    from pipelines.demo.orders import ORDERS
    from pipelines.demo.produce import produce as send

    with errors_as_exit():
        named = file or (example_file(example) if example else only_pipeline_file())
        if file is None:
            _use_servers(read_text(named), "address")
        source = chosen_source(load(named), source_id)
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


_NATS_USES: dict[str, NatsUse] = {
    **dict.fromkeys(("run", "apply", "doctor"), "start"),
    **dict.fromkeys(("tap", "tally", "audit", "verify", "state", "why", "compact", "rebucket", "rebuild-state", "reset-clock"), "resume"),
    **dict.fromkeys(("delete", "dlq", "plan"), "resume"),
}
"""What a command, or all of a group, needs of the local NATS; the others need its address at most."""


def _use_servers(text: str, use: NatsUse, master: str | None = None) -> None:
    for line in use_local_servers(text, use, master):
        announce(line)


def _use_servers_of(file: Path, use: NatsUse, master: str | None = None) -> None:
    with errors_as_exit():
        _use_servers(read_text(file), use, master)


def _with_local_servers(command: Callable[..., Any], use: NatsUse) -> Callable[..., Any]:
    """Return the command, to be run with the local servers that its pipeline file does without naming any."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        if isinstance(file := options.get("file", options.get("old")), Path):
            _use_servers_of(file, use, options.get("master"))
        return command(*args, **options)

    return run


for words, info in commands_of(app):
    # `init` names a file that it has yet to write.
    if info.callback is not None and words != "init":
        info.callback = _with_local_servers(info.callback, _NATS_USES.get(words.split()[0], "address"))
add_examples(app)
