"""The work of an epoch's task, in a Python worker of Spark, which keeps what a task has started for the next one."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from pipelines.collection import collect_rarely
from pipelines.connectors.nats.client import JetStream
from pipelines.engine.failures import to_failure
from pipelines.engine.line import NatsLine
from pipelines.engine.run_spec import read_run
from pipelines.errors import RetryableError, TallyflowError
from pipelines.runner import wills
from pipelines.runner.share import Share

ROWS = "share long, leg string, rows long, failure string, has_ended boolean"
SCHEMA = pa.schema([("share", pa.int64()), ("leg", pa.string()), ("rows", pa.int64()), ("failure", pa.string()), ("has_ended", pa.bool_())])


def task_of(run_text: str, subject: str, epoch: int, seconds: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the work of the tasks of an epoch, which is over after so many seconds at most. The number of a task is that of its share."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for _ in batches:
            # Rows only bring tasks about.
            pass
        rows = _worked_here(run_text, subject, context.partitionId(), epoch, seconds, str(context.taskAttemptId()))
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)

    return work


def _worked_here(run_text: str, subject: str, number: int, epoch: int, seconds: float, task: str) -> list[dict[str, Any]]:
    # A function of the module: what `work` itself names is sent with it, and each task would have a KEPT of its own.
    return list(worked(lambda: KEPT.share(run_text, subject, number, epoch, task), number, epoch, seconds, task))


def worked(share_here: Callable[[], Share], number: int, epoch: int, seconds: float, task: str) -> Iterator[dict[str, Any]]:
    """Yield the rows that each leg took, until the epoch is over. A share that must not begin has failed, for this run.

    `share_here`: returns the share of this process, or begins one. A process may have left its legs' share before its task came, to make
    room for another one, which may be lost since: no other task of the epoch would take those legs. So it asks for a share again.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            share = share_here()
            rows = share.hold(epoch, until - time.monotonic(), task)
        except RetryableError:
            raise
        except TallyflowError as error:
            yield {"share": number, "leg": "", "rows": 0, "failure": to_failure(error), "has_ended": True}
            return
        told = {"share": number, "failure": None, "has_ended": share.is_over}
        yield from ({**told, "leg": str(leg), "rows": count} for leg, count in rows.items())
        if not (share.is_over and rows):
            return


class _Kept:
    """What this Python worker keeps from one epoch to the next: its share of one run, and its connection."""

    def __init__(self) -> None:
        self._subject = ""
        self._log: JetStream | None = None
        self._share: Share | None = None

    def share(self, run_text: str, subject: str, number: int, epoch: int, task: str) -> Share:
        """Return the share that works here already, whatever its number; else start one, `number` if no other process has it."""
        if subject != self._subject:
            self._end()
            self._subject = subject
            collect_rarely()
        if self._share is None or self._share.is_over:
            run = read_run(run_text)
            if self._log is None:
                config = run.config
                self._log = JetStream.of(config, "tallyflow-task")
            share = Share(run, number, self._log, NatsLine(self._log, subject), subject=subject)
            share.start(epoch, task)
            wills.leave(share.process, run_text, subject)
            share.at_the_end(lambda: wills.withdraw(share.process))
            self._share = share
        return self._share

    def _end(self) -> None:
        """End what is left of an earlier run: its runner was killed, and its session was not."""
        if self._share is not None:
            self._share.stop()
            self._share.ended.wait()
            self._share = None
        if self._log is not None:
            self._log.close()
            self._log = None


KEPT = _Kept()
