"""One pipeline under measurement: its file, its runner as an ordinary process, and what its status says."""

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar
from uuid import uuid4

import clickhouse_connect
import httpx
import yaml
from clickhouse_connect.driver.client import Client

from bench.release import HERE, Release
from pipelines.control.control import find_runners
from pipelines.protocol.naming import Names
from resources.local.stack import STATE_VARIABLE, Addresses, LocalStack

START_SECONDS = 120.0
Found = TypeVar("Found")


class MeasuredPipeline:
    """The example pipeline on its own names, reading `topic`, with its dedup or without."""

    def __init__(
        self,
        stack: LocalStack,
        topic: str,
        with_dedup: bool,
        max_delay: str = "100ms",
        max_batch_size: int = 100_000,
        lanes: int = 1,
        streams: int = 1,
        edit: Callable[[dict[str, Any]], None] = lambda _: None,
        release: Release = HERE,
    ) -> None:
        """`edit`: changes the document of the pipeline file."""
        self.stack, self.topic, self.release = stack, topic, release
        unique = uuid4().hex[:8]
        self.pipeline, self.table = f"bench-{unique}", f"bench_{unique}"
        self.directory = Names(self.pipeline).directory(stack.home)
        self.directory.mkdir(parents=True)
        document = yaml.safe_load(release.example.read_text())
        if not with_dedup:
            del document["transforms"]
        # Only what is asked for: an earlier release knows no lanes and no streams.
        if lanes > 1:
            document |= {"lanes": lanes, "buckets": 2 * lanes}
        if streams > 1:
            document |= {"streams": streams}
        document["sink"] |= {"max_delay_time": max_delay, "max_batch_size": max_batch_size}
        edit(document)
        self.file = self.directory / "pipeline.yaml"
        self.file.write_text(yaml.safe_dump(document))
        self.environment = {
            **release.environment(),
            **self.addresses.environment(),
            "TALLYFLOW_HOME": str(stack.home),
            STATE_VARIABLE: stack.state_uri,
            "ORDERS_PIPELINE": self.pipeline,
            "ORDERS_TABLE": self.table,
            "ORDERS_TOPIC": topic,
        }
        self._process: subprocess.Popen[bytes] | None = None
        # One client: each that is made reads the certificates of this host, a twelfth of two cores where it is made for each look.
        self._http = httpx.Client(timeout=30)

    @property
    def addresses(self) -> Addresses:
        return self.stack.addresses()

    def clickhouse(self) -> Client:
        """A client for its table."""
        return clickhouse_connect.get_client(
            host=self.addresses.clickhouse_host,
            port=self.addresses.clickhouse_port,
            username=self.addresses.clickhouse_user,
            password=self.addresses.clickhouse_password,
        )

    def start(self, *arguments: str) -> int:
        """Starts the runner and waits until it serves its status; returns its pid."""
        with (self.directory / "runner.log").open("wb") as log:
            command = [*self.release.command, "run", str(self.file), *arguments]
            self._process = subprocess.Popen(command, cwd=self.release.root, env=self.environment, stdout=log, stderr=log)
        self.wait(lambda: find_runners(self.directory))
        return self._process.pid

    def status(self) -> dict[str, Any] | None:
        found = find_runners(self.directory)
        if not found:
            return None
        try:
            answer = self._http.get(f"http://127.0.0.1:{found[0]['port']}/status")
        except httpx.TransportError:
            return None
        if not answer.is_success:
            raise RuntimeError(f"/status answers {answer.status_code}, {answer.text[:200]!r}: {self._last_words}")
        status: dict[str, Any] = answer.json()
        return status

    @property
    def _last_words(self) -> str:
        return (self.directory / "runner.log").read_text()[-2000:]

    def rows(self, leg: str, count: str) -> int:
        status = self.status()
        return int(status["legs"][leg]["totals"].get(count, 0)) if status and leg in status["legs"] else 0

    def wait(self, condition: Callable[[], Found], seconds: float = START_SECONDS) -> Found:
        """Waits until the condition finds something, and returns it."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"the runner ended with {self._process.returncode}: {self._last_words}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.pipeline}: waited {seconds:.0f} s; status {json.dumps(self.status())[:1000]}")
            time.sleep(0.1)
        return found

    def wait_for_end(self) -> None:
        """Waits until a runner that was killed is gone."""
        assert self._process is not None
        self._process.wait(60)

    def stop(self) -> None:
        """Ends the runner, if it has not ended yet."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the runner and deletes the pipeline with its table."""
        if self._process is None:
            return
        self.stop()
        command = [*self.release.command, "delete", str(self.file), "--yes"]
        subprocess.run(command, cwd=self.release.root, env=self.environment, check=True, capture_output=True)
