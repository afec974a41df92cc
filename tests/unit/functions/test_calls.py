"""Functions in their host: what passes, and that a function which crashes, hangs or leaks takes down nothing but its rows."""

import os
import resource
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import HaltError
from pipelines.functions import calls
from pipelines.functions.calls import Called, Hosts
from pipelines.functions.child import ROW
from pipelines.functions.host import Answer, CallFailedError, CallTimeoutError, Host, HostDiedError, Limits
from pipelines.functions.spec import Function

Write = Callable[..., Function]
DOUBLED = "def f(batch):\n    return pa.record_batch({'x': pc.multiply(batch['id'], 2)})\n"
UNLESS = "def f(batch):\n    if 7 in batch['id'].to_pylist():\n        {}\n    return pa.record_batch({{'x': batch['id']}})\n"


def ids(*numbers: int | None) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def values(called: Called) -> dict[int, Any]:
    return dict(zip(called.passed.tolist(), called.outputs.column("x").to_pylist(), strict=True))


def codes(called: Called) -> list[tuple[int, str]]:
    return [(row, code) for row, code, _ in called.failures]


def one_of(cases: list[tuple[str, str]], number: str) -> str:
    """Python that returns what the case of this number returns: one host serves all of them."""
    return f"[{', '.join(f'lambda: {returned}' for returned, _ in cases)}][{number}]()"


def test_a_batch_function_returns_a_value_per_row(write: Write, hosts: Hosts) -> None:
    assert values(hosts.call(write(DOUBLED), ids(1, None, 3))) == {0: 2, 1: None, 2: 6}


def test_rows_that_the_row_column_leaves_out_are_dropped(write: Write, hosts: Hosts) -> None:
    kept = "pc.indices_nonzero(pc.not_equal(batch['id'], 2))"
    source = f"def f(batch):\n    rows = {kept}\n    return pa.record_batch({{'x': rows, '_row': rows}})\n"
    called = hosts.call(write(source), ids(1, 2, 3))
    assert (values(called), called.failures) == ({0: 0, 2: 2}, [])


def test_a_row_function_gets_dicts_and_none_drops(write: Write, hosts: Hosts) -> None:
    source = "def f(record):\n    return {'x': record['id'] + len(record)} if record['id'] % 2 else None\n"
    assert values(hosts.call(write(source, mode="row"), ids(1, 2, 3))) == {0: 2, 2: 4}


def test_a_function_that_needs_no_pandas_has_none(write: Write, hosts: Hosts) -> None:
    source = "import sys\ndef f(record):\n    return {'x': 'pandas' in sys.modules}\n"
    assert values(hosts.call(write(source, mode="row", outputs=(("x", "bool"),)), ids(1, 2))) == {0: False, 1: False}


@pytest.mark.parametrize(
    "source",
    [
        "import pandas as pd\ndef f(batch):\n    {}\n",
        "def f(batch):\n    import pandas as pd\n    {}\n",
        "import importlib.util\ndef f(batch):\n    assert importlib.util.find_spec('pandas')\n    import pandas as pd\n    {}\n",
        "def f(batch):\n    pd = __import__('importlib').import_module('pandas')\n    {}\n",
    ],
)
def test_pandas_may_be_imported_at_any_time(write: Write, hosts: Hosts, source: str) -> None:
    # PyArrow takes a Series apart only once it knows pandas: its NaN is null then, and pandas' own times keep their nanoseconds.
    returned = "frame = batch.to_pandas()"
    made = "return pa.record_batch({'x': pa.array(pd.Series([1.5, None][: len(frame)]))})"
    series_first = source.format(f"series = pa.array(pd.Series([1.0, None])); assert series.null_count == 1\n    {returned}\n    {made}")
    assert values(hosts.call(write(series_first, outputs=(("x", "float"),)), ids(1, 2))) == {0: 1.5, 1: None}


OTHER_BATCHES = [
    ("5", "returns int, no pyarrow.RecordBatch"),
    ("pa.record_batch({'x': batch['id'].slice(0, 0)})", "returns 0 rows for 1, without the column _row"),
    ("pa.record_batch({'x': pa.array([1, 1]), '_row': pa.array([0, 0])})", "does not ascend"),
    ("pa.record_batch({'x': pa.array([1]), '_row': pa.array([1])})", "does not ascend from row to row below 1"),
    ("pa.record_batch({'y': batch['id']})", "returns no column 'x'"),
    ("pa.record_batch({'x': pc.cast(batch['id'], pa.string())})", "returns 'x' as string, no int64"),
    ("pa.record_batch({'x': pa.array([1.5])})", "returns 'x' as double"),
]


