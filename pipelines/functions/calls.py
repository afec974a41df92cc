"""Rows through a function: what passes, what is dropped, and the rows at fault, each found however the batch is cut.

In: rows with the fields that the function reads. Out: the values of those that pass, and the failures. Kept: the hosts of this process, of
the functions that were called last. Guarantee: a row fails only if the function fails on it alone.
"""

import atexit
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import FunctionHaltError, HaltError
from pipelines.expressions.evaluate import NOT_FINITE
from pipelines.expressions.messages import inputs_of
from pipelines.functions.host import Answer, CallFailedError, CallTimeoutError, Failure, Host, HostDiedError
from pipelines.functions.spec import PYTHON_DIED, PYTHON_ROWS, PYTHON_TIMEOUT, Function
from pipelines.types.vectors import Numbers, one_chunk, to_mask

ROWS_PER_CALL = 16_384
MAX_IN_A_ROW = 8
"""Timeouts without a call between them that ends in time: one hanging record among ROWS_PER_CALL makes five or six."""
MAX_TIMEOUTS, MAX_DEATHS = 32, 128
"""Timeouts, and ends of the host, over the rows of one batch."""
_ALONE_ROWS, _ALONE_ROWS_OF_SPARK = 64, 128
"""Rows that are called for one by one in one call. Spark takes longer to fail as a whole than to look at so many rows."""
_PARTS_AFTER_KILL = 16
_ATTEMPTS = 3
"""Calls of one row that must all end the host: a host may also be killed from outside."""
_MAX_HOSTS = 8
MOST_OUTPUT_BYTES = 128 * 1024
"""Texts and bytes that a function may make of a row: a row must fit into a frame, also with a field in several columns."""
_WIDE_INPUT_BYTES = 60 * 1024
"""A row that takes more itself may return more: the mapping rejects what fits no frame."""


@dataclass(frozen=True)
class Called:
    """The rows that pass, ascending, their outputs in the declared types, and the failures in row order.

    A row of which a function makes several passes as often, and none of them if it fails.
    """

    passed: npt.NDArray[np.int64]
    outputs: pa.Table
    failures: Sequence[Failure]


class Hosts:
    """The hosts of a process by function; a new one may end the one that was used longest ago."""

    def __init__(self, make: Callable[[Function], Host] = Host) -> None:
        self._make = make
        self._hosts: OrderedDict[Function, Host] = OrderedDict()
        self._lock = threading.Lock()

    def call(self, function: Function, rows: pa.Table) -> Called:
        """Call the function for all rows, in batches. Threads take turns.

        Raise HaltError if the function cannot be loaded, FunctionHaltError if it hangs or ends its host too often.
        """
        with self._lock:
            return _through(self._host(function), rows)

    def call_alone(self, function: Function, rows: pa.Table) -> Called:
        """Call the function for each row as a batch of its own; a row on which the host ends fails."""
        with self._lock:
            return _through(self._host(function), rows, alone=True)

    def check(self, function: Function) -> None:
        """Load the function. Raise ValueError with a sentence if that fails, as `Host.start` says."""
        with self._lock:
            try:
                self._host(function).start()
            except HaltError as error:
                raise ValueError(str(error)) from None

    def close(self) -> None:
        """End all hosts."""
        while self._hosts:
            self._hosts.popitem()[1].close()

    def forget(self) -> None:
        """Let go of the hosts of the process from which this one was forked."""
        self._lock = threading.Lock()
        while self._hosts:
            self._hosts.popitem()[1].forget()

    def _host(self, function: Function) -> Host:
        if function not in self._hosts:
            self._hosts[function] = self._make(function)
            if len(self._hosts) > _MAX_HOSTS:
                self._hosts.popitem(last=False)[1].close()
        self._hosts.move_to_end(function)
        return self._hosts[function]


HOSTS = Hosts()
atexit.register(HOSTS.close)
os.register_at_fork(after_in_child=HOSTS.forget)


def _through(host: Host, rows: pa.Table, alone: bool = False) -> Called:
    batch, search = _batch_of(host.function, rows), _Search(host, alone)
    parts: list[tuple[int, Called]] = []
    first = 0
    while first < batch.num_rows:
        part = batch.slice(first, _rows_per_call(host))
        parts.append((first, search.through(part)))
        first += part.num_rows
    found = _joined(host.function, parts)
    return found if not found.failures else replace(found, failures=_worded(host.function, batch, found.failures))


def _rows_per_call(host: Host) -> int:
    """Return the rows of one call: by the pace of the last one, they take a quarter of the time limit at most."""
    if not host.seconds_per_row:
        return ROWS_PER_CALL
    return max(1, min(ROWS_PER_CALL, int(host.function.timeout_ms / 4000 / host.seconds_per_row)))


