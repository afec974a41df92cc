"""The command that applies an edit of a pipeline file, and what `diff` shows of it."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.arguments import (
    Master,
    NamedFile,
    SparkConf,
    UntilCaughtUp,
    announce,
    directory_of,
    errors_as_exit,
    out,
    print_json,
)
from pipelines.cli.made_rows import MadeRows, check_finished, made_rows, remake
from pipelines.cli.stopping import stop_runners_of
from pipelines.config import PipelineConfig, load
from pipelines.config.load import read_text
from pipelines.counts import count_of
from pipelines.errors import HaltError
from pipelines.home import default_home

if TYPE_CHECKING:
    from pipelines.edits.apply import Means, Step
    from pipelines.edits.plan import Edit
    from pipelines.runner.options import RunOptions


@dataclass(frozen=True)
class _Asked:
    """An edit with its steps. `was_wanted`: the pipeline is one that Dagster keeps running."""

    config: PipelineConfig
    edit: "Edit"
    rows: MadeRows
    steps: "list[Step]"
    was_wanted: bool


def apply(
    context: typer.Context,
    file: NamedFile,
    drop_columns: Annotated[bool, typer.Option("--drop-columns", help="Delete the columns that the mapping no longer has.")] = False,
    change_stored: Annotated[
        bool, typer.Option("--change-stored", help="Run statements that change stored values, too: those that ClickHouse casts.")
    ] = False,
    reprocess: Annotated[
        bool, typer.Option("--reprocess", help="Make the rows so far anew, too, whose mapping was another, from the records that raw has.")
    ] = False,
    is_rehearsal: Annotated[
        bool, typer.Option("--dry-run", help="Show the steps; change nothing. With --reprocess the rows are computed, and counted.")
    ] = False,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="End before the start of the edited file; Dagster's sensor does not start it, either.")
    ] = False,
    until_caught_up: UntilCaughtUp = False,
    master: Master = None,
    spark_conf: SparkConf = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Apply the edits of a pipeline file since its last start: alters the table, stops, drains, and runs the edited file.

    Where settings alone have changed, the running pipeline takes them and goes on. Shows every step first, and asks. Nothing is lost if it
    is killed: apply again. Rows so far keep what they have, unless --reprocess makes them anew: each is deleted and inserted once, with
    the values of the edited file.
    """
    from pipelines.control.control import note_stop
    from pipelines.edits.apply import carry_out
    from pipelines.edits.changes import Need
    from pipelines.edits.plan import check_applicable
    from pipelines.engine.session import is_cluster
    from pipelines.runner.options import RunOptions

    with errors_as_exit():
        asked = _asked(file, drop_columns, master, spark_conf, reprocess=reprocess, tries=reprocess and is_rehearsal)
        _show(file, asked, is_started=not no_start)
        check_applicable(asked.edit, asked.config.pipeline_id, change_stored)
        if not reprocess:
            check_finished(asked.rows, file)
        if is_rehearsal or (asked.edit.need <= Need.RELOAD and not asked.steps):
            return
        if not yes:
            typer.confirm("Do this?", abort=True)
        if no_start and asked.was_wanted and asked.edit.need > Need.RELOAD:
            # Before the steps: the sensor would start a pipeline that does not run between two of them.
            note_stop(directory_of(asked.config))
        carry_out(asked.steps, announce)
    if asked.edit.need == Need.RELOAD:
        return
    if no_start:
        if asked.was_wanted:
            out.print("not started, nor will Dagster's sensor: start it in Dagster, or with `tallyflow run`", highlight=False)
    elif asked.was_wanted:
        _want_again(asked)
        out.print("Dagster's sensor starts it, or `tallyflow run` does", highlight=False)
    else:
        _start(
            context,
            asked.config,
            file,
            RunOptions((), until_caught_up, master=master, properties=spark_conf if is_cluster(master) else None),
        )


def show_edit(file: Path, as_json: bool) -> None:
    """Show the changes of a file since its last start here, what each needs, and the steps of `apply`. Exit with 1 if there is a change."""
    with errors_as_exit(failure=2):
        asked = _asked(file)
        if as_json:
            changes = [{**asdict(change), "need": change.need.name.lower()} for change in asked.edit.changes]
            steps = [step.what for step in asked.steps]
            print_json({"need": asked.edit.need.name.lower(), "changes": changes, "steps": steps, **asked.rows.document()})
        else:
            _show(file, asked)
    if asked.edit.changes:
        raise typer.Exit(1)


