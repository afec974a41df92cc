"""Dagster as `make dagster` starts it: a process of its own, with servers and a home of its own, and the example."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import clickhouse_connect
import httpx
import psutil

from resources.local.stack import Addresses, LocalStack
from support.pipeline_case import PATIENCE_SECONDS, survivors, wait_until

ROOT = Path(__file__).resolve().parents[2]
_RUNS = """{ runsOrError(limit: 100) { ... on Runs { results { runId jobName status eventConnection { events {
  ... on MessageEvent { message timestamp stepKey }
  ... on ExecutionStepFailureEvent { error { message stack } } ... on RunFailureEvent { error { message } }
} } } } } }"""
_LAST_EVENTS = 12


class Deployment:
    """`tallyflow dagster` with a home of its own and the example: its URL, once it says that, and its servers."""

    def __init__(self, home: Path) -> None:
        self.home = home
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "NATS_", "CLICKHOUSE_", "ORDERS_"))}
        self.environment = {**ours, "TALLYFLOW_HOME": str(home), "COLUMNS": "200"}
        self._log = (home / "said").open("w+")
        command = [sys.executable, "-m", "pipelines.cli", "dagster"]
        self._process = subprocess.Popen(
            command, env=self.environment, cwd=ROOT, stdout=self._log, stderr=self._log, start_new_session=True
        )
        self.url = wait_until(self._url, "the address of Dagster", PATIENCE_SECONDS)

    def _url(self) -> str:
        lines = (self.home / "said").read_text()
        assert self._process.poll() is None, lines
        found = re.search(r"^Dagster: (http\S+)$", lines, re.MULTILINE)
        return found.group(1) if found else ""

    @property
    def addresses(self) -> Addresses:
        return LocalStack(self.home).addresses()

    def ask(self, statement: str) -> str:
        """The first value that ClickHouse gives, as text."""
        a = self.addresses
        client = clickhouse_connect.get_client(
            host=a.clickhouse_host, port=a.clickhouse_port, username=a.clickhouse_user, password=a.clickhouse_password
        )
        try:
            return str(client.command(statement))
        finally:
            client.close()

    def tallyflow(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command as a person gives it in another shell."""
        command = [sys.executable, "-m", "pipelines.cli", *arguments]
        environment = {**self.environment, **self.addresses.environment()}
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    def troubles(self) -> list[str]:
        """What runs that failed or have not ended say of themselves: their errors and their last events."""
        runs = httpx.post(f"{self.url}/graphql", json={"query": _RUNS}, timeout=60).json()["data"]["runsOrError"]["results"]
        lines = []
        for run in runs:
            if run["status"] == "SUCCESS":
                continue
            events = run["eventConnection"]["events"]
            lines.append(f"{run['jobName']} {run['runId'][:8]}: {run['status']}")
            lines += [str(event["error"]) for event in events if event.get("error")]
            lines += [f"  {event['timestamp']} {event['stepKey']} {event['message']}" for event in events[-_LAST_EVENTS:]]
        return lines

    def end(self) -> None:
        """Ctrl-C, and nothing that it started is left."""
        family = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_SECONDS)
        left = survivors(family, 60)
        for one in left:
            one.kill()
        print((self.home / "said").read_text())
        self._log.close()
        assert not left, f"processes survived Dagster: {left}"
