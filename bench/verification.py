"""`tallyflow verify` over orders that went through the whole pipeline: seconds, CPU seconds by process group, peak memory.

The runner has ended when the verification begins; nothing else of ours runs but the servers.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass

from bench.pipeline import MeasuredPipeline
from bench.processes import Meter
from resources.local.stack import LocalStack

LIMIT_SECONDS = 3_600.0
LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Verified:
    """One verification, from the start of its process to its end. `cpu_seconds` by process group: `driver` is the command itself.

    `peak_pss_bytes`: the largest PSS of the command and its children, looked at every quarter of a second.
    """

    records: int
    rows: int
    seconds: float
    cpu_seconds: dict[str, float]
    peak_pss_bytes: int


def measure(stack: LocalStack, topic: str, events: int, duplicates: int) -> Verified:
    """Takes the topic's `events` through a pipeline with dedup, which drops `duplicates` of them, and verifies them all."""
    with MeasuredPipeline(stack, topic, with_dedup=True) as pipeline:
        pipeline.start()
        pipeline.wait(lambda: pipeline.rows("sink", "rows_in") >= events - duplicates, LIMIT_SECONDS)
        pipeline.stop()
        found = _verify(stack, pipeline)
    if found.records != events or found.rows != events - duplicates:
        raise RuntimeError(f"of {events:,} events {found.records:,} were verified, {found.rows:,} of them rows")
    return found


def _verify(stack: LocalStack, pipeline: MeasuredPipeline) -> Verified:
    servers = {name: int(stack.server(name).pid or 0) for name in ("kafka", "nats", "clickhouse")}
    command = [sys.executable, "-m", "pipelines.cli", "verify", str(pipeline.file), "--json"]
    output_file = pipeline.directory / "verified.json"
    begun = time.monotonic()
    with output_file.open("wb") as output, subprocess.Popen(command, env=pipeline.environment, stdout=output) as process:
        meter = Meter(process.pid, servers)
        before = meter.read()
        used, peak = before, 0
        while process.poll() is None:
            used = meter.read(with_memory=True)
            peak = max(peak, used.pipeline_pss_bytes)
            time.sleep(LOOK_SECONDS)
    seconds = time.monotonic() - begun
    if process.returncode:
        raise RuntimeError(f"the verification ended with {process.returncode}: {output_file.read_text()[:2000]}")
    counts = json.loads(output_file.read_text())["counts"]
    cpu = {group: spent for group, spent in used.since(before).items() if spent}
    return Verified(counts["records"], counts["rows"], seconds, cpu, peak)
