"""The real Kafka 4 broker: one KRaft node (broker and controller in one process) on loopback."""

import base64
import shutil
import subprocess
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from pipelines.private import OWNER_ONLY, write_whole
from resources.local.errors import LocalServerError
from resources.local.java import find_java
from resources.local.kafka.jars import KAFKA_VERSION, ensure_jars
from resources.local.passwords import USER
from resources.local.ports import HOST, choose_port
from resources.local.server import Endpoint, NotReadyError

_LOG4J = Path(__file__).parent / "log4j2.xml"

PROTOCOL, MECHANISM = "SASL_PLAINTEXT", "PLAIN"
_LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"

# Measured, 2 cores: with the serial collector 173 MiB at rest, with G1 212, and no slower to start; reads pass from the page cache to the
# socket and do not touch the heap.
JVM_FLAGS = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true")


class Kafka:
    """Runs Kafka on a loopback port. Acknowledged records survive kill -9 (they are in the page cache), not a power cut."""

    name = "kafka"

    def __init__(self, render: "Callable[[Endpoint, Path, int], str] | None" = None) -> None:
        """Create the kind; `render` returns the text of server.properties, as `render_properties` does."""
        self._render = render or render_properties

    def settings(self, endpoint: Endpoint) -> str:
        return f"{KAFKA_VERSION} {' '.join(JVM_FLAGS)}\n{self._render(endpoint, endpoint.directory / 'data', 0)}"

    def prepare(self, endpoint: Endpoint, progress: Callable[[str], None]) -> Sequence[str]:
        java = find_java()
        jars = ensure_jars(java, endpoint.environment, progress)
        # A port that no address names: chosen anew at each start. The voter set in the metadata log follows it.
        controller_port = choose_port([endpoint.port])
        launch = [
            str(java.executable),
            *JVM_FLAGS,
            f"-Dlog4j2.configurationFile={_LOG4J}",
            f"-Dtallyflow.log={endpoint.directory / 'kafka.log'}",
        ]
        launch += [f"-XX:ErrorFile={endpoint.directory / 'hs_err.log'}", "-cp", f"{jars}/*"]
        if not (endpoint.directory / "data").exists():
            progress("formatting its storage")
            fresh = endpoint.directory / "data.formatting"
            _format(launch, endpoint, fresh, self._render(endpoint, fresh, controller_port))
        properties = endpoint.directory / "server.properties"
        write_whole(properties, self._render(endpoint, endpoint.directory / "data", controller_port))
        return [*launch, "kafka.Kafka", str(properties)]

    def probe(self, endpoint: Endpoint, timeout: timedelta) -> str:
        # Imported where a server is asked: most commands only look up where the local one is.
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        asking = f"asking Kafka for its topics at {endpoint.address}"
        # The library writes each refused connection to stderr unless told otherwise; the exception says the same.
        admin = AdminClient(
            {
                **client_settings(endpoint.address, endpoint.password),
                "log_level": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
            }
        )
        try:
            metadata = admin.list_topics(timeout=timeout.total_seconds())
        except KafkaException as error:
            raise NotReadyError(f"{asking}: {error.args[0].str()}") from error
        expected = cluster_id(endpoint.directory / "data")
        if metadata.cluster_id != expected:
            raise NotReadyError(f"{asking}: cluster {metadata.cluster_id!r} answers, ours is {expected!r}")
        leaderless = [
            f"{topic.topic}/{one.id}" for topic in metadata.topics.values() for one in topic.partitions.values() if one.leader < 0
        ]
        if leaderless or not metadata.brokers:
            raise NotReadyError(f"{asking}: no leader yet for {', '.join(leaderless[:5]) or 'anything'}")
        return KAFKA_VERSION

    def logs(self, directory: Path) -> Sequence[Path]:
        return [directory / "kafka.log", directory / "console.log"]


def render_properties(endpoint: Endpoint, log_directory: Path, controller_port: int) -> str:
    """Return the text of server.properties; every other setting has Kafka's default (retention 7 days, records up to 1 MiB)."""
    # java.util.Properties reads a backslash as an escape.
    directory = str(log_directory).replace("\\", "\\\\")
    # Broker and controller log in to each other, too: the controller's port takes the same logins as the broker's.
    login = f'{_LOGIN_MODULE} required username="{USER}" password="{endpoint.password}" user_{USER}="{endpoint.password}";'
    return f"""\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers={HOST}:{controller_port}
controller.listener.names=CONTROLLER
listeners=CLIENT://{endpoint.address},CONTROLLER://{HOST}:{controller_port}
advertised.listeners=CLIENT://{endpoint.address}
inter.broker.listener.name=CLIENT
listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT
sasl.enabled.mechanisms={MECHANISM}
sasl.mechanism.inter.broker.protocol={MECHANISM}
sasl.mechanism.controller.protocol={MECHANISM}
listener.name.client.plain.sasl.jaas.config={login}
listener.name.controller.plain.sasl.jaas.config={login}
log.dirs={directory}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
num.network.threads=2
num.io.threads=4
background.threads=2
num.recovery.threads.per.data.dir=2
log.cleaner.dedupe.buffer.size=4194304
metadata.max.idle.interval.ms=5000
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
"""


def client_settings(address: str, password: str) -> dict[str, str]:
    """Return librdkafka settings that connect and log in. They hold the password: never log them."""
    login = {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": password}
    return {"bootstrap.servers": address, "security.protocol": PROTOCOL, **login}


def cluster_id(log_directory: Path) -> str | None:
    """Return the cluster id with which the storage was formatted, or None if it is not formatted."""
    try:
        lines = (log_directory / "meta.properties").read_text().splitlines()
    except FileNotFoundError:
        return None
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("cluster.id=")), None)


def _format(launch: Sequence[str], endpoint: Endpoint, fresh: Path, text: str) -> None:
    """Format the storage in `fresh`, beside its final place, and move it there in one step, so that a crash leaves no half of it."""
    shutil.rmtree(fresh, ignore_errors=True)
    properties = endpoint.directory / "format.properties"
    write_whole(properties, text)
    identifier = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # `=`, because an identifier may begin with a dash.
    command = [*launch, "kafka.tools.StorageTool", "format", "--standalone", f"--cluster-id={identifier}", f"--config={properties}"]
    done = subprocess.run(  # noqa: S603
        command,
        env=dict(endpoint.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        umask=OWNER_ONLY,
    )
    if done.returncode != 0:
        raise LocalServerError(f"formatting Kafka's storage in {fresh}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
    fresh.rename(endpoint.directory / "data")
    properties.unlink()
