"""How long a tick of each sensor takes with 20 pipelines: two run, nine have a runner that does not answer, nine are stopped.

The silent runners are processes of this benchmark behind a port that takes connections and never answers, which is what a paused runner
looks like; the running ones are real.
"""

import json
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory

import dagster as dg
import yaml

from bench.release import HERE
from dagster_project.definitions import RESOURCES, build_definitions
from dagster_project.pipeline_files import read_pipeline_files
from pipelines.control.processes import start_mark
from pipelines.demo.events import Recipe
from pipelines.demo.produce import produce
from pipelines.protocol.naming import Names
from resources.clickhouse import ClickHouseResource
from resources.kafka import KafkaResource
from resources.local.kafka.broker import MECHANISM, PROTOCOL
from resources.local.passwords import USER
from resources.local.stack import LocalStack
from resources.nats import NatsResource
from resources.streaming_jobs import StreamingJobs

PIPELINES = 20
RUNNING = 2
SILENT = 9
SENSORS = (
    "keep_pipelines_running",
    "watch_lag",
    "watch_dead_letters",
    "watch_pipeline_files",
    "observe_pipelines",
    "list_hours_to_verify",
)


@dataclass(frozen=True)
class Ticks:
    """Seconds of the ticks of one sensor."""

    sensor: str
    count: int
    median: float
    p99: float
    longest: float


def measure(stack: LocalStack, ticks: int = 100) -> list[Ticks]:
    """The servers must be up. Starts and stops two runners with a JVM each."""
    addresses = stack.addresses()
    topic = f"bench-sensors-{time.time_ns()}"
    produce(addresses.kafka_client, topic, Recipe(), 1000)
    with TemporaryDirectory(prefix="tallyflow-bench-") as made, ExitStack() as open_things:
        directory, home = Path(made) / "files", Path(made) / "home"
        directory.mkdir()
        for number in range(PIPELINES):
            document = {**yaml.safe_load(HERE.example.read_text()), "pipeline_id": f"bench-{number:02d}-{topic[-12:]}"}
            document["sources"][0]["topic"] = topic
            document["sink"]["table"] = f"bench_sensors_{number}"
            (directory / f"{number:02d}.yaml").write_text(yaml.safe_dump(document))
        clickhouse = ClickHouseResource(
            host=addresses.clickhouse_host,
            port=str(addresses.clickhouse_port),
            user=addresses.clickhouse_user,
            password=addresses.clickhouse_password,
        )
        jobs = StreamingJobs(
            kafka=KafkaResource(
                bootstrap_servers=addresses.kafka_bootstrap,
                security_protocol=PROTOCOL,
                sasl_mechanism=MECHANISM,
                sasl_username=USER,
                sasl_password=addresses.kafka_password,
            ),
            nats=NatsResource(url=addresses.nats_url),
            clickhouse=clickhouse,
            home=str(home),
        )
        files = read_pipeline_files(directory, jobs.environment())
        for pipeline in files.pipelines[:RUNNING]:
            open_things.callback(jobs.stop, pipeline.path, kill_after=timedelta(seconds=60))
            jobs.start(pipeline.path)
        for pipeline in files.pipelines[RUNNING : RUNNING + SILENT]:
            open_things.enter_context(_silent(home, pipeline.config.pipeline_id))
        resources = {**RESOURCES, "streaming_jobs": jobs}
        return [_measured(build_definitions(files, resources), resources, name, ticks) for name in SENSORS]


def _silent(home: Path, pipeline_id: str) -> ExitStack:
    """A live process and a port that never answers, as a paused runner leaves them."""
    things = ExitStack()
    port = things.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
    process = Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    things.callback(process.wait)
    things.callback(process.kill)
    own = Names(pipeline_id).directory(home) / "ingest-process-sink-1"
    own.mkdir(parents=True)
    facts = {
        "pid": process.pid,
        "mark": start_mark(process.pid),
        "port": port.getsockname()[1],
        "legs": ["ingest", "process", "sink"],
    }
    (own / "status.json").write_text(json.dumps(facts))
    (own.parent / "desired.json").write_text(json.dumps({"state": "running", "legs": facts["legs"]}))
    return things


def _measured(defs: dg.Definitions, resources: dict[str, object], name: str, ticks: int) -> Ticks:
    """The cursor goes from tick to tick; what is asked for is not launched."""
    seconds, cursor = [], None
    needed = {key: resources[key] for key in ("streaming_jobs", "tallyflow_alerts")}
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(ticks):
            with dg.build_sensor_context(instance=instance, cursor=cursor, resources=needed) as context:
                begun = time.monotonic()
                cursor = defs.resolve_sensor_def(name).evaluate_tick(context).cursor
                seconds.append(time.monotonic() - begun)
    p99 = statistics.quantiles(seconds, n=100)[98] if len(seconds) > 1 else seconds[0]
    return Ticks(name, len(seconds), statistics.median(seconds), min(p99, max(seconds)), max(seconds))
