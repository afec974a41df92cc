"""Functions in a program: fields, outcomes and dead letters, the code by its digest, and the reference beside it."""

import json
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from support.programs import program
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.config import load, shape_of, unsupported
from pipelines.config.docs import EXAMPLE
from pipelines.config.fields import origins
from pipelines.config.order import in_order
from pipelines.errors import ConfigurationError, HaltError
from pipelines.functions import code
from pipelines.functions.code import pack
from pipelines.functions.spec import spark_version, versions
from pipelines.preview.declared import declared_program
from pipelines.preview.given import frames_of, of_lines
from pipelines.preview.run import preview
from pipelines.process import isolation, stage_config
from pipelines.process.arrivals import Arrived
from pipelines.process.program import Program
from pipelines.process.run import Made, run
from pipelines.process.steps import Context
from pipelines.process.steps.pyspark import PySpark
from pipelines.process.steps.python import Python
from pipelines.proof.readers.frames import batch_of
from pipelines.proof.verification.record_columns import parts_read
from pipelines.proof.verification.reference import Bounds, Reference, compared_columns
from pipelines.protocol.naming import Names
from pipelines.protocol.records import HEADER_PARTITION, HEADER_TOPIC, Message, encode_frame
from pipelines.runner.file_checks import check_functions
from pipelines.testing import MemoryLog, records
from pipelines.types.duckdb import open_database, open_engine

FIELDS = (("id", "int"), ("city", "string"), ("price", "float"))
COLUMNS = (
    ("id", "id", "Nullable(Int64)", False),
    ("label", "label", "Nullable(String)", False),
    ("tax", "tax", "Nullable(Float64)", False),
)
ROWS = """
def f(record):
    if record["city"] == "gone":
        return None
    if record["city"] == "ends":
        import os
        os._exit(1)
    return {"label": record["city"].upper(), "tax": record["price"] and record["price"] * 0.5}
"""
BATCH = """
import pyarrow as pa, pyarrow.compute as pc
def f(batch):
    rows = pc.indices_nonzero(pc.not_equal(batch["city"], "gone"))
    if "bad" in batch["city"].to_pylist():
        raise ValueError("bad city")
    kept = batch.take(rows)
    return pa.record_batch({"label": pc.utf8_upper(kept["city"]), "tax": pc.multiply(kept["price"], 0.5), "_row": rows})
"""
Step = Callable[..., Python]


@pytest.fixture
def step(tmp_path: Path) -> Step:
    def step(source: str, mode: Any = "row") -> Python:
        (tmp_path / "own.py").write_text(source)
        outputs = (("label", "string"), ("tax", "float64"))
        return Python("own:f", pack(tmp_path, "own", ()), mode, FIELDS, outputs, 20_000, *versions())

    return step


def frame_of(*values: dict[str, Any]) -> Arrived:
    payload = encode_frame(records(0, [json.dumps(value).encode() for value in values]))
    headers = {HEADER_TOPIC: "orders", HEADER_PARTITION: "0"}
    return Arrived(Message("tf.p.raw.orders.0", 1, datetime(2026, 1, 1, tzinfo=UTC), payload, headers), 0)


def made_by(made: Program, frame: Arrived, decided: Any = ()) -> Made:
    with open_engine() as engine:
        return run(made, engine, [frame], decided)


def record(number: int, city: str | None, price: float | None = 1.0) -> dict[str, Any]:
    return {"id": number, "city": city, "price": price}


def letters(made: Made) -> list[tuple[int, str, str]]:
    return [(letter["_tf_ordinal"], letter["stage"], letter["code"]) for letter in made.dead_letters.to_pylist()]


def test_outputs_are_fields_and_left_out_records_are_dropped(step: Step) -> None:
    made = made_by(
        program(FIELDS, COLUMNS, step(BATCH, "batch")),
        frame_of(record(1, "a", 3.0), record(2, "gone"), record(3, "bad"), record(4, "b", None)),
    )
    assert made.rows.select(["id", "label", "tax"]).to_pylist() == [
        {"id": 1, "label": "A", "tax": 1.5},
        {"id": 4, "label": "B", "tax": None},
    ]
    assert letters(made) == [(2, "python", "python_error")]
    assert (made.counts["dropped.function"], made.counts["rows_out"], made.counts["rows_rejected"]) == (1, 2, 1)
    (letter,) = made.dead_letters.to_pylist()
    assert letter["message"] == "own:f raises ValueError: bad city with id = 3, city = 'bad', price = 1.0"


