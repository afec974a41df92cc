"""Functions in Python from Kafka to ClickHouse: every record is a row, dropped, or a dead letter, and every proof agrees."""

import json
import shutil
from collections import Counter
from typing import Any

import pytest
from support.computed_case import DEDUP, accounts, event, with_transforms
from support.pipeline_case import PipelineCase

from pipelines.errors import FunctionHaltError
from pipelines.functions import calls

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]

SOURCE = """
import os, pyarrow as pa, pyarrow.compute as pc
def f(batch):
    names = batch["name"].to_pylist()
    if "ends" in names:
        os._exit(1)
    if "raises" in names:
        raise ValueError("a bad name")
    rows = pc.indices_nonzero(pc.not_equal(batch["name"], "left out"))
    kept = batch.take(rows)
    return pa.record_batch({"name": pc.utf8_upper(kept["name"]), "_row": rows})
"""
NAMES = ("a", "left out", "raises", "b", "c", "left out", "d", "e", "f", "g")


def write(case: PipelineCase, *more: dict[str, Any], source: str = SOURCE, timeout: str = "20s") -> None:
    case.file.with_name("own.py").write_text(source)
    config = {"function": "own:f", "input": ["name"], "output": [{"name": "name", "type": "string"}], "timeout": timeout}
    case.write_file(with_transforms({"type": "python", "config": config}, *more))


def events(count: int, first: int = 0) -> list[bytes]:
    return [event(n, NAMES[n % 10], 1.0) for n in range(first, first + count)]


def fate_of(value: bytes | None) -> str:
    name = json.loads(value or b"")["name"]
    return {"left out": "dropped", "raises": "python", "ends": "python"}.get(name, "row")


def assert_proven(case: PipelineCase, rows: int, dropped: int) -> None:
    verified = json.loads(case.invoke("verify", str(case.file), "--json").stdout)
    assert (verified["verdict"], verified["findings"], verified["not_proven"]) == ("clean", [], [])
    assert (verified["counts"]["rows"], verified["counts"].get("dropped by function", 0)) == (rows, dropped)
    audited = json.loads(case.invoke("audit", str(case.file), "--json").stdout)
    assert (audited["verdict"], audited["findings"], audited["not_proven"]) == ("clean", [], [])
    assert audited["counts"].get("dropped by function", 0) == dropped


@pytest.mark.parametrize("way", ["in tasks"], indirect=True)
def test_functions_make_drop_and_reject_records(case: PipelineCase, way: None) -> None:
    write(case)
    case.create_topic()
    case.send([*events(200), event(200, "ends", 1.0)])
    case.warm_run()
    expected = Counter(map(fate_of, case.records().values()))
    fate, of_process = accounts(case)
    assert fate == expected == Counter(row=140, dropped=40, python=21)
    assert of_process["dropped by function"] == 40
    codes = Counter(letter["code"] for letter in case.dead_letters())
    assert codes == Counter(python_error=20, python_died=1)
    assert {name for _, _, name, _ in case.rows()} == {"A", "B", "C", "D", "E", "F", "G"}
    assert_proven(case, 140, 40)


NESTED = {
    "items": ("array", "Array(Nullable(Int64))"),
    "place": ("object", "Tuple(city Nullable(String), at Array(Float64))"),
    "counts": ("map", "Map(String, UInt32)"),
    "rest": ("object", "JSON"),
}
BY_ROW = """
import json
from decimal import Decimal
def f(record):
    made = {f"made_{name}": json.loads(record[name]) for name in ("items", "place", "counts", "rest")}
    return {**made, "made_price": None if record["price"] is None else Decimal(record["price"])}
"""
BY_BATCH = """
import json
from decimal import Decimal
import pyarrow as pa
KINDS = {"items": pa.list_(pa.int64()), "place": pa.struct([("city", pa.string()), ("at", pa.list_(pa.float64()))])}
KINDS["counts"] = pa.map_(pa.string(), pa.int64())
def f(batch):
    texts = {name: batch[name].to_pylist() for name in ("items", "place", "counts", "rest", "price")}
    made = {"made_rest": pa.array(texts["rest"])}
    for name, kind in KINDS.items():
        values = [json.loads(text) for text in texts[name]]
        made[f"made_{name}"] = pa.array([list(one.items()) for one in values] if name == "counts" else values, kind)
    made["made_price"] = pa.array([price and Decimal(price) for price in texts["price"]], pa.decimal128(18, 4))
    return pa.record_batch(made)
"""


