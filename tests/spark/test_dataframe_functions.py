"""Functions over DataFrames in their hosts: types, rows at fault, and what a UDF that raises, hangs or ends its process takes down."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from pipelines.functions.calls import Called, Hosts
from pipelines.functions.code import pack
from pipelines.functions.host import Host
from pipelines.functions.spec import Function
from pipelines.spark_classes import archive_path
from pipelines.types.fields import SOURCE_TYPES

KINDS = [kind for kind, source in SOURCE_TYPES.items() if not source.is_json_text]
PLAIN = """
from pyspark.sql import DataFrame, functions as F
def f(df: DataFrame) -> DataFrame:
    ids = F.col("id")
    letters = F.when(F.col("of_string") == "no JSON", F.lit("[1")).otherwise(F.to_json(F.array(F.upper("of_string"), F.lit(None))))
    price = (ids / 2).cast("decimal(9,2)").cast("string")
    made = {"x": (F.lit(100) / (ids - 7)), "small": (ids * 100).cast("smallint"), "letters": letters, "price": price}
    return df.where(ids != 2).withColumns(made)
"""
UDF = """
import os, time
from pyspark.sql import DataFrame, functions as F
@F.udf("bigint")
def tried(n):
    if n == 7: raise ValueError("seven")
    if n == 8: os._exit(3)
    while n == 9: time.sleep(1)
    return n + 1
@F.pandas_udf("bigint")
def together(n):
    return n * 0 + len(n)
def f(df: DataFrame) -> DataFrame:
    return df.select(tried("id").alias("x"), together("id").alias("count"))
"""


@pytest.fixture(scope="module")
def started() -> dict[Function, Host]:
    """The hosts of the module by function."""
    return {}


@pytest.fixture(scope="module")
def hosts(started: dict[Function, Host]) -> Iterator[Hosts]:
    """Each has a JVM, which takes 8 s of CPU to start: a module has as many as it has functions."""
    made = Hosts(lambda of: started.setdefault(of, Host(of)))
    yield made
    made.close()


def function(directory: Path, source: str, inputs: list[tuple[str, str]], outputs: list[tuple[str, str]]) -> Function:
    (directory / "own.py").write_text(source)
    return Function("own:f", pack(directory, "own", ()), "pyspark", tuple(inputs), tuple(outputs), 60_000)


def values(called: Called, name: str = "x") -> dict[int, object]:
    return dict(zip(called.passed.tolist(), called.outputs.column(name).to_pylist(), strict=True))


def codes(called: Called) -> dict[int, str]:
    return {row: code for row, code, _ in called.failures}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Function:
    kinds = [(f"of_{kind}", kind) for kind in KINDS]
    outputs = [("x", "float64"), ("small", "uint8"), ("letters", "array"), ("price", "decimal"), *kinds]
    return function(tmp_path_factory.mktemp("plain"), PLAIN, [("id", "int64"), *kinds], outputs)


def rows(of: Function, ids: list[int], **extremes: object) -> pa.Table:
    columns = {field.name: pa.array([extremes.get(field.name)] * len(ids), field.type) for field in of.input_schema}
    return pa.table(columns | {"id": pa.array(ids, pa.int64())}, schema=of.input_schema)


def test_values_of_every_type_return_as_they_were(plain: Function, hosts: Hosts) -> None:
    most: dict[str, object] = {
        **{f"of_int{bits}": -(2 ** (bits - 1)) for bits in (8, 16, 32, 64)},
        **{f"of_uint{bits}": 2**bits - 1 for bits in (8, 16, 32, 64)},
        "of_int": 2**63 - 1,
        "of_uint": 2**64 - 1,
        "of_float": 1e308,
        "of_float64": -0.1,
        "of_float32": 0.5,
        "of_string": "Ünïcode\0",
        "of_bytes": b"\xff\0",
        "of_bool": True,
        "of_timestamp": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    }
    called = hosts.call(plain, pa.concat_tables([rows(plain, [1], **most), rows(plain, [1])]))
    first, second = called.outputs.to_pylist()
    assert {name: value for name, value in first.items() if name.startswith("of_")} == most
    assert {value for name, value in second.items() if name.startswith("of_")} == {None}
    assert (json.loads(first["letters"]), second["letters"]) == (["ÜNÏCODE\0", None], "[null,null]")
    assert (first["price"], second["price"]) == ("0.50", "0.50")


def test_rows_fail_alone_and_filtered_rows_are_dropped(plain: Function, hosts: Hosts) -> None:
    parts = [rows(plain, [1, 2, 3, 7, 0]), rows(plain, [1], of_string="no JSON"), rows(plain, [1] * 300)]
    called = hosts.call(plain, pa.concat_tables(parts))
    assert codes(called) == {2: "python_rows", 3: "python_error", 5: "python_rows"}
    assert called.passed.tolist() == [0, 4, *range(6, 306)]
    messages = {row: message for row, _, message in called.failures}
    assert "own:f returns 'small' outside of uint8: Integer value 300 not in range" in messages[2]
    assert messages[3].startswith("own:f raises [DIVIDE_BY_ZERO] Division by zero.")
    assert "SQLSTATE" not in messages[3]
    assert "text '[1' that is no JSON" in messages[5]


def test_a_batch_of_which_every_row_fails_is_looked_through(plain: Function, hosts: Hosts) -> None:
    called = hosts.call(plain, rows(plain, [7] * 260))
    assert codes(called) == dict.fromkeys(range(260), "python_error")


@pytest.mark.crash
def test_the_jvm_maps_the_archive_and_ends_with_a_killed_host(plain: Function, hosts: Hosts, started: dict[Function, Host]) -> None:
    hosts.check(plain)
    pid = started[plain].pid
    assert pid is not None
    jvms = [child for child in psutil.Process(pid).children(recursive=True) if "java" in child.name()]
    assert len(jvms) == 1
    archive = archive_path()
    assert archive is None or archive.exists() == (str(archive) in {mapped.path for mapped in jvms[0].memory_maps()})
    os.kill(pid, signal.SIGKILL)
    assert psutil.wait_procs(jvms, timeout=30)[1] == []


@pytest.mark.crash
def test_a_udf_takes_down_nothing_but_its_rows(tmp_path: Path, hosts: Hosts, started: dict[Function, Host]) -> None:
    of = function(tmp_path, UDF, [("id", "int64")], [("x", "int64"), ("count", "int64")])
    together = hosts.call(of, rows(of, [1, 2, 3]))
    assert (values(together), values(together, "count")) == ({0: 2, 1: 3, 2: 4}, {0: 3, 1: 3, 2: 3})
    assert values(hosts.call_alone(of, rows(of, [1, 2, 3])), "count") == {0: 1, 1: 1, 2: 1}
    raised, died = hosts.call(of, rows(of, [1, 7])), hosts.call(of, rows(of, [8]))
    assert (values(raised), codes(raised), codes(died)) == ({0: 2}, {1: "python_error"}, {0: "python_died"})
    messages = [message for _, _, message in (*raised.failures, *died.failures)]
    assert messages == ["own:f raises ValueError: seven with id = 7", "own:f ends the process of a UDF with id = 8"]
    assert values(hosts.call(of, rows(of, [5]))) == {0: 6}
    # Another time limit would be another function, with a JVM of its own.
    started[of].function = replace(of, timeout_ms=8_000)
    assert codes(hosts.call(of, rows(of, [9]))) == {0: "python_timeout"}
