"""A runner and its workers never import pandas; whoever needs it later has all of it."""

import importlib
import subprocess
import sys
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import Any

import pytest

from pipelines.without_pandas import no_pandas

_A_WORKER = """
import sys
import pipelines.runner.runner
import pipelines.runner.spark_engine
from pipelines.without_pandas import empty_table, leave_out_pandas

assert "pandas" not in sys.modules, "a module converts as it is imported"
leave_out_pandas()
import pyarrow as pa

pa.array([1, None]), pa.scalar(1), pa.table({"a": ["x"]}).schema.empty_table(), pa.Table.from_pylist([{"a": 1}])
assert "pandas" not in sys.modules
assert pa.table({"a": [1, 2]}).to_pandas()["a"].sum() == 3
import pandas
assert pa.array(pandas.Series([1.0, None])).null_count == 1
schema = pa.schema([pa.field("a", pa.int32(), nullable=False), ("b", pa.list_(pa.string()))], metadata={"k": "v"})
assert empty_table(schema).equals(schema.empty_table(), check_metadata=True)
"""


def test_a_worker_converts_without_pandas_until_it_needs_it() -> None:
    ended = subprocess.run([sys.executable, "-c", _A_WORKER], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


class Between(MetaPathFinder):
    """Finds nothing; while it is asked, another thread comes to the end of its own imports without pandas."""

    def __init__(self, others: ExitStack) -> None:
        self._others = others

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        self._others.close()


def test_an_import_beside_the_end_finds_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner imports Spark without pandas while its other threads import, such as that which answers at `/status`."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with ExitStack() as others:
        monkeypatch.setattr(sys, "meta_path", [Between(others), PathFinder])
        others.enter_context(no_pandas())
        assert importlib.import_module("colorsys").rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)
