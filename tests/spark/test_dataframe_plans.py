"""Which functions over DataFrames are taken, and which are refused at load, by their plans. One session tries all of them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import plan_verdicts

ROOT = Path(__file__).parents[2]
TAKEN = {
    "columns that are selected": ("return df.select((F.col('id') * 2).alias('x'))", {0: 2, 1: 4, 2: 6}),
    "a filter": ("return df.where('id <> 2').selectExpr('id AS x')", {0: 1, 2: 3}),
    "columns that are dropped and renamed": ("return df.drop('name').withColumnRenamed('id', 'x')", {0: 1, 1: 2, 2: 3}),
    "an alias": ("return df.alias('d').select(F.col('d.id').alias('x')).where('x > 1')", {1: 2, 2: 3}),
    "a view": (
        "df.createOrReplaceTempView('v'); return df.sparkSession.sql('SELECT id + 1 AS x FROM v WHERE name IS NULL')",
        {2: 4},
    ),
    "a column of the name of a position": ("return df.select(F.col('id').alias('x'), F.lit(7).alias('_row'))", {0: 1, 1: 2, 2: 3}),
    "a constant": ("return df.select(F.lit(5).cast('bigint').alias('x'))", {0: 5, 1: 5, 2: 5}),
    "no row": ("return df.where('false').selectExpr('id AS x')", {}),
    "a UDF": ("return df.select(F.udf(lambda n: n + 10, 'bigint')('id').alias('x'))", {0: 11, 1: 12, 2: 13}),
    "a pandas UDF": ("return df.select(F.pandas_udf(lambda n: n * 3, 'bigint', 200)('id').alias('x'))", {0: 3, 1: 6, 2: 9}),
    "a UDF in a condition": ("return df.where(F.udf(lambda n: n < 3, 'boolean')('id')).selectExpr('id AS x')", {0: 1, 1: 2}),
}
REFUSED = {
    "an aggregate": ("return df.groupBy('name').agg(F.sum('id').alias('x'))", "its plan has an aggregate"),
    "an aggregate of all": ("return df.select(F.max('id').alias('x'))", "its plan has an aggregate"),
    "distinct": ("return df.selectExpr('id AS x').distinct()", "type: dedup"),
    "duplicates dropped": ("return df.selectExpr('id AS x').dropDuplicates()", "type: dedup"),
    "a sort": ("return df.orderBy('id').selectExpr('id AS x')", "its plan has a sort"),
    "a limit": ("return df.limit(2).selectExpr('id AS x')", "its plan has a limit"),
    "a window": ("return df.select(F.row_number().over(Window.orderBy('id')).cast('bigint').alias('x'))", "its plan has a window"),
    "a join": ("return df.join(df.selectExpr('id n'), F.col('id') == F.col('n')).selectExpr('id x')", "its plan has a join"),
    "a union": ("return df.union(df).selectExpr('id AS x')", "its plan has a union"),
    "a sample": ("return df.sample(0.5, 1).selectExpr('id AS x')", "its plan has a sample"),
    "explode": ("return df.select(F.explode(F.array('id', 'id')).alias('x'))", "its plan has explode"),
    "a repartitioning": ("return df.repartition(3).selectExpr('id AS x')", "its plan has a repartitioning"),
    "mapInPandas": ("return df.selectExpr('id AS x').mapInPandas(lambda parts: parts, 'x bigint')", "its plan has mapInPandas"),
    "other rows": ("return df.sparkSession.range(3).selectExpr('id AS x')", "rows that are not those of its argument"),
    "an RDD": (
        "return df.sparkSession.createDataFrame(df.rdd.map(lambda row: (row.id,)), 'x bigint')",
        "rows that are not those of its argument",
    ),
    "a subquery": (
        "df.createOrReplaceTempView('w'); return df.sparkSession.sql('SELECT (SELECT max(id) FROM w) AS x FROM w')",
        "its plan has a subquery",
    ),
    "rand": ("return df.select(F.rand(1).cast('bigint').alias('x'))", "gives another value each time, by rand"),
    "uuid": ("return df.select(F.length(F.uuid()).cast('bigint').alias('x'))", "gives another value each time, by uuid"),
    "an id that counts": ("return df.select(F.monotonically_increasing_id().alias('x'))", "by monotonically_increasing_id"),
    "the clock": ("return df.select(F.unix_seconds(F.current_timestamp()).alias('x'))", "reads the clock, by current_"),
    "the date": ("return df.select(F.year(F.current_date()).cast('bigint').alias('x'))", "reads the clock"),
    "the clock in a condition": ("return df.where(F.now() > F.lit('2020-01-01')).selectExpr('id AS x')", "reads the clock"),
    "a UDF that is not deterministic": (
        "return df.select(F.udf(lambda n: n, 'bigint').asNondeterministic()('id').alias('x'))",
        "gives another value each time, by UDF <lambda>",
    ),
    "a UDF of iterators": (
        "return df.select(F.pandas_udf(lambda s: s, 'bigint', 204)('id').alias('x'))", "which takes iterators or groups"),
    "a cache": ("return df.cache().selectExpr('id AS x')", "caches a DataFrame"),
    "a count": ("n = df.count(); return df.select(F.lit(n).alias('x'))", "may run no action"),
    "a show": ("df.show(); return df.selectExpr('id AS x')", "may run no action"),
    "rows that are collected": ("df.collect(); return df.selectExpr('id AS x')", "may run no action"),
    "an action over an RDD": ("df.rdd.count(); return df.selectExpr('id AS x')", "may run no action"),
    "a column that is missing": ("return df.select('id')", "returns no column 'x', of the columns id"),
    "a column that is there twice": ("return df.selectExpr('id AS x', 'id AS x')", "returns 2 columns 'x'"),
    "a column of another type": (
        "return df.selectExpr('CAST(id AS double) AS x')", "returns 'x' as double, declared is int64, which is bigint in Spark"
    ),
    "a name that is not there": ("return df.select('nowhere')", "[UNRESOLVED_COLUMN"),
    "no DataFrame": ("return 5", "returns int, no DataFrame"),
}  # fmt: skip


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    sources = {name: f"{plan_verdicts.IMPORTS}def f(df):\n    {body}\n" for name, (body, _) in (TAKEN | REFUSED).items()}
    example = re.search("```python\n(.*?)```", (ROOT / "docs" / "functions-pyspark.md").read_text(), re.DOTALL)
    assert example
    sources[plan_verdicts.EXAMPLE] = f"{example[1]}\n\nf = priced\n"
    command = [sys.executable, plan_verdicts.__file__, str(tmp_path_factory.mktemp("spark"))]
    ended = subprocess.run(command, input=json.dumps(sources), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout)


@pytest.mark.parametrize("name", TAKEN)
def test_a_row_wise_function_keeps_each_position(verdicts: dict[str, Any], name: str) -> None:
    verdict, *found = verdicts[name]
    assert verdict == "runs", found
    assert {row["_row"]: row["x"] for row in found[0]} == TAKEN[name][1]
    assert found[1] == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_is_not_row_wise_is_refused(verdicts: dict[str, Any], name: str) -> None:
    verdict, *message = verdicts[name]
    assert (verdict, REFUSED[name][1] in str(message[0])) == ("refused", True), message


def test_the_example_of_the_docs_runs(verdicts: dict[str, Any]) -> None:
    verdict, *found = verdicts[plan_verdicts.EXAMPLE]
    assert (verdict, found) == ("runs", [[{"_row": 0, "shop": "de", "gross": 2.38}], []])
