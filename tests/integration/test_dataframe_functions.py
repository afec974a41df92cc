"""Functions over DataFrames from Kafka to ClickHouse: rows, drops and dead letters, across a kill, and every proof agrees."""

import json
from collections import Counter

import pytest
from support.computed_case import event, with_transforms
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration

SOURCE = """
from pyspark.sql import DataFrame, functions as F
def f(df: DataFrame) -> DataFrame:
    kept = df.where(F.col("name") != "left out")
    return kept.select(F.when(F.col("name") == "raises", F.raise_error(F.lit("a bad name"))).otherwise(F.upper("name")).alias("name"))
"""
NAMES = ("a", "left out", "raises", "b", "c", "left out", "d", "e", "f", "g")


def write(case: PipelineCase, source: str = SOURCE) -> None:
    case.file.with_name("own.py").write_text(source)
    # The first call of a host compiles: on a busy machine that takes 25 s, and a host that is late is ended for a new one.
    config = {"function": "own:f", "input": ["name"], "output": [{"name": "name", "type": "string"}], "timeout": "2m"}
    case.write_file(with_transforms({"type": "pyspark", "config": config}))


@pytest.mark.crash
def test_dataframe_functions_make_rows_across_a_kill(case: PipelineCase) -> None:
    write(case)
    case.create_topic(1)
    case.send([event(n, NAMES[n % 10], 1.0) for n in range(100)], partitions=1)
    # Without it the plan that the kill leaves open may have no record yet.
    case.warm_run(legs=("ingest",))
    killed = case.run_plain(TALLYFLOW_FAILPOINT="process.after-publish:1")
    assert killed.returncode == -9, killed.stderr
    write(case, source=SOURCE.replace("F.upper", "F.lower"))
    case.send([event(n, "xy", 1.0) for n in range(200, 203)], partitions=1)
    case.warm_run()
    assert Counter(name for _, _, name, _ in case.rows()) == Counter(dict.fromkeys("ABCDEFG", 10)) + Counter(xy=3)
    assert Counter((letter["stage"], letter["code"]) for letter in case.dead_letters()) == Counter({("pyspark", "python_error"): 10})
    verified = json.loads(case.invoke("verify", str(case.file), "--json").stdout)
    assert (verified["verdict"], verified["findings"], verified["not_proven"]) == ("clean", [], [])
    assert (verified["counts"]["rows"], verified["counts"]["dropped by function"]) == (73, 20)
    audited = json.loads(case.invoke("audit", str(case.file), "--json").stdout)
    assert (audited["verdict"], audited["findings"], audited["not_proven"]) == ("clean", [], [])


def test_validate_refuses_what_is_not_row_wise(case: PipelineCase) -> None:
    write(case, source=SOURCE.replace("return kept", "return kept.orderBy('name')"))
    refused = case.invoke("validate", str(case.file))
    assert refused.exit_code == 2
    assert "transforms[0].config.function: loading function own:f" in refused.stderr
    assert "its plan has a sort" in " ".join(refused.stderr.split())


def test_preview_calls_a_dataframe_function(case: PipelineCase, capfd: pytest.CaptureFixture[str]) -> None:
    write(case, source=SOURCE.replace("def f(", 'print("as it loads", flush=True)\ndef f('))
    sample = case.file.with_name("sample.jsonl")
    sample.write_bytes(b"\n".join(event(n, name, 1.0) for n, name in enumerate(NAMES[:4])) + b"\n")
    shown = case.invoke("preview", str(case.file), "--input", str(sample), "--json")
    assert shown.exit_code == 0, shown.output
    steps = [record["steps"][-1] for record in json.loads(shown.stdout)]
    assert [step["outcome"] for step in steps] == ["row", "dropped", "rejected", "row"]
    assert "own:f raises [USER_RAISED_EXCEPTION] a bad name with name = 'raises'" in steps[2]["reason"]
    assert capfd.readouterr().err == "as it loads\n"
