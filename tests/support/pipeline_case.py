"""One pipeline under test: its topic, file and table, ways to run and kill it, and the oracle.

The oracle is independent of our code's own account: it reads Kafka with a plain consumer, the table by SQL and the dead letters from the
stream, and compares by position and by content.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import clickhouse_connect
import httpx
import psutil
import yaml
from click.testing import Result
from clickhouse_connect.driver.client import Client
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.config import load, parse
from pipelines.connectors.nats.client import JetStream
from pipelines.control.control import find_runners
from pipelines.dead_letters.reprocess import expire_dead_letters
from pipelines.dead_letters.stream import read_frames
from pipelines.protocol.failpoints import RUNNER_PID_VARIABLE
from pipelines.protocol.naming import Names
from pipelines.protocol.records import decode_frame
from pipelines.protocol.tally import tally
from pipelines.runner.runner import Runner, RunOptions
from pipelines.runner.share import LEG_CLASSES
from pipelines.testing import LEGS, SINGLE
from resources.local.stack import SERVERS, Addresses, LocalStack
from support.forked import Forked
from support.plain_runner import BriskEngine, InvokedEngine, PlainEngine
from support.producer import make_producer, produce

PATIENCE_SECONDS = 240.0
"""For whatever is awaited: it costs time only when it does not come, and a shared machine may be five times slower than ours."""
WORKER_DAEMON = "pipelines.runner.worker_daemon pyspark.worker"
"""In the command line of Spark's Python workers, and of the daemon that forks them."""
Position = tuple[int, int]
_HTTP = httpx.Client(timeout=30, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
"""Shared: making one reads certificates, 25 ms of CPU for each look of those that wait."""


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Polls until `condition` gives something true, and returns that. What takes longer is looked at less often."""
    began = time.monotonic()
    while (waited := (asked := time.monotonic()) - began) < seconds:
        if found := condition():
            return found
        # What asks servers, or parses a file, takes CPU from the runner that it waits for: no more than a third of the time.
        time.sleep(max(min(0.05 + waited / 10, 0.25), 2 * (time.monotonic() - asked)))
    raise AssertionError(f"{what} did not come true within {seconds:.0f} s")


def with_all_up(stack: LocalStack) -> LocalStack:
    """Starts the servers that are not up: a test before may have killed one and failed. To ask all of them takes 0.1 s of CPU."""
    if any(stack.server(name).pid is None for name in SERVERS):
        stack.up()
    return stack


@contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs `work` in a thread until the block ends, which sets the event; what it raises is raised behind the block."""
    stop = threading.Event()
    with ThreadPoolExecutor(1, "meanwhile") as pool:
        working = pool.submit(work, stop)
        try:
            yield
        finally:
            stop.set()
            working.result()


@cache
def admin_of(addresses: Addresses) -> AdminClient:
    """The session's client of a cluster: to make one takes 6 ms of CPU, here and in the broker."""
    # A broker that a test has killed and started again is connected to at once.
    return AdminClient({"log_level": 0, "reconnect.backoff.max.ms": 500, **addresses.kafka_client})


def create_topic(admin: AdminClient, topic: str, partitions: int, **config: str) -> None:
    """Makes a topic that the broker knows when this returns: one that has just been started tells of it somewhat later."""
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
    wait_until(lambda: has_leaders(admin, topic, partitions), "a topic that the broker knows")


def has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    """The topic has so many partitions, and each has a leader."""
    try:
        found = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    except KafkaException:
        return False
    return len(found.partitions) == partitions and all(partition.leader is not None for partition in found.partitions)


class PipelineCase:
    """Makes unique names, so that cases share servers without meeting."""

    def __init__(self, stack: LocalStack, directory: Path) -> None:
        self.stack, self.directory = stack, directory
        self.addresses = stack.addresses()
        unique = uuid4().hex[:10]
        self.pipeline, self.topic, self.table = f"case-{unique}", f"topic-{unique}", f"table_{unique}"
        self.names = Names(self.pipeline)
        self.home = directory / "home"
        self.file = directory / "pipeline.yaml"
        self.admin = admin_of(self.addresses)
        self.session: SparkSession | None = None
        """Where runners inside this process run; None: without Spark (plain_runner.py)."""
        self.leg_classes = dict(LEG_CLASSES)
        """Of runners inside this process."""
        self.reported: list[str] = []
        """What runners inside this process have said."""
        self._client: Client | None = None
        self._processes: list[subprocess.Popen[str] | Forked] = []
        self._warm: list[tuple[Runner, threading.Thread]] = []
        self.sent = self.good = 0
        """Records that `send_events` has sent, and how many of them belong into the table."""
        self.write_file()

    # -- the file -----------------------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        return {
            "version": "v3",
            "pipeline_id": self.pipeline,
            "buckets": 8,
            "sources": [
                {
                    "type": "kafka",
                    "source_id": "events",
                    "topic": self.topic,
                    "connection_params": {
                        "brokers": ["${KAFKA_BOOTSTRAP}"],
                        "protocol": "${KAFKA_SECURITY_PROTOCOL}",
                        "mechanism": "${KAFKA_SASL_MECHANISM}",
                        "username": "${KAFKA_SASL_USERNAME}",
                        "password": "${KAFKA_SASL_PASSWORD}",
                    },
                    "consumer_group_initial_offset": "earliest",
                    "schema_fields": [
                        {"name": "id", "type": "int"},
                        {"name": "name", "type": "string"},
                        {"name": "amount", "type": "float"},
                    ],
                }
            ],
            "sink": {
                "type": "clickhouse",
                "connection_params": {
                    "host": "${CLICKHOUSE_HOST}",
                    "port": "${CLICKHOUSE_PORT}",
                    "username": "${CLICKHOUSE_USER}",
                    "password": "${CLICKHOUSE_PASSWORD}",
                },
                "table": self.table,
                "create_table": True,
                "max_batch_size": 5000,
                "max_delay_time": "200ms",
                "mapping": [
                    {"name": "id", "column_name": "id", "column_type": "Int64"},
                    {"name": "name", "column_name": "name", "column_type": "String"},
                    {"name": "amount", "column_name": "amount", "column_type": "Nullable(Float64)"},
                ],
            },
        }

    def write_file(self, change: Callable[[dict[str, Any]], None] | None = None) -> None:
        document = self.document()
        if change:
            change(document)
        self.file.write_text(yaml.safe_dump(document, sort_keys=False))

    def environment(self, **extra: str) -> dict[str, str]:
        """For a process of its own; a runner inside the test process has left its pid in ours, which a failpoint must not meet."""
        ours = {name: value for name, value in os.environ.items() if name != RUNNER_PID_VARIABLE}
        return {**ours, **self.addresses.environment(), "TALLYFLOW_HOME": str(self.home), **extra}

    # -- Kafka --------------------------------------------------------------------------------------------------------------

    def create_topic(self, partitions: int = 3, **config: str) -> None:
        create_topic(self.admin, self.topic, partitions, **config)

    def compact_soon(self) -> None:
        """Lets the broker look for what it may compact every 0.2 s, from now on; by itself it waits 15 s."""
        (number,) = self.admin.list_topics(timeout=30).brokers
        broker = ConfigResource(ConfigResource.Type.BROKER, str(number))
        broker.add_incremental_config(ConfigEntry("log.cleaner.backoff.ms", "200", incremental_operation=AlterConfigOpType.SET))
        self.admin.incremental_alter_configs([broker])[broker].result(30)

    def send(self, values: Iterable[bytes | None], partitions: int = 3, **settings: Any) -> None:
        """Sends values round robin, in their order; every one is acknowledged when this returns."""
        # One request at a time: a retry at a topic that was just made may not change the order. An idempotent producer keeps it, too, and
        # waits half a second before its first record.
        producer = make_producer(self.addresses.kafka_client, **settings)
        self._produce(producer, values, partitions)
        assert producer.flush(60) == 0

    def _produce(self, producer: Producer, values: Iterable[bytes | None], partitions: int) -> None:
        for number, value in enumerate(values):
            produce(producer, self.topic, value, key=str(number).encode(), partition=number % partitions)
            if number % 1000 == 0:
                producer.poll(0)

    def send_at_once(self, values: Iterable[bytes | None], partitions: int = 3) -> None:
        """Sends values in one transaction: nobody sees one of them before all are there."""
        ours = {"transactional.id": self.topic, "linger.ms": 5}
        producer = Producer({"log_level": 0, **self.addresses.kafka_client, **ours})
        producer.init_transactions(PATIENCE_SECONDS)
        producer.begin_transaction()
        self._produce(producer, values, partitions)
        producer.commit_transaction(PATIENCE_SECONDS)

    def send_events(self, count: int, partitions: int = 3, bad_every: int = 0, name_bytes: int = 0, **settings: Any) -> None:
        """Good events with running ids; with `bad_every`, each so-manieth record is broken JSON.

        `name_bytes` lengthens each name by so much that does not compress: a frame holds about 832 KiB.
        """
        first = self.sent
        self.sent += count
        self.good += sum(not _is_bad(number, bad_every) for number in range(first, first + count))
        self.send((_event(number, bad_every, name_bytes) for number in range(first, first + count)), partitions, **settings)

    @contextmanager
    def load(self, count: int = 300, pause_seconds: float = 0.1, bad_every: int = 100, name_bytes: int = 0) -> Iterator[None]:
        """Sends `count` events again and again, from a thread, until the block ends; none twice, whatever becomes of the broker."""

        def send(stop: threading.Event) -> None:
            while not stop.is_set():
                self.send_events(count, bad_every=bad_every, name_bytes=name_bytes, **{"enable.idempotence": True, "max.in.flight": 5})
                stop.wait(pause_seconds)

        with meanwhile(send):
            yield

    def records(self) -> dict[Position, bytes | None]:
        """What Kafka holds, by (partition, offset), as a read_committed consumer sees it."""
        consumer = Consumer(
            {
                "log_level": 0,
                **self.addresses.kafka_client,
                "group.id": f"oracle-{uuid4().hex}",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                # The first offset that is left, where 0 has expired.
                "auto.offset.reset": "earliest",
                # Its end is told by an answer without records.
                "fetch.wait.max.ms": 10,
            }
        )
        partitions = consumer.list_topics(self.topic, 10).topics[self.topic].partitions
        consumer.assign([TopicPartition(self.topic, p, 0) for p in partitions])
        found: dict[Position, bytes | None] = {}
        ended: set[int] = set()
        while len(ended) < len(partitions):
            for message in consumer.consume(5000, 0.02):
                if message.error() is None:
                    found[message.partition(), message.offset()] = message.value()
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    ended.add(message.partition())
        consumer.close()
        return found

    # -- NATS and ClickHouse ------------------------------------------------------------------------------------------------

    def log(self) -> JetStream:
        return JetStream.of(parse(self.file.read_text(), name="case", environment=self.environment())).connect()

    def client(self) -> Client:
        """One client per case and thread of control: making one costs three queries."""
        if self._client is None:
            a = self.addresses
            self._client = clickhouse_connect.get_client(
                host=a.clickhouse_host, port=a.clickhouse_port, username=a.clickhouse_user, password=a.clickhouse_password
            )
        return self._client

    def count(self) -> int:
        """Rows in the table; 0 while it does not exist."""
        client = self.client()
        # To look for it among the tables of all cases takes three times as long.
        exists = client.query(f"EXISTS TABLE {self.table}").result_rows[0][0]
        return int(client.query(f"SELECT count() FROM {self.table}").result_rows[0][0]) if exists else 0

    def rows(self) -> list[tuple[Position, int, str, float | None]]:
        found = self.client().query(f"SELECT _tf_partition, _tf_offset, id, name, amount FROM {self.table}").result_rows
        return [((p, o), i, n, a) for p, o, i, n, a in found]

    def dead_letters(self) -> list[dict[str, Any]]:
        """All dead letters, decoded."""
        log = self.log()
        dead_letters = [row for _, frame in read_frames(log, self.names) for row in frame.to_pylist()]
        log.close()
        return dead_letters

    def entered(self) -> set[str]:
        """Positions of the letters that entered again, as their records on the raw stream tell."""
        log, stream = self.log(), self.names.stream("raw")
        state = log.state(stream)
        subject = f"tf.{self.pipeline}.raw.events.redrive.>"
        found = log.fetch(stream, subject, 0, state.last_sequence) if state and log.subjects(stream, subject) else []
        origins = [origin for message in found for origin in decode_frame(message.payload).column("origin").to_pylist()]
        log.close()
        assert len(origins) == len(set(origins)), "a letter has entered twice"
        return set(origins)

    # -- running ------------------------------------------------------------------------------------------------------------

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`tallyflow run FILE --until-caught-up` as its own process, to its end."""
        process = self.start("--until-caught-up", *arguments, **environment)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run_plain(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """As `run`, without Spark (plain_runner.py): everything in the driver."""
        process = self.start_plain("--until-caught-up", **environment)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start_plain(self, *arguments: str, **environment: str) -> Forked:
        return self.fork("run", str(self.file), *arguments, **environment)

    def fork(self, *arguments: str, entry: str = "main", **environment: str) -> Forked:
        """A `tallyflow` command as a process of its own, `run` without Spark, in a Python that has imported our code (forked.py)."""
        process = Forked([f"support.plain_runner:{entry}", *arguments], self.environment(**environment), self.directory)
        self._processes.append(process)
        return process

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return self.begin([sys.executable, "-m", "pipelines.cli", "run", str(self.file), *arguments], **environment)

    def start_eager(self, *arguments: str) -> "subprocess.Popen[str]":
        script = str(Path(__file__).with_name("eager_runner.py"))
        return self.begin([sys.executable, script, "run", str(self.file), *arguments])

    def begin(self, command: Sequence[str], **environment: str) -> "subprocess.Popen[str]":
        """Any process that has ended when the test has."""
        process = subprocess.Popen(
            command,
            env=self.environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=self.directory,
        )
        self._processes.append(process)
        return process

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Any other `tallyflow` command."""
        return subprocess.run(
            [sys.executable, "-m", "pipelines.cli", *arguments],
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            cwd=self.directory,
        )

    def invoke(self, *arguments: str, **environment: str) -> Result:
        """A `tallyflow` command inside this process, `run` without Spark; one of its own takes seconds to start. For the main thread."""
        with kept_signals():
            return CliRunner().invoke(app, arguments, env=self.environment(**environment), obj=InvokedEngine())

    def status(self) -> dict[str, Any] | None:
        found = self.invoke("status", str(self.file), "--json")
        return json.loads(found.stdout) if found.stdout.startswith("{") else None

    def ask(self) -> dict[str, Any] | None:
        """What `status` asks for, from the runner itself; None while there is none."""
        found = find_runners(self.names.directory(self.home))
        try:
            return _HTTP.get(f"http://127.0.0.1:{found[0]['port']}/status").json() if found else None
        except httpx.TransportError:
            return None

    def wait_ready(self, process: "subprocess.Popen[str]") -> None:
        def ready() -> bool:
            assert process.poll() is None, process.communicate()[1]
            return bool((self.ask() or {}).get("ready"))

        wait_until(ready, "a ready runner")

    def wait_count(self, rows: int) -> None:
        """Until the table holds at least so many rows."""
        try:
            wait_until(lambda: self.count() >= rows, f"{rows} rows in the table")
        except AssertionError as error:
            raise AssertionError(f"{error}; there are {self.count()}, the runner says {self.ask()}, {self.reported}") from error

    def warm_run(self, until_caught_up: bool = True, **options: Any) -> Runner:
        """Runs to the end inside this process: on the shared session, or without Spark where the test does not ask for one."""
        runner = self.warm_runner(until_caught_up, **options)
        with kept_signals():
            runner.run()
        return runner

    def run_in_turn(self, *legs: str, **options: Any) -> None:
        """One leg after the other, each to its end: a leg meets all that was written before it in one batch.

        In a run of all legs each meets what there is already, and how much that is depends on the machine.
        """
        for leg in legs or LEGS:
            self.warm_run(legs=(leg,), **options)

    def warm_runner(self, until_caught_up: bool = True, **options: Any) -> Runner:
        os.environ.update(self.addresses.environment())
        text = self.file.read_text()
        config = load(self.file)
        engine = BriskEngine(self.session) if self.session else PlainEngine(self.leg_classes)
        legs = config.topology.select(options.pop("legs", ()))
        run_options = RunOptions(legs, until_caught_up, **options)
        runner = Runner(config, text, self.home, run_options, expire_dead_letters, self.reported.append, engine)
        runner.report = lambda event: self.reported.append(event.message) if event.kind == "waiting" else None
        return runner

    def in_background(self, runner: Runner) -> threading.Thread:
        thread = threading.Thread(target=runner.run, daemon=True)
        thread.start()
        self._warm.append((runner, thread))
        wait_until(lambda: runner.is_ready or not thread.is_alive(), "a ready runner")
        return thread

    def end(self) -> None:
        """Ends what still runs, and asserts that a dead runner's JVM and workers follow it."""
        for runner, thread in self._warm:
            runner.request_stop()
            thread.join(PATIENCE_SECONDS)
        for process in self._processes:
            family = family_of(process)
            if process.poll() is None:
                process.kill()
                for one in family:
                    # A test that failed with its runner paused: a stopped process does not notice that its parent is gone.
                    with suppress(psutil.NoSuchProcess):
                        one.resume()
            print(*process.args, "said:", process.communicate()[1], sep=" ")
            left = survivors(family, 30)
            for one in left:
                one.kill()
            assert not left, f"processes survived their runner: {left}"
        if self._client is not None:
            self._client.close()

    # -- the oracle ---------------------------------------------------------------------------------------------------------

    def check(self, lost_on_purpose: Sequence[Position] = ()) -> None:
        """Every record of Kafka is in the table or a dead letter, once; every row says what its record says; the tally is even.

        Letters that entered again are none any more: their records are counted where they are now.
        """
        records = {p: v for p, v in self.records().items() if p not in lost_on_purpose}
        rows = self.rows() if self.count() else []
        entered = self.entered()
        dead_letters = [
            dead_letter
            for dead_letter in self.dead_letters()
            if f"{dead_letter['_tf_sequence']}.{dead_letter['_tf_ordinal']}" not in entered
        ]
        reached = Counter(position for position, *_ in rows) + Counter((le["_tf_partition"], le["_tf_offset"]) for le in dead_letters)
        assert not {p: n for p, n in reached.items() if n > 1}, "doubled"
        assert not set(records) - set(reached), "lost"
        assert not set(reached) - set(records), "invented"
        for position, number, name, amount in rows:
            value = records[position]
            assert value is not None
            event = json.loads(value)
            assert (number, name, amount) == (event["id"], event["name"], event.get("amount")), position
        for dead_letter in dead_letters:
            if dead_letter["oversize"] is None:
                assert dead_letter["value"] == records[dead_letter["_tf_partition"], dead_letter["_tf_offset"]]
        log = self.log()
        found = tally(log, self.names, SINGLE)
        log.close()
        assert found.residue == 0
        assert [leg.waiting for leg in found.legs] == [0, 0, 0]