def test_a_record_that_ends_the_host_is_decided_by_its_plan(step: Step) -> None:
    whole, frame = program(FIELDS, COLUMNS, step(ROWS)), frame_of(record(1, "a"), record(2, "ends"))
    found = isolation.undecided(made_by(whole, frame).dead_letters, [])
    assert [(place[1], place[3], place[5]) for place in found] == [(1, "python", "python_died")]
    decided = [(sequence, ordinal, *reason) for sequence, ordinal, _, *reason in found]
    again = made_by(whole, frame, decided)
    assert letters(again) == [(1, "python", "python_died")]
    assert isolation.undecided(again.dead_letters, decided) == []


def test_a_decided_record_is_not_called_for_again(step: Step) -> None:
    made = made_by(program(FIELDS, COLUMNS, step(ROWS)), frame_of(record(1, "a")), [(1, 0, "python", "words", "python_timeout")])
    assert letters(made) == [(0, "python", "python_timeout")]


def test_one_decision_may_hold_for_the_rest_of_a_frame(step: Step) -> None:
    frame = frame_of(record(1, "a"), record(2, "b"), {"id": "x"}, record(4, "c"))
    decided = [(1, 2, "parse", "words"), (1, 1, "python", "words", "python_timeout", 3)]
    made = made_by(program(FIELDS, COLUMNS, step(ROWS)), frame, decided)
    assert letters(made) == [(1, "python", "python_timeout"), (2, "parse", "internal_error"), (3, "python", "python_timeout")]
    assert made.rows.column("id").to_pylist() == [1]
    assert isolation.undecided(made.dead_letters, decided) == []


@pytest.mark.parametrize(("source", "mode"), [(ROWS, "row"), (BATCH, "batch")])
def test_functions_end_records_where_the_reference_does(step: Step, source: str, mode: str) -> None:
    whole = program(FIELDS, COLUMNS, step(source, mode))
    frame = frame_of(record(1, "a", 3.0), record(2, "gone"), record(3, "bad"), record(4, "é", None), {"id": "x"}, record(6, None))
    made = made_by(whole, frame)
    stages = {ordinal: stage for ordinal, stage, _ in letters(made)}
    rows = {row["_tf_ordinal"]: [row["label"], row["tax"]] for row in made.rows.to_pylist()}
    with open_database(":memory:", {}) as engine:
        reference = Reference(engine, compared_columns(whole))
        reference.load(iter([batch_of(frame, parts_read(()))]), whole)
        reference.add_frames({1: 0})
        reference.evaluate(whole, Bounds(0, 2**63))
        wanted = dict(engine.execute('SELECT "offset", stage FROM parsed').fetchall())
        labels = ", ".join(column.label for column in compared_columns(whole)[1:])
        expected = {n: [label.decode(), tax] for n, label, tax in engine.execute(f'SELECT "offset", {labels} FROM expected').fetchall()}
    assert wanted == {n: stages.get(n, None if n in rows else "dropped.function") for n in range(6)}
    assert expected == rows


def test_a_program_names_its_code_and_is_read_back(step: Step) -> None:
    whole = program(FIELDS, COLUMNS, step(ROWS))
    assert Program.decode(json.loads(whole.encode())) == whole
    assert program(FIELDS, COLUMNS, step(ROWS + "\n")).version != whole.version
    forged = json.loads(whole.encode())
    for name, value in (("function", "os:system; x"), ("code", "0" * 63), ("inputs", [["_tf_sequence", "int"]])):
        with pytest.raises(ValueError, match=r"own:f|no function"):
            Program.decode({**forged, "steps": [forged["steps"][0] | {name: value}, forged["steps"][1]]})


