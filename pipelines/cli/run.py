"""The command `run`: a pipeline in the foreground, and what it shows meanwhile."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.arguments import File, Master, SparkConf, UntilCaughtUp, directory_of, errors_as_exit, selected
from pipelines.cli.narration import LogFormat, Narrator, own_output
from pipelines.config import PipelineConfig, load, notes
from pipelines.control.control import find_runners
from pipelines.control.processes import stop_with_input
from pipelines.errors import ConfigurationError, TallyflowError
from pipelines.home import default_home
from pipelines.protocol.topology import KINDS
from pipelines.runner.run_log import RunLog

if TYPE_CHECKING:
    from pipelines.runner.options import RunOptions
    from pipelines.runner.runner import Runner, Service
    from pipelines.runner.spark_engine import SparkEngine

_BOUND_LOG_EVERY_SECONDS = 30.0


def run(
    context: typer.Context,
    file: File,
    leg: Annotated[list[str] | None, typer.Option(help=f"Run only this leg ({', '.join(KINDS)}); repeatable.")] = None,
    until_caught_up: UntilCaughtUp = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="Exit once every record that ingest has read is in ClickHouse; read no further ones.")
    ] = False,
    as_started: Annotated[
        bool, typer.Option("--as-started", help="Run the file as it was at its last start on this host, without the edits since.")
    ] = False,
    connect_timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for Kafka, NATS and ClickHouse at startup.")] = 60.0,
    master: Master = None,
    spark_conf: SparkConf = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Let the records that the rejection limit holds become dead letters, however many.")
    ] = False,
    log_format: Annotated[
        LogFormat | None, typer.Option("--log-format", help="How events are shown. Default: a live line on a terminal, elsewhere text.")
    ] = None,
    ends_with_input: Annotated[bool, typer.Option("--end-with-input", hidden=True, help="Stop when standard input ends.")] = False,
) -> None:
    """Run a pipeline until it is stopped (SIGTERM, Ctrl-C or `tallyflow stop`).

    Shows its steps, what it waits for and, on a terminal, its figures; `tallyflow logs` shows what Spark and Python print.
    """
    from pipelines.engine.session import is_cluster
    from pipelines.runner.options import RunOptions
    from pipelines.runner.spark_engine import SparkEngine

    if ends_with_input:
        stop_with_input()
    # Who invokes the command from Python may hand in another engine as the context's object.
    engine: SparkEngine = context.obj or SparkEngine()
    with errors_as_exit():
        text = file.read_text()
        config = load(file)
        if as_started:
            from pipelines.edits.last_run import as_it_ran

            config, text = as_it_ran(file, config, directory_of(config))
        legs = selected(config, leg or ())
    if until_caught_up and drain:
        raise typer.BadParameter("give --until-caught-up or --drain")
    options = RunOptions(legs, until_caught_up, connect_timeout, master, accept, spark_conf if is_cluster(master) else None, drain)
    engine.leave(run_narrated(config, text, options, engine, log_format))


def run_narrated(config: PipelineConfig, text: str, options: "RunOptions", engine: "SparkEngine", log_format: LogFormat | None) -> int:
    """Run the pipeline; show and log what it reports. Return the exit code."""
    from pipelines.dead_letters.reprocess import expire_dead_letters
    from pipelines.runner.runner import Runner
    from pipelines.runner.status import StatusServer

    stream, is_own = own_output()
    log = RunLog()
    narrator = Narrator(stream, log, log_format)
    for note in notes(config):
        narrator.note(f"note: {note}")
    runner = Runner(config, text, default_home(), options, expire_dead_letters, narrator.note, engine)
    runner.report = narrator.take
    runner.on_start = StatusServer
    runner.on_directory = lambda: _open_log(runner, log, takes_output=is_own)
    runner.on_ready = lambda ready: _services(ready, narrator, log)
    try:
        runner.run()
    except TallyflowError as error:
        narrator.fail(str(error))
        return 2 if isinstance(error, ConfigurationError) else 1
    except Exception as error:
        if log.path is None:
            _open_log(runner, log, takes_output=False)
        log.take_traceback(error)
        narrator.fail(f"running pipeline {config.pipeline_id}: {type(error).__name__}: {error}; report it with its traceback in {log.path}")
        return 1
    finally:
        narrator.close()
    return 0


def _open_log(runner: "Runner", log: RunLog, takes_output: bool) -> None:
    log.open(runner.directory, [Path(path) for other in find_runners(runner.directory) if (path := other.get("log"))])
    runner.log_path = str(log.path)
    if takes_output:
        log.take_output()


def _services(runner: "Runner", narrator: Narrator, log: RunLog) -> "Sequence[Service]":
    """Return what works beside the legs: the look at what is waited for, and the bound of the log."""
    from pipelines.runner.rounds import Rounds
    from pipelines.runner.watch import Watch

    watch = Watch(runner, narrator.take)
    if runner.pace is not None:
        narrator.watch(watch, runner.pace)
    return [watch, Rounds("log size", _BOUND_LOG_EVERY_SECONDS, log.bound)]