def _worded(function: Function, batch: pa.RecordBatch, failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures in row order, with the function and its inputs in each message."""
    ordered = sorted(failures)
    failed = pa.Table.from_batches([batch]).take(pa.array([row for row, _, _ in ordered]))
    inputs = inputs_of(failed, [name for name, _ in function.inputs])
    return [(row, code, f"{function.reference} {message}{read}") for (row, code, message), read in zip(ordered, inputs, strict=True)]


def _joined(function: Function, parts: Sequence[tuple[int, Called]]) -> Called:
    """Return the parts, each with the number of its first row, as one."""
    passed = [np.empty(0, np.int64), *(part.passed + first for first, part in parts)]
    failures = [(row + first, code, message) for first, part in parts for row, code, message in part.failures]
    outputs = pa.concat_tables([function.output_schema.empty_table(), *(part.outputs for _, part in parts)])
    return Called(np.concatenate(passed), outputs, failures)


class _Search:
    """One pass of a batch through a host: parts that fail are cut until the rows at fault stand alone. `alone`: call for each row."""

    def __init__(self, host: Host, alone: bool) -> None:
        self._host, self._alone = host, alone
        self._hung, self._timeouts, self._deaths = 0, 0, 0

    def through(self, batch: pa.RecordBatch) -> Called:
        """Return what becomes of the rows of a batch. Raise FunctionHaltError beyond the limits."""
        if batch.num_rows == 0:
            return _joined(self._host.function, [])
        try:
            return self._called(batch, self._alone)
        except CallFailedError as error:
            return self._cut(batch, error)
        except (CallTimeoutError, HostDiedError) as error:
            return self._after_kill(batch, error)

    def _called(self, batch: pa.RecordBatch, alone: bool) -> Called:
        begun = time.monotonic()
        answer = self._host.call(batch, alone)
        self._host.seconds_per_row = (time.monotonic() - begun) / batch.num_rows
        self._hung = 0
        return _called_of(answer, batch)

    def _cut(self, batch: pa.RecordBatch, error: CallFailedError) -> Called:
        """Look for the rows over which a call raises: few rows are called for one by one."""
        self._hung = 0
        if batch.num_rows == 1:
            return self._failed(error.code, error.message)
        if batch.num_rows > (_ALONE_ROWS_OF_SPARK if self._host.function.mode == "pyspark" else _ALONE_ROWS):
            return self._parts(batch, 2)
        try:
            return self._called(batch, alone=True)
        except (CallFailedError, CallTimeoutError, HostDiedError):
            return self._parts(batch, 2)

    def _after_kill(self, batch: pa.RecordBatch, error: CallTimeoutError | HostDiedError) -> Called:
        """Look for the rows over which the host hangs or ends: in many parts, as each part at fault costs the whole time."""
        self._count(error)
        if batch.num_rows > 1:
            return self._parts(batch, _PARTS_AFTER_KILL)
        if isinstance(error, CallTimeoutError):
            return self._failed(PYTHON_TIMEOUT, str(error))
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._called(batch, self._alone)
            except CallFailedError as raised:
                return self._failed(raised.code, raised.message)
            except (CallTimeoutError, HostDiedError) as again:
                self._count(again)
        return self._failed(PYTHON_DIED, str(error))

    def _count(self, error: CallTimeoutError | HostDiedError) -> None:
        """Raise FunctionHaltError if the host hangs or ends too often."""
        hangs = isinstance(error, CallTimeoutError)
        self._hung = self._hung + 1 if hangs else 0
        self._timeouts, self._deaths = self._timeouts + hangs, self._deaths + (not hangs)
        if self._hung < MAX_IN_A_ROW and self._timeouts < MAX_TIMEOUTS and self._deaths < MAX_DEATHS:
            return
        often = f"{self._hung} times in a row" if self._hung >= MAX_IN_A_ROW else f"{self._timeouts if hangs else self._deaths} times"
        raise FunctionHaltError(
            f"calling function {self._host.function.reference}: it {error}, {often} over one batch. No record of the batch became a dead "
            "letter, and none is lost. If the host was too slow, start again; else `tallyflow run FILE --accept` makes dead letters of the "
            "records that are planned, without calling it again",
            self._host.function.stage,
        )

    def _parts(self, batch: pa.RecordBatch, count: int) -> Called:
        size = -(-batch.num_rows // count)
        starts = range(0, batch.num_rows, size)
        return _joined(self._host.function, [(first, self.through(batch.slice(first, size))) for first in starts])

    def _failed(self, code: str, message: str) -> Called:
        return replace(_joined(self._host.function, []), failures=[(0, code, message)])


def _called_of(answer: Answer, batch: pa.RecordBatch) -> Called:
    """Return the answer over a batch without the rows of which a number is not finite, or which are too large."""
    faults: dict[int, Failure] = {}
    numbers, outputs = answer.rows.column(0).to_numpy().astype(np.int64), answer.rows.remove_column(0)
    for field in outputs.schema:
        if pa.types.is_floating(field.type):
            for row in numbers[to_mask(pc.invert(pc.is_finite(outputs.column(field.name))))].tolist():
                faults.setdefault(row, (row, NOT_FINITE, f"returns {field.name!r} that is not finite"))
    for row in _too_large(numbers, outputs, batch):
        faults.setdefault(row, (row, PYTHON_ROWS, f"returns more than {MOST_OUTPUT_BYTES:,} bytes"))
    if not faults:
        return Called(numbers, outputs, answer.failures)
    is_sound = ~np.isin(numbers, [*faults])
    return Called(numbers[is_sound], outputs.filter(pa.array(is_sound)), [*answer.failures, *faults.values()])


def _too_large(numbers: Numbers, outputs: pa.Table, batch: pa.RecordBatch) -> list[int]:
    """Return the rows of the batch of which an output is too large, though they are not large themselves."""
    if outputs.nbytes <= MOST_OUTPUT_BYTES:
        return []
    rows = np.unique(numbers[_sizes(outputs) > MOST_OUTPUT_BYTES])
    return rows[_sizes(pa.Table.from_batches([batch.take(pa.array(rows))])) <= _WIDE_INPUT_BYTES].tolist() if len(rows) else []


def _sizes(rows: pa.Table) -> Numbers:
    """Return the bytes of the texts and bytes of each row."""
    sizes = np.zeros(rows.num_rows, dtype=np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return sizes


def _batch_of(function: Function, rows: pa.Table) -> pa.RecordBatch:
    """Return the inputs of a function as one batch, in their declared types."""
    fields = zip(function.input_schema, (one_chunk(rows.column(name)) for name, _ in function.inputs), strict=True)
    arrays = [column if column.type == field.type else column.cast(field.type) for field, column in fields]
    return pa.record_batch(arrays, schema=function.input_schema)