@pytest.mark.parametrize(("source", "mode"), [(BY_ROW, "row"), (BY_BATCH, "batch")])
def test_nested_outputs_are_stored_as_if_kafka_held_them(case: PipelineCase, source: str, mode: str) -> None:
    def change(document: dict[str, Any]) -> None:
        fields = {name: kind for name, (kind, _) in NESTED.items()}
        document["sources"][0]["schema_fields"] = [
            *({"name": name, "type": kind} for name, kind in {"id": "int", "price": "string", **fields}.items()),
        ]
        columns = {"price": "Nullable(Decimal(18, 4))", **{name: column for name, (_, column) in NESTED.items()}}
        mapped = {"id": "Int64", **columns, **{f"made_{name}": column for name, column in columns.items()}}
        document["sink"]["mapping"] = [{"name": name, "column_name": name, "column_type": kind} for name, kind in mapped.items()]
        output = [{"name": f"made_{name}", "type": fields.get(name, "decimal")} for name in (*fields, "price")]
        config = {"function": "own:f", "mode": mode, "input": ["price", *fields], "output": output}
        document["transforms"] = [{"type": "python", "config": config}]

    case.file.with_name("own.py").write_text(source)
    case.write_file(change)
    case.create_topic(1)
    records = [
        {"items": [1, None, 3], "place": {"city": "Zürich", "at": [47.5, 8.0]}, "counts": {"a": 1, "b": 2}, "rest": {"x": [1, {"y": "z"}]}},
        {"items": [], "place": {"city": None, "at": []}, "counts": {}, "rest": {}},
    ]
    prices = ["12.5000", None, "-0.0001"]
    case.send([json.dumps({"id": n, "price": prices[n % 3], **records[n % 2]}).encode() for n in range(30)], partitions=1)
    case.warm_run()
    assert (case.count(), case.dead_letters()) == (30, [])
    same = " AND ".join(f"made_{name} IS NOT DISTINCT FROM {name}" for name in ("items", "place", "counts", "price"))
    same += " AND toString(made_rest) = toString(rest)"
    asked = f"SELECT count(), countIf({same}), countIf(made_price = toDecimal64('12.5', 4)), countIf(made_items[3] = 3) FROM {case.table}"
    assert case.client().query(asked).result_rows == [(30, 30, 10, 15)]
    assert_proven(case, 30, 0)


@pytest.mark.crash
def test_a_planned_range_keeps_the_code_from_before_an_edit(case: PipelineCase) -> None:
    write(case)
    case.create_topic(1)
    case.send([event(n, "ab", 1.0) for n in range(20)], partitions=1)
    # Without it the plan that the kill leaves open may have no record yet.
    case.warm_run(legs=("ingest",))
    killed = case.run_plain(TALLYFLOW_FAILPOINT="process.after-publish:1")
    assert killed.returncode == -9, killed.stderr
    write(case, source=SOURCE.replace("utf8_upper", "utf8_capitalize").replace('"left out"', '"b"'))
    case.send([event(n, name, 1.0) for n, name in ((30, "xy"), (31, "b"))], partitions=1)
    case.warm_run()
    assert sorted(name for _, _, name, _ in case.rows()) == [*["AB"] * 20, "Xy"]
    assert_proven(case, 21, 1)


def run_twenty(case: PipelineCase) -> None:
    """14 rows, 4 records that the function drops, 2 that it rejects."""
    write(case)
    case.create_topic()
    case.send(events(20))
    case.warm_run()


def test_an_edit_of_the_code_alone_is_told_and_applied(case: PipelineCase) -> None:
    run_twenty(case)
    assert "is as it was at its last start" in case.invoke("diff", str(case.file)).stdout
    write(case, source=SOURCE.replace("utf8_upper", "utf8_reverse").replace('"left out"', '"b"'))
    said = case.invoke("diff", str(case.file))
    assert (said.exit_code, "the code of own:f was " in said.stdout) == (1, True), said.output
    # In a process of its own, which has to read the code from before.
    compared = case.command("diff", str(case.file), "--from-raw", "1h", "--json")
    assert compared.returncode == 1, compared.stderr
    found = json.loads(compared.stdout)
    assert (found["rows"]["old"], found["rows"]["gained"], found["rows"]["lost"]) == (14, 4, 2)
    assert found["rows"]["changed"] == found["changed_columns"]["name"] == 12
    assert case.invoke("apply", str(case.file), "--yes", "--no-start").exit_code == 0
    case.send(events(10, first=20))
    case.warm_run()
    assert Counter(name for _, _, name, _ in case.rows())["tuo tfel"] == 2
    assert "is as it was at its last start" in case.invoke("diff", str(case.file)).stdout