@pytest.mark.parametrize(("returned", "message"), OTHER_BATCHES)
def test_a_batch_of_another_form_fails_with_what_it_is(shared: tuple[Write, Hosts], returned: str, message: str) -> None:
    write, hosts = shared
    other = one_of(OTHER_BATCHES, "batch['id'][0].as_py()")
    source = f"def f(batch):\n    return {other} if len(batch) else pa.record_batch({{'x': batch['id']}})\n"
    ((row, code, text),) = hosts.call(write(source), ids(OTHER_BATCHES.index((returned, message)))).failures
    assert (row, code) == (0, "python_rows")
    assert message in text


OTHER_DICTS = [
    ("[record]", "returns list, no dict and no None: one record cannot become several"),
    ("{}", "returns a dict without 'x'"),
    ("{'x': 'seven'}", "returns 'x' as str 'seven', no int64"),
    ("{'x': 2 ** 70}", "returns 'x' as int"),
]


@pytest.mark.parametrize(("returned", "message"), OTHER_DICTS)
def test_a_dict_of_another_form_fails_alone(shared: tuple[Write, Hosts], returned: str, message: str) -> None:
    write, hosts = shared
    other = one_of(OTHER_DICTS, "record['id']")
    source = f"def f(record):\n    return {other} if record['id'] >= 0 else {{'x': 1}}\n"
    called = hosts.call(write(source, mode="row"), ids(-1, OTHER_DICTS.index((returned, message)), -3))
    assert values(called) == {0: 1, 2: 1}
    ((row, code, text),) = called.failures
    assert (row, code) == (1, "python_rows")
    assert message in text


@pytest.mark.parametrize("mode", ["batch", "row"])
def test_an_exception_fails_its_row_and_names_its_inputs(write: Write, hosts: Hosts, mode: str) -> None:
    by_row = "def f(record):\n    if record['id'] == 7:\n        raise KeyError('seven')\n    return {'x': record['id']}\n"
    called = hosts.call(write(by_row if mode == "row" else UNLESS.format("raise KeyError('seven')"), mode=mode), ids(*range(1, 200)))
    assert values(called) == {number - 1: number for number in range(1, 200) if number != 7}
    assert called.failures == [(6, "python_error", "own:f raises KeyError: 'seven' with id = 7")]


def test_a_function_that_ends_its_process_fails_only_its_row(write: Write, hosts: Hosts) -> None:
    called = hosts.call(write(UNLESS.format("import os; os._exit(3)")), ids(6, 7, 8))
    assert called.failures == [(1, "python_died", "own:f ends its process with exit code 3 with id = 7")]
    assert values(called) == {0: 6, 2: 8}


def test_a_segmentation_fault_fails_only_its_row(write: Write, hosts: Hosts) -> None:
    called = hosts.call(write(UNLESS.format("import ctypes; ctypes.string_at(0)")), ids(7))
    assert called.failures == [(0, "python_died", "own:f ends its process by SIGSEGV with id = 7")]


def test_an_endless_loop_fails_only_its_row(write: Write, hosts: Hosts) -> None:
    called = hosts.call(write(UNLESS.format("while True: pass"), ms=1000), ids(6, 7, 8))
    assert called.failures == [(1, "python_timeout", "own:f takes longer than 1 s with id = 7")]
    assert values(called) == {0: 6, 2: 8}


def test_a_function_that_always_hangs_halts(write: Write, hosts: Hosts) -> None:
    function = write("def f(batch):\n    while len(batch): pass\n    return pa.record_batch({'x': batch['id']})\n", ms=100)
    with pytest.raises(HaltError, match=r"own:f: it takes longer than 0.1 s, 8 times in a row over one batch"):
        hosts.call(function, ids(*range(100)))


def test_an_allocation_beyond_the_limit_fails_its_row(write: Write, hosts: Hosts) -> None:
    called = hosts.call(write(UNLESS.format("bytearray(3 << 30)")), ids(6, 7))
    assert codes(called) == [(1, "python_died")]
    assert "MemoryError" in called.failures[0][2]


def test_a_host_that_leaks_is_started_anew_between_calls(write: Write) -> None:
    source = (
        "import os\nkept = []\ndef f(batch):\n    kept.append(b'1' * (len(batch) * 200 << 20))\n"
        "    return pa.record_batch({'x': pa.array([os.getpid()] * len(batch), pa.int64())})\n"
    )
    host = Host(write(source), Limits(restart_bytes=450 * 1024 * 1024))
    try:
        pids = [host.call(ids(1).to_batches()[0]).rows.column("x")[0].as_py() for _ in range(6)]
    finally:
        host.close()
    assert len({*pids}) == 3


