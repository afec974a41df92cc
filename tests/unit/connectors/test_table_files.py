"""Look-up tables in files: read whole, in the types that are asked for, within their limits."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from pipelines.config.tables import LookupTable
from pipelines.connectors.tables import fetch
from pipelines.errors import HaltError
from pipelines.lookups.spec import Column, Range, TableSpec

SPEC = TableSpec((Column("code", "string"),), None, (Column("name", "string"), Column("size", "int32"), Column("since", "timestamp")))
CSV = "code,name,size,since,more\n007,James,1,2026-01-31T12:00:00Z,x\n008,,2,2026-01-31 12:00:00,y\n" + '"0,9","",,,"two\nlines"\n'


def table_of(path: Path, **more: Any) -> Any:
    kind = path.suffix.removeprefix(".")
    table = TypeAdapter(LookupTable).validate_python({"type": kind, "uri": path.name, "key": "code", **more})
    table.locate(path.parent)
    return table


def rows_of(table: Any, spec: TableSpec = SPEC) -> list[dict[str, Any]]:
    found = fetch("t", table, spec).to_pylist()
    plain = [
        {name.partition(".")[2]: value for name, value in row.items() if name.startswith("value.")} | {"key": row["key.0"]} for row in found
    ]
    return sorted(plain, key=lambda row: str(row["key"]))


def refused(table: Any, spec: TableSpec = SPEC) -> str:
    with pytest.raises(HaltError) as raised:
        fetch("t", table, spec)
    return str(raised.value)


def test_a_csv_file_is_read_in_the_types_of_the_look_up(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    first, second, third = sorted(rows_of(table_of(tmp_path / "t.csv")), key=lambda row: row["key"], reverse=True)[::-1]
    assert (first["key"], first["name"], first["size"]) == ("0,9", "", None)
    assert (second["key"], second["name"], second["size"], second["since"]) == ("007", "James", 1, third["since"])
    assert (third["key"], third["name"], third["size"]) == ("008", None, 2)


def test_a_parquet_file_gives_its_columns(tmp_path: Path) -> None:
    columns = {"code": pa.array(["a", "b"]).dictionary_encode(), "name": ["x", None], "size": pa.array([1, 2], pa.uint8())}
    pq.write_table(pa.table({**columns, "since": pa.array([0, 1], pa.timestamp("ms")), "more": [1, 2]}), tmp_path / "t.parquet")
    assert [(row["key"], row["name"], row["size"]) for row in rows_of(table_of(tmp_path / "t.parquet"))] == [("a", "x", 1), ("b", None, 2)]


def test_another_delimiter_separates_values(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("from;to;code\n1;5;a\n6;;b\n")
    spec = TableSpec((), Range("from", "to", "int64"), (Column("code", "string"),))
    table = table_of(tmp_path / "t.csv", delimiter=";", key={"between": ["from", "to"]})
    assert [row["value.code"] for row in fetch("t", table, spec).to_pylist()] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "fetching table t: Empty CSV file"),
        ("code,name,size\n", "'since' in include_columns does not exist"),
        (CSV.replace(",1,", ",one,"), "CSV conversion error to int32: invalid value 'one'"),
        (CSV.replace("007", "008"), "1 row repeats a key: ('008')"),
        (CSV.partition("\n")[0] + "\n", "it has 0 rows with a key, fewer than min_rows (1)"),
        ("code,name,size,since\na\n", "Expected 4 columns, got 1"),
        ("code,name,size,since\na,b,1,yesterday\n", "column 'since' is string and cannot be read as timestamp"),
    ],
)
def test_a_faulty_csv_file_is_refused_with_the_fault(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert message in refused(table_of(tmp_path / "t.csv"))


def test_a_faulty_parquet_file_is_refused_with_the_fault(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"code": ["a"]}), path)
    assert "its file has no column 'name'; it has code" in refused(table_of(path))
    path.write_bytes(path.read_bytes()[:-9])
    assert "its file is no sound Parquet" in refused(table_of(path))


def test_a_file_that_is_missing_or_elsewhere_is_refused(tmp_path: Path) -> None:
    assert "there is no file" in refused(table_of(tmp_path / "t.csv"))
    (tmp_path / "outside.csv").write_text(CSV)
    own = tmp_path / "own"
    own.mkdir()
    (own / "t.csv").symlink_to(tmp_path / "outside.csv")
    assert "does not lie below the directory of the pipeline file" in refused(table_of(own / "t.csv"))


def test_a_table_beyond_its_limits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    assert "it has 3 rows and takes" in refused(table_of(tmp_path / "t.csv", max_rows=2))
    assert "more than max_rows (10,000,000) or max_bytes (50)" in refused(table_of(tmp_path / "t.csv", max_bytes=50))
    assert "its file has" in refused(table_of(tmp_path / "t.csv", max_bytes=10))
    assert rows_of(table_of(tmp_path / "t.csv", max_rows=3, min_rows=3))
