"""The function host: a process that imports one function, and calls it for each request. Imports nothing of ours; run by its path.

`spark_child` is the host of a function over DataFrames, with the same input and output.

In, on the standard input: one line of JSON (`main`), then requests: `<BQ`, 1 if each row is called for alone, and the length of an Arrow
IPC stream of one batch. Out, on what was the standard output: answers `<BQQ`, a status, the resident bytes of this process, and the length
of the content. A function's own prints go to the standard error. The process ends with its input.
"""

import importlib
import json
import os
import re
import resource
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from math import isfinite
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

REQUEST, ANSWER = struct.Struct("<BQ"), struct.Struct("<BQQ")
OK, FAILED = 0, 1
ROW = "_row"
"""The column that says from which row of the batch each returned row comes."""
WRITTEN = ("array", "object", "map", "decimal")
"""The declared types whose values the pipeline holds as text: JSON without spaces, or the digits of a decimal number."""
MOST_ROWS = 10_000
"""Rows that a function may make of one record: all rows of a batch are in memory."""
_MAX_TEXT = 300
_MOST_DIGITS = 200
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_PAGE_BYTES = resource.getpagesize()
Failure = tuple[int, str, str]
"""The number of a row, the code, and the message."""


class RowsError(Exception):
    """The function has returned something else than what the pipeline file declares."""


