"""Rebuilding a key store and verifying a table, in one process and as Spark tasks, on the same orders, one after the other.

The runner has ended when they begin; nothing else of ours runs but the servers.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.pipeline import MeasuredPipeline
from bench.processes import PIPELINE_GROUPS, Meter
from pipelines.config import parse
from pipelines.connectors.nats.client import JetStream
from pipelines.engine.execute import batch_tasks
from pipelines.engine.run_spec import RunSpec
from pipelines.engine.session import build_session
from pipelines.maintenance.inspect import KeyState
from pipelines.maintenance.rebuild import rebuild
from pipelines.proof.verification.result import Verification
from pipelines.proof.verification.run import Request, verify
from pipelines.proof.verification.slices import verify_in_tasks
from resources.local.stack import LocalStack

LIMIT_SECONDS = 3_600.0
WINDOW = "2s"
"""Of dedup: short, or the range would not be worth cutting."""


@dataclass(frozen=True)
class Batch:
    """One piece of work. `cpu_seconds`: of this process, the JVM and the workers. `load`: the machine's load average at its end."""

    work: str
    seconds: float
    cpu_seconds: float
    load: float


def measure(stack: LocalStack, topic: str, events: int) -> Iterator[Batch]:
    """Takes the topic's `events` through a pipeline with dedup; then each work here, as tasks of a cold and of a warm session, and here."""
    with MeasuredPipeline(stack, topic, with_dedup=True) as pipeline:
        document = yaml.safe_load(pipeline.file.read_text())
        document["transforms"][0]["config"]["time_window"] = WINDOW
        pipeline.file.write_text(yaml.safe_dump(document))
        pipeline.start()
        pipeline.wait(lambda: pipeline.rows("sink", "rows_in") + pipeline.rows("process", "duplicates") >= events, LIMIT_SECONDS)
        pipeline.stop()
        yield from _compared(pipeline)


def _compared(pipeline: MeasuredPipeline) -> Iterator[Batch]:
    text, environment = pipeline.file.read_text(), pipeline.environment
    config = parse(text, name="bench", environment=environment)
    state = KeyState(config, text, pipeline.stack.home)
    log, request = JetStream(config.nats).connect(), Request(pipeline.directory)
    here: dict[str, Callable[[], object]] = {"rebuild": lambda: rebuild(state), "verify": lambda: _sound(verify(config, log, request))}
    for name, work in here.items():
        yield _timed(f"{name}, here", work)
    os.environ.update(environment)
    begun = time.monotonic()
    session = build_session("bench", Path(pipeline.directory) / "batch")
    yield Batch("session", time.monotonic() - begun, 0.0, os.getloadavg()[0])
    run = RunSpec.beside(text, config, state.connections.run.state_storage)
    tasks = batch_tasks(session, run, {})
    in_tasks: dict[str, Callable[[], object]] = {
        "rebuild": lambda: rebuild(state, tasks=tasks),
        "verify": lambda: _sound(verify_in_tasks(config, log, request, tasks)),
    }
    for name, work in in_tasks.items():
        yield _timed(f"{name}, tasks, first", work)
        yield _timed(f"{name}, tasks, again", work)
    for name, work in here.items():
        yield _timed(f"{name}, here, again", work)
    session.stop()
    log.close()
    state.close()


def _sound(found: Verification) -> None:
    if not found.is_clean or not found.sequences:
        raise RuntimeError("\n".join(found.lines()))


def _timed(name: str, work: Callable[[], object]) -> Batch:
    meter = Meter(os.getpid(), {})
    before, begun = meter.read(), time.monotonic()
    work()
    seconds, used = time.monotonic() - begun, meter.read().since(before)
    return Batch(name, seconds, sum(used[group] for group in PIPELINE_GROUPS), os.getloadavg()[0])