@contextmanager
def kept_signals() -> Iterator[None]:
    """What a runner of the main thread does about signals ends with the block."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _is_bad(number: int, bad_every: int) -> bool:
    return bad_every > 0 and number % bad_every == bad_every - 1


def _event(number: int, bad_every: int, name_bytes: int) -> bytes:
    if _is_bad(number, bad_every):
        return b'{"id": %d, "name": ' % number
    # To seed one takes longer than all the rest.
    more = random.Random(number).randbytes(name_bytes // 2).hex() if name_bytes else ""
    return f'{{"id": {number}, "name": "event {number}{more}", "amount": {number / 4}}}'.encode()


def family_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Every process of the runner's own session: the JVM, workers; also when the runner itself is gone."""
    found = []
    for one in psutil.process_iter(["pid"]):
        try:
            if os.getsid(one.pid) == process.pid and one.pid != process.pid:
                found.append(one)
        except ProcessLookupError:
            continue
    return found


def members(process: "subprocess.Popen[str]", words: str) -> list[psutil.Process]:
    """Processes of the runner's session whose command line contains `words`."""
    return with_text(family_of(process), words)


def with_text(processes: Iterable[psutil.Process], words: str) -> list[psutil.Process]:
    """Those of the live processes whose command line contains `words`."""
    found = []
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            if words in " ".join(one.cmdline()):
                found.append(one)
    return found


def forked_workers(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those of the processes that are Python workers of Spark: children of one of its daemons."""
    found = with_text(processes, WORKER_DAEMON)
    daemons = {process.pid for process in found}
    return [process for process in found if process.ppid() in daemons]


def workers_of(session: SparkSession) -> list[psutil.Process]:
    """The Python workers of a session of this process."""
    jvm: Any = session.sparkContext._gateway
    return forked_workers(psutil.Process(jvm.proc.pid).children(recursive=True))


def kill(process: psutil.Process) -> None:
    """Kills it and waits until it is gone."""
    os.kill(process.pid, signal.SIGKILL)
    assert not survivors([process], 10)


def pause(process: psutil.Process) -> None:
    """Stops it, to be resumed or killed, and waits until no thread of it runs.

    Until then a busy one still answers, and takes a later SIGTERM with it into the pause as one that it has got.
    """
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "a paused process")


def survivors(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after `seconds`; a zombie that its parent has not waited for does not."""
    deadline = time.monotonic() + seconds
    left = [one for one in processes if _is_alive(one)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [one for one in left if _is_alive(one)]
    return left


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