def test_rows_so_far_get_the_values_of_the_edited_code(case: PipelineCase) -> None:
    run_twenty(case)
    assert {name for _, _, name, _ in case.rows()} == {*"ABCDEFG"}
    # Of a record with a row it makes none: nothing is changed.
    write(case, source=SOURCE.replace('"left out"', '"b"'))
    refused = case.invoke("apply", str(case.file), "--reprocess", "--yes", "--no-start")
    assert refused.exit_code == 1
    assert "makes no row of 2 records that have one" in refused.stderr
    # What was dropped stays so, though this code makes a row of it.
    write(case, source=SOURCE.replace("utf8_upper", "utf8_lower").replace('"left out"', '"none"').replace('"raises"', '"never"'))
    tried = case.invoke("apply", str(case.file), "--reprocess", "--dry-run")
    assert "14 rows, made by other transforms" in tried.stdout
    done = case.invoke("apply", str(case.file), "--reprocess", "--yes", "--no-start")
    assert (done.exit_code, "14 rows made anew" in done.stderr) == (0, True), done.output
    assert {name for _, _, name, _ in case.rows()} == {*"abcdefg"}
    assert_proven(case, 14, 4)
    case.send(events(10, first=20))
    case.warm_run()
    assert case.count() == 24
    assert_proven(case, 24, 4)


def test_a_drain_under_the_file_as_it_ran_takes_its_code(case: PipelineCase) -> None:
    run_twenty(case)
    case.send(events(10, first=20))
    case.warm_run(legs=("ingest",))
    # Under the file as it ran all rows of a call with a further field would be rejected.
    write(case, source=SOURCE.replace('"_row": rows', '"more": rows, "_row": rows'))
    done = case.invoke("run", str(case.file), "--drain", "--as-started")
    assert done.exit_code == 0, done.output
    assert (case.count(), Counter(letter["code"] for letter in case.dead_letters())) == (21, Counter(python_error=3))


def test_a_store_of_keys_from_a_function_is_rebuilt(case: PipelineCase) -> None:
    write(case, {**DEDUP, "config": {"key": "name", "time_window": "1h"}})
    case.create_topic(1)
    case.send([event(n, name, 1.0) for n, name in enumerate(["a", "A", "b", "left out", "raises", "c"])], partitions=1)
    case.warm_run()
    (store,) = case.names.directory(case.home).glob("**/dedup")
    shutil.rmtree(store)
    rebuilt = case.invoke("rebuild-state", str(case.file))
    assert rebuilt.exit_code == 0, rebuilt.output
    case.send([event(n, name, 1.0) for n, name in enumerate(["B", "d"])], partitions=1)
    case.warm_run()
    assert sorted(name for _, _, name, _ in case.rows()) == ["A", "B", "C", "D"]


def test_dead_letters_of_a_function_pass_the_corrected_one(case: PipelineCase) -> None:
    write(case)
    case.create_topic(1)
    case.send(events(20), partitions=1)
    case.warm_run()
    write(case, source=SOURCE.replace('"raises" in names', "False"))
    rehearsed = case.invoke("dlq", "reprocess", str(case.file), "--all", "--dry-run")
    assert rehearsed.exit_code == 0, rehearsed.output
    assert "2 would pass to the sink" in rehearsed.stdout
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert Counter(name for _, _, name, _ in case.rows())["RAISES"] == 2


def test_a_plan_of_a_function_that_hangs_can_be_given_up(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each hang takes a new host; tests/unit/functions/test_calls.py has as many as it takes.
    monkeypatch.setattr(calls, "MAX_IN_A_ROW", 2)
    hangs = "def f(batch):\n    while len(batch): time.sleep(1)\n    return pa.record_batch({'name': batch['name']})\n"
    write(case, source="import time\nimport pyarrow as pa\n" + hangs, timeout="200ms")
    case.create_topic(1)
    case.send(events(20), partitions=1)
    with pytest.raises(FunctionHaltError, match=r"own:f: it takes longer than 0\.2 s, 2 times in a row"):
        case.warm_run()
    write(case, source=SOURCE)
    case.send(events(20, first=20), partitions=1)
    case.warm_run(accept=True)
    codes = Counter(letter["code"] for letter in case.dead_letters())
    assert codes == Counter(python_timeout=20, python_error=2)
    assert case.count() == 14
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert case.count() == 28


def test_a_value_that_depends_on_its_batch_is_found(case: PipelineCase) -> None:
    lengths = (
        "import pyarrow as pa\ndef f(batch):\n    return pa.record_batch({'name': pa.array([str(len(batch))] * len(batch), pa.string())})\n"
    )
    write(case, source=lengths)
    case.create_topic(1)
    case.send([event(n, "a", 1.0) for n in range(20)], partitions=1)
    case.run_in_turn()
    found = json.loads(case.invoke("verify", str(case.file), "--json").stdout)
    assert found["verdict"] != "clean"
    assert {finding["kind"] for finding in found["findings"]} == {"different"}