def _asked(
    file: Path,
    drops: bool = False,
    master: str | None = None,
    spark_conf: Path | None = None,
    *,
    reprocess: bool = False,
    tries: bool = False,
) -> _Asked:
    """Compare the file with its last start, and with its tables as they are; `tries`: and with the rows that it makes of all records."""
    from pipelines.connectors.nats.client import JetStream
    from pipelines.control.control import find_runners, processes, read_desired
    from pipelines.edits.apply import steps
    from pipelines.edits.changes import Need
    from pipelines.edits.last_run import as_it_ran
    from pipelines.edits.plan import plan_edit
    from pipelines.proof.made_ranges import Made
    from pipelines.runner.file_checks import check_file, check_functions

    text = read_text(file)
    config = load(file, text=text)
    check_file(config)
    check_functions(config)
    directory = directory_of(config)
    before, _ = as_it_ran(file, config, directory)
    is_running, desired = bool(processes(directory)), read_desired(directory)
    with closing(JetStream.of(before)) as log:
        log.connect()
        edit = plan_edit(before, config, log, is_running=is_running, drops=drops)
        if edit.need == Need.RELOAD:
            edit.halted = [leg for runner in find_runners(directory) for leg in _halted(runner)]
        is_sound = not (edit.is_fixed or edit.problems)
        rows = made_rows(config, edit, log, reprocess=reprocess, tries=tries) if is_sound else MadeRows(Made())
    means = _means(
        file, config, text, [*(("--master", master) if master else ()), *(("--spark-conf", str(spark_conf)) if spark_conf else ())]
    )
    todo = [] if edit.is_fixed else [*steps(edit, config, means, is_running=is_running)]
    return _Asked(config, edit, rows, todo, desired is not None and desired.state == "running")


def _halted(runner: dict[str, Any]) -> list[str]:
    """Return the legs of a runner that have halted; none if it does not answer."""
    from pipelines.control.control import ANSWER_WITHIN, ask

    now = ask(runner, ANSWER_WITHIN) or {"legs": {}}
    return [leg for leg, facts in now["legs"].items() if facts["state"] == "halted"]


def _show(file: Path, asked: _Asked, *, is_started: bool = True) -> None:
    from pipelines.edits.changes import Need

    edit = asked.edit
    if not edit.changes:
        out.print(f"{file} is as it was at its last start", markup=False, highlight=False, soft_wrap=True)
    for need in sorted({change.need for change in edit.changes}, reverse=True):
        out.print(f"{need.words}:", highlight=False)
        for change in edit.changes:
            if change.need == need:
                out.print(f"  {change.path} {change}", markup=False, highlight=False, soft_wrap=True)
    for one in edit.tables.values():
        if one.left:
            out.print(f"{one.table} keeps {', '.join(one.left)}: new rows get the default; --drop-columns deletes it", highlight=False)
    if edit.changes:
        count = count_of(edit.processed, "record")
        if not edit.remakes:
            out.print(f"{count} processed so far keep the rows that they have; the edit holds for later ones", highlight=False)
    if edit.halted:
        out.print(f"{', '.join(edit.halted)} has halted, so the pipeline is started again", highlight=False)
    for line in asked.rows.lines(file):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    for number, step in enumerate(asked.steps, 1):
        out.print(f"{number}. {step.what}", markup=False, highlight=False, soft_wrap=True)
    if edit.need == Need.RELOAD and not asked.steps:
        out.print("it does not run on this host: its next start takes the file", highlight=False)
    if asked.steps and is_started and edit.need > Need.RELOAD:
        out.print(f"{len(asked.steps) + 1}. start {file}", markup=False, highlight=False, soft_wrap=True)


def _means(file: Path, config: PipelineConfig, text: str, of_spark: Sequence[str]) -> "Means":
    from pipelines.cli.reload import reload_with
    from pipelines.edits.apply import Means

    return Means(
        partial(reload_with, file, config, text),
        partial(stop_runners_of, config),
        partial(_drain, file, of_spark),
        partial(_rebucket, file, config),
        partial(remake, config),
    )


def _drain(file: Path, of_spark: Sequence[str]) -> None:
    """Run the file as it was at its last start until nothing waits: in a process of its own, because Spark starts once in a process.

    The process ends with this one, even if this one is killed: what is applied again must not meet it.
    """
    command = [sys.executable, "-m", "pipelines.cli", "run", str(file), "--drain", "--as-started", "--end-with-input", *of_spark]
    with Popen(command, stdin=PIPE) as run:  # noqa: S603
        code = run.wait()
    if code:
        raise HaltError(
            f"draining under the file as it ran: `tallyflow run {file} --drain --as-started` ended with {code}; its message is above"
        )


def _rebucket(file: Path, config: PipelineConfig) -> None:
    from pipelines.maintenance.inspect import KeyState
    from pipelines.maintenance.rebucket import rebucket

    with closing(KeyState(config, file.read_text(), default_home(), "nothing")) as state:
        rebucket(state)


def _want_again(asked: _Asked) -> None:
    from pipelines.control.control import Desired, controlled, write_desired

    directory = directory_of(asked.config)
    with controlled(directory):
        write_desired(directory, Desired("running", asked.config.topology.legs))


def _start(context: typer.Context, config: PipelineConfig, file: Path, options: "RunOptions") -> None:
    from pipelines.cli.run import run_narrated
    from pipelines.runner.spark_engine import SparkEngine

    engine: SparkEngine = context.obj or SparkEngine()
    engine.leave(run_narrated(config, file.read_text(), options, engine, None))