def test_prints_do_not_reach_the_answers(write: Write, hosts: Hosts, capfd: pytest.CaptureFixture[str]) -> None:
    prints = "print('printed', len(batch)); os.write(1, b'written')"
    source = f"import os\ndef f(batch):\n    {prints}\n    return pa.record_batch({{'x': batch['id']}})\n"
    assert values(hosts.call(write(source), ids(1, 2))) == {0: 1, 1: 2}
    assert capfd.readouterr() == ("", "printed 0\nwrittenprinted 2\nwritten")


def test_a_function_sees_no_variable_of_the_runner(write: Write, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", "secret")
    source = "import os\ndef f(record):\n    return {'x': len(os.environ.get('CLICKHOUSE_PASSWORD', ''))}\n"
    assert values(hosts.call(write(source, mode="row"), ids(1))) == {0: 0}


def test_numpy_has_one_thread_in_a_function_on_any_host(write: Write, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    source = "import os\ndef f(record):\n    return {'x': int(os.environ['OPENBLAS_NUM_THREADS'])}\n"
    assert values(hosts.call(write(source, mode="row"), ids(1))) == {0: 1}


def test_a_number_that_is_not_finite_fails_its_row(write: Write, hosts: Hosts) -> None:
    source = "def f(record):\n    return {'x': float('nan') if record['id'] == 2 else 0.5}\n"
    called = hosts.call(write(source, mode="row", outputs=(("x", "float64"),)), ids(1, 2))
    assert (values(called), codes(called)) == ({0: 0.5}, [(1, "not_finite")])


def test_each_row_may_be_called_for_alone(write: Write, hosts: Hosts) -> None:
    source = "def f(batch):\n    return pa.record_batch({'x': pa.array([len(batch)] * len(batch), pa.int64())})\n"
    function = write(source)
    assert values(hosts.call(function, ids(1, 2, 3))) == {0: 3, 1: 3, 2: 3}
    assert values(hosts.call_alone(function, ids(1, 2, 3))) == {0: 1, 1: 1, 2: 1}


def test_every_row_of_many_batches_keeps_its_number(write: Write, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ROWS_PER_CALL", 10)
    called = hosts.call(write(UNLESS.format("raise ValueError")), ids(*range(25)))
    assert values(called) == {number: number for number in range(25) if number != 7}
    assert codes(called) == [(7, "python_error")]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nowhere\n", "loading function own:f: raises ModuleNotFoundError: No module named 'nowhere'"),
        ("g = 1\n", "has no attribute 'f'"),
        ("f = 1\n", "own:f is no function"),
        ("import os\nos._exit(1)\n", "ends its process with exit code 1"),
        (
            "def f(batch):\n    return pa.record_batch({'x': pa.array([], pa.string())})\n",
            "own:f: returns 'x' as string, no int64, for a batch of no rows",
        ),
    ],
)
def test_a_check_says_what_is_wrong_with_a_function(write: Write, hosts: Hosts, source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hosts.check(write(source))


def test_a_host_ends_with_its_caller(write: Write, tmp_path: Path) -> None:
    function = write("def f(batch):\n    while len(batch): pass\n    return pa.record_batch({'x': batch['id']})\n", ms=60_000)
    code = (
        "import os, sys, threading; from pathlib import Path\n"
        "from pipelines.functions.code import pack; from pipelines.functions.spec import Function\n"
        "from pipelines.functions.host import Host; import pyarrow as pa\n"
        f"code = pack(Path({str(tmp_path)!r}), 'own', ())\n"
        "host = Host(Function('own:f', code, 'batch', (('id', 'int64'),), (('x', 'int64'),), 60_000))\n"
        "host.start(); print(host.pid, flush=True)\n"
        "threading.Thread(target=host.call, args=(pa.record_batch({'id': pa.array([1])}),), daemon=True).start()\n"
        "sys.stdin.read(1); os._exit(1)\n"
    )
    assert function
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        descriptor = os.pidfd_open(pid)
        caller.communicate(b"x")
    try:
        assert select.select([descriptor], [], [], 20)[0], "the host is up without its caller"
    finally:
        os.close(descriptor)


def test_a_host_is_reached_by_any_file_descriptor(write: Write, hosts: Hosts) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert values(hosts.call(write(DOUBLED), ids(1))) == {0: 2}
    finally:
        for descriptor in taken:
            os.close(descriptor)


def test_processes_that_a_function_starts_end_with_its_host(write: Write, hosts: Hosts) -> None:
    source = "import subprocess\ndef f(record):\n    return {'x': subprocess.Popen(['sleep', '600']).pid}\n"
    (pid,) = values(hosts.call(write(source, mode="row"), ids(1))).values()
    descriptor = os.pidfd_open(pid)
    hosts.close()
    try:
        assert select.select([descriptor], [], [], 20)[0], "the process is up without its host"
    finally:
        os.close(descriptor)


def test_a_function_too_large_from_the_start_is_refused(write: Write) -> None:
    host = Host(write("kept = b'1' * (200 << 20)\n" + DOUBLED), Limits(restart_bytes=200 * 1024 * 1024))
    with pytest.raises(HaltError, match=r"before its first record, and may take 200"):
        host.start()
    assert host.pid is None


class _Faulty:
    """A host whose function fails on certain rows, each in its own way, and passes the others."""

    def __init__(self, function: Function, faults: dict[int, str]) -> None:
        self.function, self._faults = function, faults
        self.seconds_per_row = 0.0

    def call(self, batch: pa.RecordBatch, alone: bool = False) -> Answer:
        found = {number: self._faults[row] for number, row in enumerate(batch.column(0).to_pylist()) if row in self._faults}
        ways = {*found.values()}
        if "hangs" in ways:
            raise CallTimeoutError("hangs")
        if "dies" in ways:
            raise HostDiedError("dies")
        if found and not alone:
            raise CallFailedError("python_error", "raises")
        rows = pa.table({ROW: pa.array(range(len(batch)), pa.uint32()), "x": batch.column(0)})
        failures = [(number, "python_error", "raises") for number in found]
        return Answer(rows.filter(pa.array([number not in found for number in range(len(batch))])), failures)


SPEC = Function("m:f", "0" * 64, "batch", (("id", "int64"),), (("x", "int64"),), 1000)
WAYS = {"hangs": "python_timeout", "dies": "python_died", "raises": "python_error"}


@given(st.integers(1, 3000), st.dictionaries(st.integers(0, 2999), st.sampled_from(sorted(WAYS)), max_size=4), st.booleans())
def test_a_search_finds_exactly_the_rows_at_fault(count: int, faults: dict[int, str], alone: bool) -> None:
    hosts = Hosts(lambda function: _Faulty(function, faults))  # type: ignore[arg-type, return-value]
    called = (hosts.call_alone if alone else hosts.call)(SPEC, ids(*range(count)))
    assert codes(called) == [(row, WAYS[way]) for row, way in sorted(faults.items()) if row < count]
    assert values(called) == {row: row for row in range(count) if row not in faults}


def test_a_slow_function_gets_fewer_rows_by_its_pace() -> None:
    sizes: list[int] = []

    class Slow(_Faulty):
        def call(self, batch: pa.RecordBatch, alone: bool = False) -> Answer:
            sizes.append(len(batch))
            return super().call(batch, alone)

    host = Slow(SPEC, {})
    host.seconds_per_row = 0.01
    assert len(Hosts(lambda _: host).call(SPEC, ids(*range(300))).passed) == 300  # type: ignore[arg-type, return-value]
    assert (sizes[0], sum(sizes)) == (25, 300)


def test_a_host_that_is_killed_from_outside_costs_no_record() -> None:
    class Killed(_Faulty):
        calls = 0

        def call(self, batch: pa.RecordBatch, alone: bool = False) -> Answer:
            self.calls += 1
            if self.calls < 3:
                raise HostDiedError("ends its process by SIGKILL")
            return super().call(batch, alone)

    called = Hosts(lambda function: Killed(function, {})).call(SPEC, ids(1))  # type: ignore[arg-type, return-value]
    assert (values(called), called.failures) == ({0: 1}, [])


def test_a_row_of_too_many_bytes_fails_alone(write: Write, hosts: Hosts) -> None:
    source = "def f(record):\n    return {'x': 'y' * (200_000 if record['id'] == 7 else 10)}\n"
    called = hosts.call(write(source, mode="row", outputs=(("x", "string"),)), ids(6, 7, 8))
    assert called.passed.tolist() == [0, 2]
    assert called.failures == [(1, "python_rows", "own:f returns more than 131,072 bytes with id = 7")]


def test_a_large_row_may_stay_large(write: Write, hosts: Hosts) -> None:
    function = write(
        "def f(batch):\n    return pa.record_batch({'x': batch['id']})\n", inputs=(("id", "string"),), outputs=(("x", "string"),)
    )
    called = hosts.call(function, pa.table({"id": ["y" * 200_000, "z"]}))
    assert (called.passed.tolist(), called.failures) == ([0, 1], [])
