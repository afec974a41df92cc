"""A program that loads functions over DataFrames in one session, and prints what each load ends in. For tests of the rules of plans.

In: the source of each by name; its function is `f`.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
from pyspark.errors import PySparkException

from pipelines.functions.child import DescribedError, RowsError
from pipelines.functions.spark_child import DataFrameHost, start_session
from pipelines.functions.spark_errors import described_spark
from pipelines.functions.spark_plan import RefusedError

IMPORTS = "from pyspark.sql import functions as F, Window\nimport pandas as pd, pyspark\n"
INPUTS = pa.schema([("id", pa.int64()), ("name", pa.string())])
OUTPUTS = pa.schema([("x", pa.int64())])
ROWS = pa.record_batch([pa.array([1, 2, 3], pa.int64()), pa.array(["a", "b", None])], schema=INPUTS)
EXAMPLE = "the example of the docs"
ORDERS = pa.record_batch({"order_id": pa.array(["de-1", "x"]), "price": pa.array([2.0, 0.0])})
PRICED = pa.schema([("shop", pa.string()), ("gross", pa.float64())])


def main() -> None:
    scratch = Path(sys.argv[1])
    session = start_session(scratch, scratch)
    verdicts = {}
    for name, source in json.load(sys.stdin).items():
        rows, outputs = (ORDERS, PRICED) if name == EXAMPLE else (ROWS, OUTPUTS)
        module = ModuleType("own")
        exec(source, module.__dict__)
        try:
            table, failures = DataFrameHost(session, module.f, (rows.schema, outputs), scratch, {}).answer(rows, alone=False)
            verdicts[name] = ["runs", table.to_pylist(), failures]
        except (RefusedError, RowsError, DescribedError) as error:
            verdicts[name] = ["refused", str(error)]
        except PySparkException as error:
            verdicts[name] = ["refused", described_spark(error)[1]]
        session.catalog.clearCache()
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