class DescribedError(Exception):
    """A call has failed, as its code and its message say."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Answering(Protocol):
    """The function of a host, loaded."""

    def answer(self, batch: pa.RecordBatch, alone: bool) -> tuple[pa.Table, list[Failure]]: ...


Load = Callable[[dict[str, Any], tuple[pa.Schema, pa.Schema]], Answering]
"""Imports the function that `main` has read of; the schemas are those of the inputs and the outputs."""


class Host:
    """The function, called as its mode says. `outputs`: the schema of the declared fields; `written`: the type of those of WRITTEN.

    `makes_several`: it may make several rows of one.
    """

    def __init__(
        self, function: Callable[[Any], Any], mode: str, outputs: pa.Schema, written: Mapping[str, str], makes_several: bool
    ) -> None:
        self._function, self._mode, self._outputs, self._written = function, mode, outputs, written
        self._makes_several = makes_several
        self._answered = outputs.insert(0, pa.field(ROW, pa.uint32()))

    def answer(self, batch: pa.RecordBatch, alone: bool) -> tuple[pa.Table, list[Failure]]:
        """Return the rows that pass, with ROW, and the failures. A call for the whole batch raises what the function raises."""
        if self._mode == "row":
            return self._by_row(batch)
        if not alone:
            return self._whole(batch), []
        tables, failures = [self._answered.empty_table()], []
        for number in range(batch.num_rows):
            try:
                table = self._whole(batch.slice(number, 1))
            except BaseException as error:
                failures.append((number, *described(error)))
            else:
                tables.append(table.set_column(0, ROW, pa.array([number] * table.num_rows, pa.uint32())))
        return pa.concat_tables(tables), failures

    def _whole(self, batch: pa.RecordBatch) -> pa.Table:
        returned = self._function(batch)
        if not isinstance(returned, pa.RecordBatch | pa.Table):
            raise RowsError(f"returns {type(returned).__name__}, no pyarrow.RecordBatch")
        rows = self._row_numbers(returned, batch.num_rows)
        columns = [self._as_declared(_column(returned, field.name), field) for field in self._outputs]
        return pa.table([rows, *columns], schema=self._answered)

    def _as_declared(self, column: Any, field: pa.Field) -> Any:
        kind = self._written.get(field.name)
        return _cast(column, field) if kind is None else texts_of(column, field.name, kind)

    def _row_numbers(self, returned: pa.RecordBatch | pa.Table, count: int) -> pa.Array | pa.ChunkedArray:
        if ROW not in returned.schema.names:
            if returned.num_rows != count:
                raise RowsError(f"returns {returned.num_rows} rows for {count}, without the column {ROW}")
            return pa.array(range(count), pa.uint32())
        # A function that is called by row does without: 30 ms of its start.
        import pyarrow.compute as pc

        rows = _cast(returned.column(ROW), pa.field(ROW, pa.uint32()))
        follows = pc.less_equal if self._makes_several else pc.less
        ascends = rows.null_count == 0 and pc.all(follows(rows[:-1], rows[1:])).as_py() is not False
        if not ascends or (len(rows) and rows[-1].as_py() >= count):
            several = "" if self._makes_several else "; `rows: many` allows a number several times"
            raise RowsError(f"returns a column {ROW} that does not ascend from row to row below {count}{several}")
        if self._makes_several and len(rows):
            _check_number(pc.max(pc.value_counts(rows).field("counts")).as_py())
        return rows

    def _by_row(self, batch: pa.RecordBatch) -> tuple[pa.Table, list[Failure]]:
        names, function = batch.schema.names, self._function
        rows: list[int] = []
        returned: list[dict[str, Any]] = []
        failures: list[Failure] = []
        values = zip(*(column.to_pylist() for column in batch.columns), strict=True) if names else ((),) * batch.num_rows
        for number, record in enumerate(values):
            try:
                made = self._rows_of(function(dict(zip(names, record, strict=True))))
            except BaseException as error:
                failures.append((number, *described(error)))
                continue
            rows += [number] * len(made)
            returned += made
        return self._checked(rows, returned, failures)

    def _rows_of(self, returned: Any) -> list[dict[str, Any]]:
        """Return the rows that the function has made of a record. Raise RowsError for anything else than rows."""
        rows = [] if returned is None else returned if isinstance(returned, list | tuple) and self._makes_several else [returned]
        if other := next((row for row in rows if not isinstance(row, dict)), None):
            several = ", and no list of dicts" if self._makes_several else ": one record cannot become several without `rows: many`"
            raise RowsError(f"returns {type(other).__name__}, no dict and no None{several}")
        _check_number(len(rows))
        if not self._written:
            return list(rows)
        return [row | {name: text_of(row[name], name, kind) for name, kind in self._written.items() if name in row} for row in rows]

    def _checked(self, rows: list[int], returned: list[dict[str, Any]], failures: list[Failure]) -> tuple[pa.Table, list[Failure]]:
        """Return the rows as a table; where a value has not its type, find the rows one by one."""
        try:
            columns = [pa.array([made[field.name] for made in returned], field.type) for field in self._outputs]
            return pa.table([pa.array(rows, pa.uint32()), *columns], schema=self._answered), failures
        except (KeyError, pa.ArrowException, TypeError, ValueError, OverflowError):
            faults: dict[int, str] = {}
            for number, made in zip(rows, returned, strict=True):
                if number not in faults and (fault := self._fault(made)):
                    faults[number] = fault
            if not faults:
                raise
            failures += [(number, "python_rows", fault) for number, fault in faults.items()]
            sound = [(number, made) for number, made in zip(rows, returned, strict=True) if number not in faults]
            return self._checked([number for number, _ in sound], [made for _, made in sound], failures)

    def _fault(self, made: dict[str, Any]) -> str:
        for field in self._outputs:
            if field.name not in made:
                return f"returns a dict without {field.name!r}"
            try:
                pa.array([made[field.name]], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                return f"returns {field.name!r} as {type(made[field.name]).__name__} {_cut(repr(made[field.name]), 40)}, no {field.type}"
        return ""


def _check_number(rows: int) -> None:
    if rows > MOST_ROWS:
        raise RowsError(f"makes {rows:,} rows of a record, more than {MOST_ROWS:,}")


def texts_of(column: Any, name: str, kind: str) -> pa.Array:
    """Return a column of a type of WRITTEN as text. Raise RowsError for a column, or a value, of another form."""
    if not _holds(column.type, kind):
        raise RowsError(f"returns {name!r} as {column.type}, no {kind}")
    return pa.array([text_of(value, name, kind) for value in column.to_pylist(maps_as_pydicts="strict")], pa.string())


def _holds(found: pa.DataType, kind: str) -> bool:
    if pa.types.is_null(found) or _family(found) == "text":
        return True
    if kind == "decimal":
        return bool(pa.types.is_decimal(found) or pa.types.is_integer(found))
    is_list = pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_fixed_size_list(found)
    return bool(is_list if kind == "array" else pa.types.is_struct(found) or pa.types.is_map(found))


def text_of(value: Any, name: str, kind: str) -> str | None:
    """Return a value of a type of WRITTEN as text; one that is text already is read first. Raise RowsError for another form."""
    if value is None:
        return None
    try:
        if kind == "decimal":
            return _digits(value)
        found = json.loads(value, object_pairs_hook=_distinct, parse_constant=_refused) if isinstance(value, str) else value
        if not isinstance(found, list | tuple if kind == "array" else dict):
            raise RowsError(f"{type(value).__name__} {_cut(repr(value), 40)}, no {kind}")
        text = json.dumps(_plain(found), ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except json.JSONDecodeError:
        raise RowsError(f"returns {name!r} as text {_cut(repr(value), 40)} that is no JSON") from None
    except UnicodeEncodeError:
        raise RowsError(f"returns {name!r} with text that is not UTF-8") from None
    except RowsError as error:
        raise RowsError(f"returns {name!r} as {error}") from None
    return text


def _plain(value: Any) -> Any:
    """Return a value of JSON: instants and dates become text, decimals the text of their digits, and tuples lists."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else _refused(repr(value))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        if other := next((key for key in value if not isinstance(key, str)), None):
            raise RowsError(f"an object with the key {_cut(repr(other), 40)}, which is no text")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Decimal):
        return _digits(value)
    if isinstance(value, date):
        return value.isoformat()
    raise RowsError(f"something that holds {type(value).__name__} {_cut(repr(value), 40)}, which JSON has not")