def test_an_open_plan_is_finished_with_the_code_of_its_program(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    log, names = MemoryLog(), Names("p")
    before = program(FIELDS, COLUMNS, step(ROWS))
    version = stage_config.store(log, names, before)
    step(ROWS.replace("upper", "lower"))
    monkeypatch.setattr(code, "_archives", {})
    loaded = stage_config.load(log, names, version)
    assert made_by(loaded, frame_of(record(1, "Aa"))).rows.column("label").to_pylist() == ["AA"]


@pytest.mark.parametrize(("content", "message"), [(None, "it is not there"), (b"other", "other code is there")])
def test_code_that_is_gone_or_other_code_halts(step: Step, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str) -> None:
    log, names = MemoryLog(), Names("p")
    whole = program(FIELDS, COLUMNS, step(ROWS))
    log.publish(names.config(whole.version), whole.encode(), {}, 0)
    if content:
        log.publish(names.code(step(ROWS).code), content, {}, 0)
    monkeypatch.setattr(code, "_archives", {})
    with pytest.raises(HaltError, match=message):
        stage_config.load(log, names, whole.version)


def test_another_version_of_pyarrow_halts_with_both(step: Step) -> None:
    whole = json.loads(program(FIELDS, COLUMNS, step(ROWS)).encode())
    whole["steps"][0]["pyarrow"] = "1.0"
    with pytest.raises(HaltError, match=r"with pyarrow 1\.0, this is Python 3"):
        made_by(Program.decode(whole), frame_of(record(1, "a")))


def test_another_version_of_pyspark_halts_with_both() -> None:
    planned = PySpark("own:f", "0" * 64, "pyspark", FIELDS, FIELDS, 20_000, *versions(), "3.5.0")
    halts = pytest.raises(HaltError, match=rf"with pyspark 3\.5\.0, this is Python 3.* with pyspark {spark_version()}")
    with open_engine() as engine, halts:
        planned.apply(Context(engine), pa.table({"id": [1]}))


@pytest.mark.parametrize(("kind", "mode", "more"), [(Python, "pyspark", ()), (PySpark, "batch", ("4.3.0",))])
def test_a_step_takes_only_its_own_modes(kind: Any, mode: Any, more: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"mode '{mode}' is none of {kind.name}"):
        kind("own:f", "0" * 64, mode, FIELDS, FIELDS, 20_000, *versions(), *more)


# -- the file -----------------------------------------------------------------------------------------------------------------

TRANSFORM = "  - {{type: python, config: {{function: 'own:f', mode: row, output: [{{name: label, type: string}}]{more}}}}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text("def f(record):\n    return {'label': record['order_id']}\n")
    return tmp_path / "pipeline.yaml"


def write(path: Path, more: str = "", after: str = "") -> Path:
    path.write_text(EXAMPLE.replace("sink:\n", f"transforms:\n{TRANSFORM.format(more=more)}{after}sink:\n", 1))
    return path


def test_a_file_names_a_function_beside_it(path: Path) -> None:
    config = load(write(path), {})
    check_functions(config)
    assert unsupported(config) == []
    (python,) = [one for one in declared_program(config).steps if isinstance(one, Python)]
    assert (python.function, python.outputs, python.timeout_ms) == ("own:f", (("label", "string"),), 30_000)
    assert dict(python.inputs)["order_id"] == "string"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "there is no own.py and no package own beside the pipeline file"),
        ("import nowhere\n", "No module named 'nowhere'"),
        ("def g(record):\n    return None\n", "has no attribute 'f'"),
        ("def f(record)\n", "SyntaxError"),
    ],
)
def test_validation_names_the_fault_of_a_function(path: Path, source: str | None, message: str) -> None:
    own = path.with_name("own.py")
    if source is None:
        own.unlink()
    else:
        own.write_text(source)
    with pytest.raises(ConfigurationError, match=message) as raised:
        check_functions(load(write(path), {}))
    assert [fault.path for fault in raised.value.faults] == ["transforms[0].config.function"]


def test_validate_loads_the_functions_of_a_file(path: Path) -> None:
    assert CliRunner().invoke(app, ["validate", str(write(path))]).exit_code == 0
    path.with_name("own.py").write_text("import nowhere\n")
    refused = CliRunner().invoke(app, ["validate", str(path)])
    assert refused.exit_code == 2
    assert "transforms[0].config.function: loading function own:f: raises ModuleNotFoundError" in refused.stderr


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "link"])
def test_no_file_elsewhere_becomes_code(path: Path, name: str) -> None:
    path.with_name("link").symlink_to("/etc/passwd")
    with pytest.raises(ConfigurationError, match="below the directory of the pipeline file"):
        check_functions(load(write(path, f", files: ['{name}']"), {}))


