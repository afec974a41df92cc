"""The demo: real servers, restaurant orders, the real command over them, and a check of every position against the table.

A composition root like cli/: it may know the local servers. It does what a user would do: the pipeline runs as `tallyflow run
examples/orders/pipeline.yaml --until-caught-up --accept` in a process of its own. Every run has a topic, a pipeline and a table of its own.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from pipelines.config import PipelineConfig, load
from pipelines.config.source_ids import only_source
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.kafka.settings import client_settings
from pipelines.connectors.nats.client import JetStream
from pipelines.control.control import ask, find_runners
from pipelines.counts import count_of
from pipelines.demo.orders import Recipe
from pipelines.demo.produce import ProduceSummary, produce
from pipelines.errors import ConfigurationError, Fault
from pipelines.home import default_home
from pipelines.proof.audit.run import Audit
from pipelines.proof.readers.streams import read_dead_letters
from pipelines.proof.terminal import show_report, tally_table
from pipelines.proof.verification.run import Request, verify
from pipelines.protocol.naming import Names
from pipelines.protocol.outcomes import CONFIRMED, DUPLICATE
from pipelines.protocol.tally import tally
from resources.local.errors import LocalServerError
from resources.local.stack import STATE_VARIABLE, Addresses, LocalStack

FILE = Path(__file__).resolve().parents[2] / "examples" / "orders" / "pipeline.yaml"
_PARTITIONS = 4
_POLL_SECONDS = 0.1
_STALL_SECONDS = 180.0
_ANSWER_WITHIN = timedelta(seconds=5)
_STOP_SECONDS = 60.0
_SAMPLE_ROWS = 5
_SAMPLE_COLUMNS = ("order_id", "customer_id", "city", "restaurant", "dish", "quantity", "price", "tags", "note")
_LOG_TAIL_LINES = 20
_PLAIN_WIDTH = 120
_EXAMPLES = 10


def demo(recipe: Recipe, count: int, on_cluster: bool = False) -> int:
    """Run the demo, print its progress on standard output and return the exit code.

    `on_cluster`: on a Spark cluster of a master and two workers, which are processes of their own.

    Exit code 0: every produced record is in the table or among the dead letters exactly once, with the right contents, or it is a copy that
    was dropped and counted; the tally has no residue and the runner exited with 0. Exit code 1: anything else, such as servers that do not
    start. The servers keep running. Raises TallyflowError when a system fails the demo itself.
    """
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    if not FILE.exists():
        raise ConfigurationError("demo", [Fault("", f"{FILE} is missing: the demo needs a checkout of the repository")])
    stack = LocalStack(default_home())
    try:
        addresses = _start_servers(console, stack, on_cluster)
        environment = {**os.environ, **addresses.environment(), **_fresh_names(), "TALLYFLOW_HOME": str(stack.home)}
        if on_cluster:
            environment[STATE_VARIABLE] = stack.state_uri
        master = addresses.spark_master if on_cluster else ""
        stage = _Stage(console, load(FILE, environment), environment, stack.home, master)
        is_exact = stage.play(recipe, count)
        console.print("The servers keep running with these records; `tallyflow down` stops them.")
    except LocalServerError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    return 0 if is_exact else 1


def _fresh_names() -> dict[str, str]:
    run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}"
    name = f"orders-demo-{run}"
    return {"ORDERS_PIPELINE": name, "ORDERS_TOPIC": name, "ORDERS_TABLE": name.replace("-", "_")}


def _start_servers(console: Console, stack: LocalStack, with_spark: bool) -> Addresses:
    """Start the servers that do not run.

    Progress is one changing line on a terminal, and a line per change elsewhere.
    """
    _headline(console, 1, f"Starting Kafka, NATS{',' if with_spark else ' and'} ClickHouse{' and a Spark cluster' if with_spark else ''}")
    doing: dict[str, str] = {}
    with console.status("looking for running servers") as line:

        def show(server: str, text: str) -> None:
            # Counting texts differ in their numbers only; a log needs the first of them.
            is_new = doing.get(server, "").split(":")[0] != text.split(":")[0]
            doing[server] = text
            line.update(escape("; ".join(f"{name}: {now}" for name, now in sorted(doing.items()))))
            if is_new and not console.is_terminal:
                console.print(f"   {server}: {text}", markup=False, highlight=False, soft_wrap=True)

        addresses = stack.up(show, with_spark=with_spark)
    console.print(
        f"   Kafka {addresses.kafka_bootstrap}, NATS {addresses.nats_address}, ClickHouse http://{addresses.clickhouse_host}:{addresses.clickhouse_port}"
    )
    return addresses


def _headline(console: Console, number: int, text: str) -> None:
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
    """Count the records of a pipeline that are through by the ledger: confirmed rows, dead letters, duplicates.

    For the progress bar, not for the proof.
    """
    # The ledger is the last stream that a start makes.
    names = Names(config.pipeline_id)
    if log.state(names.stream("ledger")) is None:
        return 0
    tallied = tally(log, names, config.topology)
    return tallied.dead_letters.rows_in + sum(leg.outcomes.get(one.label, 0) for leg in tallied.legs for one in (CONFIRMED, DUPLICATE))


class _Stage:
    """One demo run over running servers: its configuration, and the acts in their order."""

    def __init__(self, console: Console, config: PipelineConfig, environment: Mapping[str, str], home: Path, master: str) -> None:
        self._console, self._config, self._environment, self._master = console, config, environment, master
        self._names = Names(config.pipeline_id)
        self._directory = self._names.directory(home)

    def play(self, recipe: Recipe, count: int) -> bool:
        produced = self._produce(recipe, count)
        ended_well = self._run_pipeline(produced.produced)
        has_residue, dropped = self._show_tally()
        self._show_rows()
        is_exact = self._verify(produced)
        drops_exactly = dropped == produced.duplicates
        if is_exact and ended_well and drops_exactly and not has_residue:
            copies = f" Exactly the {count_of(produced.duplicates, 'copy')} produced were dropped." if produced.duplicates else ""
            self._console.print(f"[bold green]All {count_of(produced.produced, 'record')} accounted for, exactly once.{copies}[/]")
            return True
        reasons = [
            (not is_exact, "records are missing, duplicated or changed"),
            (not drops_exactly, f"{count_of(produced.duplicates, 'copy')} produced, {count_of(dropped, 'duplicate')} dropped"),
            (has_residue, "the tally has a residue"),
            (not ended_well, "the runner failed or stalled"),
        ]
        self._console.print(f"[bold red]NOT accounted for: {'; '.join(reason for applies, reason in reasons if applies)}.[/]")
        return False

    def _show(self, text: str) -> None:
        self._console.print(f"   {text}", soft_wrap=True)

    def _produce(self, recipe: Recipe, count: int) -> ProduceSummary:
        source = only_source(self._config)
        _headline(self._console, 2, f"Producing {count_of(count, 'order')} of {recipe.size:,} bytes to topic {source.topic}")
        with _bar(self._console) as bar:
            task = bar.add_task("produced", total=count)
            made = produce(
                client_settings(source),
                source.topic,
                recipe,
                count,
                partitions=_PARTITIONS,
                progress=lambda _, done=0, total=0: bar.update(task, completed=done),
            )
        bad = ", ".join(f"{count} {kind}" for kind, count in made.bad_kinds.items())
        kinds = f"{made.good:,} good, {count_of(made.duplicates, 'copy')}, {made.bad:,} bad{f' ({bad})' if bad else ''}"
        self._show(f"{kinds}; {made.bytes / 1e6:,.1f} MB in {made.seconds:.1f} s")
        return made

    def _run_pipeline(self, expected: int) -> bool:
        """Return True iff the runner exited by itself with code 0 after every record was through."""
        where = f" on {self._master}" if self._master else ""
        _headline(self._console, 3, f"Running pipeline {self._config.pipeline_id}{where} until it has caught up")
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / "demo.log"
        with closing(JetStream(self._config.nats).connect()) as nats, self._runner(log) as runner, _bar(self._console) as bar:
            pace = self._watch(runner, nats, bar, expected)
        if pace is not None:
            self._show(pace)
        if pace is not None and runner.returncode == 0:
            return True
        what = (
            "the runner exited"
            if pace is not None
            else f"not all records came through: the runner exited, or was stopped after {_STALL_SECONDS:.0f} s without progress,"
        )
        self._console.print(f"   {what} with code {runner.returncode}; the end of {log}:", style="red", soft_wrap=True)
        for text in log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]:
            self._console.print(f"     {text}", markup=False, highlight=False)
        return False

    @contextmanager
    def _runner(self, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
        """Run `tallyflow run` as a child process; stop it gracefully if it still runs at the end of the block."""
        # The demo breaks as many records as it is asked to: the rejection limit must not halt it.
        command = [sys.executable, "-m", "pipelines.cli", "run", str(FILE), "--until-caught-up", "--accept"]
        command += ["--master", self._master] if self._master else []
        with log.open("wb") as output, subprocess.Popen(command, env=self._environment, stdout=output, stderr=output) as runner:  # noqa: S603
            try:
                yield runner
            finally:
                if runner.poll() is None:
                    runner.terminate()
                try:
                    runner.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    runner.kill()

    def _watch(self, runner: "subprocess.Popen[bytes]", log: JetStream, bar: Progress, expected: int) -> str | None:
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

    def _show_tally(self) -> tuple[bool, int]:
        """Print the tally; return (whether it has a residue, the duplicates that it counts)."""
        _headline(self._console, 4, "The tally: what each leg counted")
        with closing(JetStream(self._config.nats).connect()) as log:
            tallied = tally(log, self._names, self._config.topology)
        self._console.print(tally_table(self._config.pipeline_id, tallied))
        return tallied.residue != 0, sum(leg.outcomes.get(DUPLICATE.label, 0) for leg in tallied.legs)

    def _show_rows(self) -> None:
        sink = self._config.sink
        _headline(self._console, 5, f"Rows in ClickHouse, table {sink.connection_params.database}.{sink.table}")
        with closing(ClickHouse(sink)) as clickhouse:
            full_name = f"{sink.connection_params.database}.{sink.table}"
            count = clickhouse.rows("counting rows", f"SELECT count() FROM {full_name}")[0][0]  # noqa: S608
            rows = clickhouse.rows(
                "reading a sample",
                f"SELECT {', '.join(_SAMPLE_COLUMNS)} FROM {full_name} ORDER BY _tf_partition, _tf_offset LIMIT {_SAMPLE_ROWS}",  # noqa: S608
            )
        table = Table(*_SAMPLE_COLUMNS, title=f"the first {len(rows)} of {count_of(count, 'row')}")
        for row in rows:
            table.add_row(*("NULL" if value is None else escape(str(value)) for value in row))
        self._console.print(table)

    def _verify(self, produced: ProduceSummary) -> bool:
        """Count every position as `tallyflow audit` does, and compare the values as `tallyflow verify` does."""
        _headline(self._console, 6, "Checking Kafka's positions and values against the table and the dead letters")
        with closing(JetStream(self._config.nats).connect()) as log:
            positions = Audit(self._config, log, _EXAMPLES).run()
            contents = verify(self._config, log, Request(self._directory, examples=_EXAMPLES, with_kafka=True))
            reasons = Counter(code for batch in read_dead_letters(log, self._names, ("code",)) for code in batch["code"].to_pylist())
        found, bad = contents.counts.get("in Kafka", 0), reasons.total()
        for report in (positions, contents):
            show_report(self._console, report, margin="   ")
        self._show(f"records produced: {produced.produced:,}, found in Kafka: {found:,}")
        self._show(f"dead letters by reason: {', '.join(f'{count} {code}' for code, count in sorted(reasons.items())) or 'none'}")
        is_as_produced = (found, contents.counts.get("copies", 0), bad) == (produced.produced, produced.duplicates, produced.bad)
        return positions.is_clean and contents.is_clean and is_as_produced