def _digits(value: Any) -> str:
    number = value
    if (isinstance(value, str) and _NUMBER.fullmatch(value)) or (isinstance(value, int) and not isinstance(value, bool)):
        number = Decimal(value)
    if (
        not isinstance(number, Decimal)
        or not number.is_finite()
        or max(abs(number.adjusted()), len(number.as_tuple().digits)) > _MOST_DIGITS
    ):
        raise RowsError(f"{type(value).__name__} {_cut(repr(value), 40)}, no decimal")
    return format(number, "f")


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RowsError("JSON with a key twice")
    return found


def _refused(number: str) -> Any:
    raise RowsError(f"something that holds {number}, which JSON has not")


def described(error: BaseException) -> tuple[str, str]:
    """Return the code and the message of what a call has raised."""
    if isinstance(error, DescribedError):
        return error.code, error.message
    if isinstance(error, RowsError):
        return "python_rows", _cut(str(error), _MAX_TEXT)
    text = " ".join(str(error).split())
    # An address differs from run to run.
    message = _cut(_ADDRESS.sub("0x...", f"raises {type(error).__name__}{': ' if text else ''}{text}"), _MAX_TEXT)
    return "python_died" if isinstance(error, MemoryError) else "python_error", message


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _column(returned: pa.RecordBatch | pa.Table, name: str) -> Any:
    if name not in returned.schema.names:
        raise RowsError(f"returns no column {name!r}")
    return returned.column(name)


def _cast(column: Any, field: pa.Field) -> Any:
    """Return the column in its declared type: no number becomes text, no text a number, and nothing is lost."""
    if column.type == field.type:
        return column
    if not (pa.types.is_null(column.type) or _family(column.type) == _family(field.type)):
        raise RowsError(f"returns {field.name!r} as {column.type}, no {field.type}")
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise RowsError(f"returns {field.name!r} as {column.type}: {error}") from error


