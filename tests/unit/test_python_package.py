"""`tallyflow.Pipeline` of a file, without a server."""

from pathlib import Path

import pytest

import tallyflow

FILE = """
version: v3
pipeline_id: clicks
sources:
  - type: kafka
    topic: clicks
    connection_params: {brokers: ["${UNSET_BROKERS}"]}
    schema_fields: [{name: id, type: int}]
transforms:
  - {type: dedup, config: {key: id, time_window: 1h}}
sink:
  type: clickhouse
  connection_params: {host: localhost, port: 8123}
  table: clicks
  mapping: [{name: id, column_name: id, column_type: UInt8}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.yaml"
    path.write_text(FILE)
    return path


def test_a_preview_names_the_end_of_each_record(file: Path) -> None:
    found = tallyflow.Pipeline.load(str(file)).preview([{"id": 1}, '{"id": 1}', b'{"id": 300}', b"\xff", {"id": 2}])
    assert [each.outcome for each in found.outcomes] == ["row", "duplicate", "rejected", "rejected", "row"]
    assert found.counts == {"duplicate": 1, "rejected": 2, "row": 2}
    assert [row["id"] for row in found.rows] == [1, 2]
    frame = found.to_pandas()
    assert frame["code"].tolist() == ["", "", "out_of_range", "invalid_json", ""]
    assert frame["rows"].tolist() == [1, 0, 0, 0, 1]
    assert frame["value"][3] == "\ufffd"


def test_a_preview_takes_every_record_with_its_key_and_headers(file: Path) -> None:
    columns = "columns: [{name: region, from: key}, {name: trace, from: headers, header: trace-id}]\n    schema_fields"
    mapped = "".join(f"{{name: {name}, column_name: {name}, column_type: Nullable(String)}}, " for name in ("region", "trace"))
    file.write_text(FILE.replace("schema_fields", columns).replace("mapping: [", f"mapping: [{mapped}"))
    north = tallyflow.Message({"id": 1}, key="north", headers={"trace-id": b"a1", "other": None})
    found = tallyflow.Pipeline.load(file).preview([north, tallyflow.Message(None, b"\xff"), b"", ' {"id": 2} '])
    assert [(each.value, each.outcome) for each in found.outcomes] == [
        (b'{"id": 1}', "row"),
        (None, "rejected"),
        (b"", "rejected"),
        (b' {"id": 2} ', "row"),
    ]
    assert [(row["id"], row["region"], row["trace"]) for row in found.rows] == [(1, "north", "a1"), (2, None, None)]


def test_a_preview_of_nothing_has_the_columns_of_others(file: Path) -> None:
    pipeline = tallyflow.Pipeline.load(file)
    assert pipeline.preview([{"id": 1}]).to_arrow().schema == tallyflow.Preview(()).to_arrow().schema


def test_a_faulty_file_names_all_its_faults(file: Path) -> None:
    file.write_text(FILE.replace("UInt8", "UInt7").replace("1h", "never"))
    with pytest.raises(tallyflow.ConfigurationError, match=r"(?s)time_window.*column_type|column_type.*time_window"):
        tallyflow.Pipeline.load(file)