def test_a_function_may_run_behind_dedup(path: Path) -> None:
    text = write(path).read_text().replace("transforms:\n", "transforms:\n  - {type: dedup, config: {key: order_id, time_window: 1h}}\n")
    path.write_text(text)
    config = load(path, {})
    assert [transform.type for _, transform in in_order(config)] == ["dedup", "python"]
    assert unsupported(config) == []


def test_a_key_may_be_an_output_of_a_function(path: Path) -> None:
    config = load(write(path, after="  - {type: dedup, config: {key: label, time_window: 1h}}\n"), {})
    (definition,) = shape_of(config)["sources"]["orders"]["dedup_key_fields"]
    assert (definition["type"], definition["function"]) == ("string", "own:f")
    assert "order_id" in definition["of"]
    assert origins(config, config.sources[0])["label"] == frozenset(config.sources[0].field_names)


def test_the_example_of_the_docs_runs(path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "functions-python.md").read_text()
    transforms, code = (re.search(f"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("yaml", "python"))
    assert transforms and code
    path.with_name("orders").mkdir()
    path.with_name("orders").joinpath("enrich.py").write_text(code[1])
    document = yaml.safe_load(EXAMPLE) | yaml.safe_load(transforms[1])
    kinds = {"shop": "String", "gross": "Float64"}
    document["sink"]["mapping"] = [{"name": name, "column_name": name, "column_type": kind} for name, kind in kinds.items()]
    document["sink"]["order_by"] = ["shop"]
    path.write_text(yaml.safe_dump(document))
    config = load(path, {})
    found = preview(
        declared_program(config),
        frames_of(of_lines([b'{"order_id": "de-1", "price": 2}', b'{"order_id": "x", "price": 0}']), config.sources),
    )
    assert [record.last.outcome for record in found.records] == ["row", "dropped"]
    assert found.records[0].last.fields is not None
    assert (found.records[0].last.fields["shop"], found.records[0].last.fields["gross"]) == ("de", 2.38)


def test_a_unit_makes_an_instant_of_an_output(path: Path) -> None:
    path.with_name("own.py").write_text("def f(record):\n    return {'label': 1_700_000_000_123}\n")
    document = yaml.safe_load(write(path).read_text())
    document["transforms"][0]["config"]["output"] = [{"name": "label", "type": "int", "unit": "ms"}]
    document["sink"]["mapping"] = [{"name": "label", "column_name": "label", "column_type": "DateTime64(3)"}]
    document["sink"]["order_by"] = ["label"]
    path.write_text(yaml.safe_dump(document))
    config = load(path, {})
    (record,) = preview(declared_program(config), frames_of(of_lines([b"{}"]), config.sources)).records
    assert (record.last.fields or {})["label"] == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


def test_the_same_files_are_the_same_code(tmp_path: Path) -> None:
    package = tmp_path / "one" / "pack"
    for name in ("one", "two"):
        (tmp_path / name / "pack" / "inner").mkdir(parents=True)
        (tmp_path / name / "pack" / "__init__.py").write_text("")
        (tmp_path / name / "pack" / "inner" / "a.py").write_text("x = 1\n")
        (tmp_path / name / "table.csv").write_text("a,b\n")
    first = pack(tmp_path / "one", "pack.inner.a", ["table.csv"])
    assert first == pack(tmp_path / "two", "pack.inner.a", ["table.csv"])
    assert first != pack(tmp_path / "one", "pack.inner.a", [])
    (package / "inner" / "a.py").write_text("x = 2\n")
    assert first != pack(tmp_path / "one", "pack.inner.a", ["table.csv"])


def test_too_much_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("")
    (tmp_path / "data.bin").write_bytes(bytes(range(256)) * 10 + random.Random(1).randbytes(500_000))
    with pytest.raises(ValueError, match="more than 409,600; install the larger part as a package"):
        pack(tmp_path, "own", ["data.bin"])