def _family(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    return "instant" if pa.types.is_timestamp(kind) and kind.tz else str(kind)


class _LatePandas(MetaPathFinder):
    """Finds pandas unless it is hidden, and has PyArrow look for it again once it is imported."""

    is_hidden = True

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != "pandas":
            return None
        if self.is_hidden:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and found.loader is not None:
            found.loader.exec_module = partial(_import_pandas, found.loader.exec_module)  # type: ignore[method-assign]
        return found


def _import_pandas(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    run(module)
    # A pandas too old for PyArrow is the function's to use all the same.
    with suppress(ImportError):
        _ = pa.lib._pandas_api.pd


def _leave_out_pandas() -> None:
    """Keep PyArrow from importing pandas for its first conversion: 0.2 s and 45 MB of a function that never uses it."""
    sys.meta_path.insert(0, finder := _LatePandas())
    pa.array([0])
    finder.is_hidden = False


def main(load: Load) -> None:
    """Serve the function that the first line of the input names.

    `root` of its files, `function`, `mode`, the schemas `inputs` and `outputs`, the types of outputs that are `written` as text,
    whether it `makes_several` rows of one, and `address_bytes`, its limit.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    start = json.loads(requests.readline())
    if start["address_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (start["address_bytes"], start["address_bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _leave_out_pandas()
    try:
        inputs = _schema(start["inputs"])
        host = load(start, (inputs, _schema(start["outputs"])))
    except BaseException as error:
        _send(answers, FAILED, [json.dumps(described(error)).encode()])
        return
    try:
        # The first call imports what pyarrow and the function import late: no record's time limit may hold for that.
        host.answer(pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in inputs.types], schema=inputs), alone=False)
    except BaseException as error:
        code, message = described(error)
        _send(answers, FAILED, [json.dumps([code, f"{message}, for a batch of no rows"]).encode()])
        return
    _send(answers, OK, [])
    for alone, payload in _received(requests):
        try:
            table, failures = host.answer(_batch(payload), alone)
        except BaseException as error:
            _send(answers, FAILED, [json.dumps(described(error)).encode()])
        else:
            _send(answers, OK, _packed(table, failures))


def _load(start: dict[str, Any], schemas: tuple[pa.Schema, pa.Schema]) -> Host:
    return Host(imported(start), start["mode"], schemas[1], start["written"], start["makes_several"])


def imported(start: dict[str, Any]) -> Callable[[Any], Any]:
    """Import the module of the function that `start` names; return the function."""
    sys.path.insert(0, start["root"])
    module, _, name = start["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{start['function']} is no function")
    found: Callable[[Any], Any] = function
    return found


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.BufferReader(bytes.fromhex(text)))


def _received(requests: BinaryIO) -> Iterator[tuple[bool, bytes]]:
    """Yield the requests. A thread reads them, so that the process ends with its input even in an endless call."""
    queue: SimpleQueue[tuple[bool, bytes]] = SimpleQueue()

    def read() -> None:
        while len(head := requests.read(REQUEST.size)) == REQUEST.size:
            alone, length = REQUEST.unpack(head)
            queue.put((bool(alone), requests.read(length)))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield queue.get()


def _batch(payload: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_next_batch()


def _packed(table: pa.Table, failures: list[Failure]) -> list[Any]:
    """Return the parts of an answer: the length of an Arrow IPC stream, the stream, and the failures as JSON."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    rows = memoryview(sink.getvalue())
    return [struct.pack("<Q", len(rows)), rows, json.dumps(failures).encode()]


def _send(answers: BinaryIO, status: int, content: list[Any]) -> None:
    answers.write(ANSWER.pack(status, _resident_bytes(), sum(map(len, content))))
    for part in content:
        answers.write(part)
    answers.flush()


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        # A system without /proc: the most that was ever resident.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * _PAGE_BYTES


if __name__ == "__main__":
    main(_load)
