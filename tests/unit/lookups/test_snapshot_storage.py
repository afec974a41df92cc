"""Where snapshots are kept: by their digest, whole or not at all, and never another one than was asked for."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.errors import HaltError
from pipelines.lookups.snapshot import snapshot_of
from pipelines.lookups.spec import Column, TableSpec
from pipelines.lookups.storage import Snapshots
from pipelines.types.duckdb import open_engine

SPEC = TableSpec((Column("code", "string"),), None, (Column("name", "string"),))


def rows(*names: str) -> pa.RecordBatch:
    with open_engine() as engine:
        return snapshot_of(SPEC, pa.table({"code": [str(number) for number in range(len(names))], "name": list(names)}), engine)


def file_of(directory: Path, digest: str) -> Path:
    return directory / "lookups" / "t" / f"{digest}.arrow"


def test_a_snapshot_comes_back_by_its_digest_in_another_process(tmp_path: Path) -> None:
    stored = Snapshots(str(tmp_path)).put("t", SPEC, rows("a", "b"))
    found = Snapshots(str(tmp_path)).open("t", stored.digest)
    assert (stored.rows, stored.bytes) == (2, file_of(tmp_path, stored.digest).stat().st_size)
    assert found.spec == SPEC
    assert found.rows.equals(rows("a", "b"))


def test_the_same_rows_are_the_same_snapshot_in_whatever_order(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path))
    one = snapshots.put("t", SPEC, rows("a", "b"))
    with open_engine() as engine:
        other = snapshot_of(SPEC, pa.table({"name": ["b", "a"], "code": pa.array(["1", "0"]).dictionary_encode()}), engine)
    assert snapshots.put("t", SPEC, other) == one
    assert snapshots.put("t", SPEC, rows("a", "c")).digest != one.digest
    assert len(snapshots.digests("t")) == 2


@pytest.mark.parametrize("left", [b"", b"ARROW1\0\0", None], ids=["nothing", "a beginning", "all but a byte"])
def test_what_a_killed_writer_has_left_is_replaced(tmp_path: Path, left: bytes | None) -> None:
    stored = Snapshots(str(tmp_path)).put("t", SPEC, rows("a"))
    path = file_of(tmp_path, stored.digest)
    path.write_bytes(path.read_bytes()[:-1] if left is None else left)
    assert Snapshots(str(tmp_path)).put("t", SPEC, rows("a")) == stored
    assert Snapshots(str(tmp_path)).open("t", stored.digest).rows.num_rows == 1


def test_a_damaged_file_is_never_read_as_a_snapshot(tmp_path: Path) -> None:
    stored = Snapshots(str(tmp_path)).put("t", SPEC, rows("abcdefgh"))
    path = file_of(tmp_path, stored.digest)
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"abcdefgX"))
    with pytest.raises(HaltError, match=r"reading the snapshot .* is damaged; delete it, and a plan is finished with"):
        Snapshots(str(tmp_path)).open("t", stored.digest)


def test_a_missing_file_halts_and_the_same_rows_give_it_again(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path))
    stored = snapshots.put("t", SPEC, rows("a"))
    snapshots.delete("t", [stored.digest])
    assert not snapshots.has("t", stored.digest)
    with pytest.raises(HaltError, match=r"it is not in .*; a plan is finished with the snapshot with which it was begun"):
        snapshots.open("t", stored.digest)
    assert snapshots.put("t", SPEC, rows("a")) == stored
    assert snapshots.open("t", stored.digest).rows.num_rows == 1
