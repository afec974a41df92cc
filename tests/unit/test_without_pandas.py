"""A runner and its workers never import pandas; whoever needs it later has all of it."""

import subprocess
import sys

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
