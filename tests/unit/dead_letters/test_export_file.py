"""Letters in a file: every byte comes back, what was edited is taken over, and every fault is told before anything is taken."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.dead_letters.export_file import Edited, edited_frames, line_of, read_edited
from pipelines.errors import ConfigurationError
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA
from pipelines.protocol.positions import Position
from pipelines.protocol.records import MAX_RECORD_BYTES, decode_frame
from pipelines.testing import FIRST_INSTANT


def dead_letter(sequence: int, ordinal: int, **values: Any) -> dict[str, Any]:
    return {
        **dict.fromkeys(DEAD_LETTER_SCHEMA.names),
        "key": b"k",
        "value": b"{",
        "headers": [],
        "_tf_sequence": sequence,
        "_tf_ordinal": ordinal,
        "_tf_topic": "orders",
        "_tf_partition": 0,
        "_tf_offset": 100 + ordinal,
        "_tf_arrival": FIRST_INSTANT,
        "stage": "parse",
        "code": "invalid_json",
        "message": "not JSON",
        "attempts": 1,
        "first_time": FIRST_INSTANT,
        "last_time": FIRST_INSTANT,
        "past_dedup": False,
        "fingerprint": "f",
        "state": "open",
        **values,
    }


def file_of(path: Path, *lines: str) -> Path:
    target = path / "letters.jsonl"
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target


content = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(lambda text: text.encode("utf-8", "ignore"))


@given(content, content, st.lists(st.tuples(st.binary(max_size=5), content), max_size=3))
def test_every_byte_of_a_record_comes_back(key: bytes | None, value: bytes | None, headers: list) -> None:
    line = line_of(dead_letter(17, 3, key=key, value=value, headers=headers))
    assert "\n" not in line
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", lambda *_, **__: io.BytesIO(f"{line}\n".encode()))
        edited = read_edited(Path("letters.jsonl"))
    assert edited.changes == {Position(17, 3): {"key": key, "value": value, "headers": headers}}


def test_what_a_line_leaves_out_stays_as_it_was(tmp_path: Path) -> None:
    edited = read_edited(file_of(tmp_path, '{"position": "17.3", "value": "{}"}', "", '{"position": "17.4", "key": null}'))
    found = [(9, pa.Table.from_pylist([{**dead_letter(17, n), "row": row} for n, row in ((3, 0), (4, 2))]))]
    ((places, frame),) = edited_frames(edited, found)
    assert places == [(9, [(0, 0), (2, 2)])]
    assert [(row["key"], row["value"], row["_tf_offset"]) for row in decode_frame(frame).to_pylist()] == [
        (b"k", b"{}", 103),
        (None, b"{", 104),
    ]


def test_every_fault_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    long = json.dumps({"position": "1.5", "value": "x" * (MAX_RECORD_BYTES + 1)})
    lines = [
        "nonsense",
        "[]",
        '{"position": "x"}',
        '{"position": "1.2", "value": 7}',
        '{"position": "1.3", "value": {"base64": "!"}}',
        '{"position": "1.4", "headers": [["a"]]}',
        long,
        '{"position": "1.6", "value": "\\ud800"}',
        '{"position": "1.7"}',
        '{"position": "1.7"}',
    ]
    with pytest.raises(ConfigurationError) as caught:
        read_edited(file_of(tmp_path, *lines))
    reported = {fault.path: fault.message for fault in caught.value.faults}
    assert list(reported) == [f"line {number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 10)]
    assert "is not JSON" in reported["line 1"]
    assert "must be a string, null, or an object with base64" in reported["line 4"]
    assert "list of [name, value]" in reported["line 6"]
    assert f"more than the limit of {MAX_RECORD_BYTES}" in reported["line 7"]
    assert "occurs twice" in reported["line 10"]


def faults_of(path: Path) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        read_edited(path)
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"position": "' + "9" * 5000 + '.0"}',
        '{"position": "' + "9" * 30 + '.0"}',
        '{"position": ' + "9" * 5000 + "}",
        '{"position": "1.1", "value": ' + "9" * 5000 + "}",
        '{"position": "1.1", "value": "\\ud800"}',
        '{"position": "1.1", "headers": [[1, 2]]}',
        '{"position": "1.1", "key": {"base64": "\u00e9"}}',
        "NaN",
        '"' + "x" * 8_000_001,
    ],
)
def test_a_hostile_line_is_a_fault_of_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "letters.jsonl").write_text(f"{line}\n")
    with pytest.raises(ConfigurationError) as caught:
        read_edited(tmp_path / "letters.jsonl")
    assert [fault.path for fault in caught.value.faults] == ["line 1"]
    assert len(str(caught.value)) < 1000


def test_a_foreign_file_is_refused_in_a_few_lines(tmp_path: Path) -> None:
    binary = tmp_path / "letters.bin"
    binary.write_bytes(b"\x7fELF\xff\n" + b"\x80\n" * 5000)
    reported = faults_of(binary)
    assert (reported[0], reported[-1], len(reported)) == ("line 1: is not UTF-8 text", "and 4,981 more", 21)
    assert faults_of(file_of(tmp_path, "id,name", "1,a"))[0].startswith("line 1: is not JSON")
    assert faults_of(file_of(tmp_path, '{"id": 1}')) == ["line 1: must be an object with `position`, as `tallyflow dlq export` writes it"]
    assert faults_of(file_of(tmp_path, "[" * 100_000)) == ["line 1: is nested too deeply"]
    assert faults_of(file_of(tmp_path, "", "  ")) == ["it holds no dead letters; `tallyflow dlq export` writes such a file"]


def test_a_letter_with_only_a_head_needs_the_whole_value() -> None:
    rows = [{**dead_letter(1, n, oversize={"bytes": 9, "sha256": b"x"}), "row": n} for n in (0, 1)]
    found = [(9, pa.Table.from_pylist(rows))]
    with pytest.raises(ConfigurationError, match=r"position 1\.1: the dead letter holds only the head of the record"):
        next(edited_frames(Edited("f", {Position(1, 0): {"value": b"whole"}, Position(1, 1): {"key": b"k"}}), found))
    ((_, frame),) = edited_frames(Edited("f", {Position(1, 0): {"value": b"a"}, Position(1, 1): {"value": b"b"}}), found)
    assert [row["oversize"] for row in decode_frame(frame).to_pylist()] == [None, None]
