"""The acts of the demo over running servers: produce, run, count, show, check, compare with the example's own account."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import BinaryIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from pipelines.config import PipelineConfig
from pipelines.config.source_ids import source_by_id
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.kafka.settings import client_settings
from pipelines.connectors.nats.client import JetStream
from pipelines.control.control import ask, find_runners
from pipelines.counts import count_of
from pipelines.demo.events import Recipe
from pipelines.demo.examples import Account, Example, WindowFigures, side_by_side
from pipelines.demo.produce import ProduceSummary, produce
from pipelines.demo.windows import served, window_differences
from pipelines.process.steps.filter import FILTERED
from pipelines.process.steps.join import KEPT
from pipelines.process.steps.mapping import UNROUTED
from pipelines.proof.audit.run import Audit
from pipelines.proof.readers.streams import read_dead_letters
from pipelines.proof.terminal import show_report, tally_table
from pipelines.proof.verification.run import Request, verify
from pipelines.protocol.failpoints import VARIABLE
from pipelines.protocol.naming import Names
from pipelines.protocol.outcomes import DUPLICATE, WAITING
from pipelines.protocol.tally import tally

_PARTITIONS = 4
_POLL_SECONDS = 0.1
_STALL_SECONDS = 180.0
_ANSWER_WITHIN = timedelta(seconds=5)
_STOP_SECONDS = 60.0
_SAMPLE_ROWS = 5
_LOG_TAIL_LINES = 20
_EXAMPLES = 10
_KILL_AT = "sink.after-insert:1"


def headline(console: Console, number: int, text: str) -> None:
    """Print the headline of an act."""
    console.print(f"[bold]{number}. {escape(text)}[/bold]", highlight=False)


def _bar(console: Console) -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(TextColumn("  "), *columns, console=console)


def _pace(events: int, started: float, ready: float | None, through: float) -> str:
    """Describe a run that ends now by instants of the monotonic clock.

    `ready` is None when every record was through before the runner reported that it is ready.
    """
    first, name = (started, "the start") if ready is None else (ready, "the report that it is ready")
    seconds = max(through - first, _POLL_SECONDS)
    before = f"{first - started:.1f} s startup before, " if ready is not None else ""
    return (
        f"[bold]{events / seconds:,.0f} events/s[/bold]: {events:,} events in {seconds:.1f} s by the wall clock, from {name} to the "
        f"last row in ClickHouse ({before}{time.monotonic() - started:.1f} s in total)"
    )


def _through(log: JetStream, config: PipelineConfig) -> int:
    """Count the records of a pipeline that are through by the ledger: processed, and none of their rows waits for a sink.

    For the progress bar, not for the proof.
    """
    # The ledger is the last stream that a start makes.
    names = Names(config.pipeline_id)
    if log.state(names.stream("ledger")) is None:
        return 0
    tallied = tally(log, names, config.topology)
    return sum(leg.rows_in for leg in tallied.of_kind("process")) - max(leg.waiting for leg in tallied.of_kind("sink"))


class Acts:
    """One demo run over running servers: its configuration, and the acts in their order."""

    def __init__(self, console: Console, file: Path, config: PipelineConfig, environment: Mapping[str, str], master: str) -> None:
        self._console, self._file, self._config, self._environment, self._master = console, file, config, environment, master
        self._names = Names(config.pipeline_id)
        self._directory = self._names.directory(Path(environment["TALLYFLOW_HOME"]))
        sinks = config.all_sinks
        self._tables = {sink.id or "": f"{sink.connection_params.database}.{sink.table}" for sink in sinks}
        self._table = self._tables[sinks[0].id or ""]

    def play(self, example: Example, recipe: Recipe, count: int, with_kill: bool) -> bool:
        """Play all acts. Return True iff each record became what the example says, once, and the runner ended well."""
        produced = self._produce(example, recipe, count)
        account = example.account(example.generator.events(recipe, count))
        count_of_all = produced.produced + self._produce_beside(example, recipe)
        was_killed = not with_kill or self._kill_a_run()
        ended_well = self._run_pipeline(count_of_all, is_whole=not with_kill)
        has_residue, outcomes = self._show_tally()
        self._show_rows(example)
        faults = [*self._verify(count_of_all), *self._differences(example, account, outcomes)]
        if example.windows is not None:
            faults += self._show_dashboard(example.windows(example.generator.events(recipe, count)))
        faults += ["the tally has a residue"] * has_residue + ["the runner failed or stalled"] * (not ended_well)
        faults += ["the first runner was not killed"] * (not was_killed)
        if faults:
            self._console.print(f"[bold red]NOT accounted for: {'; '.join(faults)}.[/]")
            return False
        dropped = f"Dropped as they must be: {count_of(account.duplicates, 'duplicate')}, {count_of(account.filtered, 'filtered record')}."
        self._console.print(f"[bold green]All {count_of(count_of_all, 'record')} accounted for, exactly once. {dropped}[/]")
        return True

    def _show(self, text: str) -> None:
        self._console.print(f"   {text}", soft_wrap=True)

    def _produce(self, example: Example, recipe: Recipe, count: int) -> ProduceSummary:
        source = self._config.sources[0]
        headline(self._console, 2, f"Producing {count_of(count, example.noun)} of {recipe.size:,} bytes to topic {source.topic}")
        with _bar(self._console) as bar:
            task = bar.add_task("produced", total=count)
            made = produce(
                client_settings(source),
                source.topic,
                recipe,
                count,
                partitions=_PARTITIONS,
                progress=lambda _, done=0, total=0: bar.update(task, completed=done),
                generator=example.generator,
            )
        bad = ", ".join(f"{count} {kind}" for kind, count in made.bad_kinds.items())
        kinds = f"{made.good:,} good, {count_of(made.duplicates, 'copy')}, {made.bad:,} bad{f' ({bad})' if bad else ''}"
        self._show(f"{kinds}; {made.bytes / 1e6:,.1f} MB in {made.seconds:.1f} s")
        return made

    def _produce_beside(self, example: Example, recipe: Recipe) -> int:
        """Send the records of the other sources; return their number."""
        for source_id, beside in example.beside.items():
            source = source_by_id(self._config, source_id)
            plain = Recipe(recipe.seed, 1)
            produce(client_settings(source), source.topic, plain, beside.count, partitions=_PARTITIONS, generator=beside.generator)
            self._show(f"and {beside.count:,} records of {source_id} to topic {source.topic}")
        return sum(beside.count for beside in example.beside.values())

    def _kill_a_run(self) -> bool:
        """Start a runner that SIGKILLs itself behind its first insert, before the answer is noted; return True iff it did."""
        headline(
            self._console, 3, f"Running pipeline {self._config.pipeline_id} until SIGKILL ends the runner, right behind its first insert"
        )
        with (
            self._log("killed.log") as log,
            self._runner(log, {**self._environment, VARIABLE: _KILL_AT}) as runner,
            suppress(TimeoutExpired),
        ):
            runner.wait(_STALL_SECONDS)
        self._show(
            f"the runner ended with {runner.returncode}; {count_of(self._count_rows().total(), 'row')} in ClickHouse before it noted any"
        )
        return runner.returncode == -signal.SIGKILL

    def _log(self, name: str) -> BinaryIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        return (self._directory / name).open("wb")

    def _count_rows(self) -> Counter[str]:
        """Return the number of rows by the id of the sink."""
        rows: Counter[str] = Counter()
        for seen, (sink, table) in zip(self._config.by_sink, self._tables.items(), strict=True):
            with closing(ClickHouse(seen.sink)) as clickhouse:
                rows[sink] = int(clickhouse.rows("counting rows", f"SELECT count() FROM {table}")[0][0])  # noqa: S608
        return rows

    def _run_pipeline(self, expected: int, is_whole: bool) -> bool:
        """Return True iff the runner exited by itself with code 0 after every record was through.

        `is_whole`: no earlier runner has done a part of the work, so its pace is worth showing.
        """
        where = f" on {self._master}" if self._master else ""
        headline(self._console, 3, f"Running pipeline {self._config.pipeline_id}{where} until it has caught up")
        with (
            self._log("demo.log") as log,
            closing(JetStream.of(self._config).connect()) as nats,
            self._runner(log, self._environment) as runner,
            _bar(self._console) as bar,
        ):
            pace = self._watch(runner, nats, bar, expected)
        if pace is not None and is_whole:
            self._show(pace)
        if pace is not None and runner.returncode == 0:
            return True
        what = (
            "the runner exited"
            if pace is not None
            else f"not all records came through: the runner exited, or was stopped after {_STALL_SECONDS:.0f} s without progress,"
        )
        self._console.print(f"   {what} with code {runner.returncode}; the end of {log.name}:", style="red", soft_wrap=True)
        for text in Path(log.name).read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]:
            self._console.print(f"     {text}", markup=False, highlight=False)
        return False

    @contextmanager
    def _runner(self, log: BinaryIO, environment: Mapping[str, str]) -> Iterator["Popen[bytes]"]:
        """Run `tallyflow run` as a child process; stop it gracefully if it still runs at the end of the block."""
        # The demo breaks as many records as it is asked to: the rejection limit must not halt it.
        command = [sys.executable, "-m", "pipelines.cli", "run", str(self._file), "--until-caught-up", "--accept"]
        command += ["--master", self._master] if self._master else []
        with Popen(command, env=environment, stdout=log, stderr=log) as runner:  # noqa: S603
            try:
                yield runner
            finally:
                if runner.poll() is None:
                    runner.terminate()
                try:
                    runner.wait(_STOP_SECONDS)
                except TimeoutExpired:
                    runner.kill()

    def _watch(self, runner: "Popen[bytes]", log: JetStream, bar: Progress, expected: int) -> str | None:
        """Show the progress until the runner has exited; return its pace.

        Returns None when it exited, or stalled for _STALL_SECONDS, before every record was through.
        """
        task = bar.add_task("starting", total=expected)
        started = heard = time.monotonic()
        ready = through = None
        through_count = 0
        while True:
            has_ended = runner.poll() is not None
            if ready is None and self._is_ready():
                ready = time.monotonic()
                bar.update(task, description="running")
            count = _through(log, self._config)
            now = time.monotonic()
            if count != through_count:
                through_count, heard = count, now
                bar.update(task, completed=count)
            if count >= expected and through is None:
                through = now
            if has_ended or now - heard > _STALL_SECONDS:
                break
            time.sleep(_POLL_SECONDS)
        if through is None:
            return None
        return _pace(expected, started, ready if ready is not None and ready < through else None, through)

    def _is_ready(self) -> bool:
        answers = (ask(runner, _ANSWER_WITHIN) for runner in find_runners(self._directory))
        return any(answer is not None and answer["ready"] for answer in answers)

    def _show_tally(self) -> tuple[bool, Counter[str]]:
        """Print the tally; return (whether it has a residue, the records by outcome)."""
        headline(self._console, 4, "The tally: what each leg counted")
        with closing(JetStream.of(self._config).connect()) as log:
            tallied = tally(log, self._names, self._config.topology)
        self._console.print(tally_table(self._config.pipeline_id, tallied))
        outcomes: Counter[str] = Counter()
        for leg in tallied.legs:
            outcomes.update(leg.outcomes)
        return tallied.residue != 0, outcomes

    def _show_rows(self, example: Example) -> None:
        headline(self._console, 5, f"Rows in ClickHouse, table {self._table}")
        with closing(ClickHouse(self._config.sink)) as clickhouse:
            rows = clickhouse.rows(
                "reading a sample",
                f"SELECT {', '.join(example.sample)} FROM {self._table} ORDER BY _tf_partition, _tf_offset LIMIT {_SAMPLE_ROWS}",  # noqa: S608
            )
        table = Table(*example.sample, title=f"the first {len(rows)} of {count_of(self._count_rows()[self._config.sink.id or ''], 'row')}")
        for row in rows:
            table.add_row(*("NULL" if value is None else escape(str(value)) for value in row))
        self._console.print(table)

    def _verify(self, produced: int) -> Iterator[str]:
        """Count every position as `tallyflow audit` does, and compare the values as `tallyflow verify` does; yield the faults."""
        headline(self._console, 6, "Checking Kafka's positions and values against the table and the dead letters")
        with closing(JetStream.of(self._config).connect()) as log:
            positions = Audit(self._config, log, _EXAMPLES, directory=self._directory).run()
            contents = verify(self._config, log, Request(self._directory, examples=_EXAMPLES, with_kafka=True))
        for report in (positions, contents):
            show_report(self._console, report, margin="   ")
        # With several tables the count is there once for each, with its name.
        found = max((count for name, count in contents.counts.items() if name.startswith("in Kafka")), default=0)
        self._show(f"records produced: {produced:,}, found in Kafka: {found:,}")
        if not (positions.is_clean and contents.is_clean):
            yield "records are missing, duplicated or changed"
        if found != produced:
            yield f"{count_of(produced, 'record')} produced, {found:,} in Kafka"

    def _differences(self, example: Example, account: Account, outcomes: Counter[str]) -> Iterator[str]:
        """Compare what became of the records with what the example says must become of them; yield the differences."""
        headline(self._console, 7, f"Comparing with the account that examples/{self._file.parent.name}/events.py makes by itself")
        with closing(JetStream.of(self._config).connect()) as log:
            letters = Counter(code for batch in read_dead_letters(log, self._names, ("code",)) for code in batch["code"].to_pylist())
        question = example.question.format(table=self._table, **{sink: table for sink, table in self._tables.items() if sink})
        with closing(ClickHouse(self._config.sink)) as clickhouse:
            answer = [tuple(row) for row in clickhouse.rows("asking the example's question", question)]
        untaken, filtered, duplicates, kept, waiting = (outcomes[one.label] for one in (UNROUTED, FILTERED, DUPLICATE, KEPT, WAITING))
        found = Account(self._count_rows(), untaken, filtered, duplicates, letters, answer, kept, waiting)
        self._show(escape(f"question: {question}"))
        table = Table("", "must be", "is")
        for name, expected, actual in side_by_side(account, found):
            table.add_row(name, _in_cell(expected), _in_cell(actual))
            if expected != actual:
                yield f"{name}: must be {_in_cell(expected)}, is {_in_cell(actual)}"
        self._console.print(table)

    def _show_dashboard(self, wanted: WindowFigures) -> list[str]:
        """Compare what the dashboard shows with what the example computes in DuckDB; return the differences."""
        headline(self._console, 8, "The dashboard, against DuckDB over the records")
        with served(self._config) as url:
            differing = [*window_differences(url, wanted)]
        table = Table("", *next(iter(wanted.values())), title="what it must show, and shows" if not differing else "what it must show")
        for (window, group), figures in wanted.items():
            table.add_row(escape(", ".join((window, *group))), *map(_figure_in_cell, figures.values()))
        self._console.print(table)
        self._show(f"{count_of(sum(map(len, wanted.values())), 'figure')} compared, {len(differing)} differ")
        names = " ".join(f"{name}={value}" for name, value in self._environment.items() if name.startswith(self._file.parent.name.upper()))
        self._show(f'look at it: eval "$(tallyflow env)" && {names} tallyflow dashboard {escape(os.path.relpath(self._file))}')
        return differing


def _figure_in_cell(value: object) -> str:
    if isinstance(value, list):
        return escape(", ".join(f"{one['item']} {one['amount']}" for one in value))
    return escape(str(value))


def _in_cell(value: object) -> str:
    if isinstance(value, tuple):
        return escape(", ".join(map(str, value)))
    return f"{value:,}" if isinstance(value, int) else "none"
