"""Copies of segments on a host's disk: a segment is fetched once, and what is damaged or gone here is fetched again."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs

from pipelines.errors import HaltError, RetryableError, StateDamagedError
from pipelines.key_store import cache
from pipelines.key_store.cache import CachedStorage
from pipelines.key_store.segments import Entries, RunFacts, write_run
from pipelines.key_store.storage import Header, Storage
from pipelines.key_store.store import KeyedStore

LARGE, SMALL = 20_000, 100


def many(count: int, seed: int) -> Entries:
    random = np.random.default_rng(seed)
    hi = np.sort(random.integers(0, 2**64, count, dtype=np.uint64))
    lo = random.integers(0, 2**64, count, dtype=np.uint64)
    return Entries(hi, lo, np.zeros(count, np.int64), np.full(count, seed, np.uint64), np.arange(count, dtype=np.uint32))


class Far(CachedStorage):
    """An object store: a directory that is no directory of this host; it counts what is fetched, and may fail."""

    fetched: list[str]
    notes: list[str]

    @classmethod
    def at(cls, directory: Path, near: Path) -> "Far":  # type: ignore[override]
        (directory / "far").mkdir(exist_ok=True)
        made = cls(fs.SubTreeFileSystem(str(directory / "far"), fs.LocalFileSystem()), "keys/0", Storage.local(near), (notes := []).append)
        object.__setattr__(made, "fetched", [])
        object.__setattr__(made, "notes", notes)
        return made

    def read(self, name: str) -> tuple[pa.RecordBatch, Header]:
        if not self.has_copy(name):
            self.fetched.append(name)
        return super().read(name)


@pytest.fixture
def far(tmp_path: Path) -> Far:
    return Far.at(tmp_path, tmp_path / "near")


def opened(storage: Storage, facts: RunFacts) -> KeyedStore:
    store = KeyedStore(storage)
    store.open([facts])
    return store


def test_what_this_host_wrote_is_not_fetched(far: Far) -> None:
    facts = write_run(far, "run", many(LARGE, 1))
    assert far.has_copy("run")
    assert opened(far, facts).find(many(LARGE, 1).hi, many(LARGE, 1).lo).is_found.all()
    assert far.fetched == []


def test_what_another_host_wrote_is_fetched_once(far: Far, tmp_path: Path) -> None:
    facts = write_run(Far.at(tmp_path, tmp_path / "other"), "run", many(LARGE, 1))
    for _ in range(3):
        assert opened(far, facts).find(many(LARGE, 1).hi, many(LARGE, 1).lo).is_found.all()
    assert far.fetched == ["run"]


def test_a_small_segment_is_not_copied(far: Far) -> None:
    facts = write_run(far, "run", many(SMALL, 1))
    assert not far.has_copy("run")
    assert opened(far, facts).find(many(SMALL, 1).hi, many(SMALL, 1).lo).is_found.all()


def test_nothing_is_written_here_before_it_is_durable_there(far: Far) -> None:
    class Away:
        type_name = "away"

        def get_file_info(self, _: object) -> Any:
            raise OSError(28, "No space left on device")

    with pytest.raises(RetryableError):
        write_run(replace(far, filesystem=Away()), "run", many(LARGE, 1))
    assert far.near.names() == []


def test_a_full_disk_here_leaves_out_the_copy_and_nothing_else(far: Far) -> None:
    class Full(Storage):
        def _write_local(self, name: str, batch: pa.RecordBatch, header: Header) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    object.__setattr__(far, "near", Full.local(Path(far.near.path)))
    facts = write_run(far, "run", many(LARGE, 1))
    assert opened(far, facts).find(many(LARGE, 1).hi, many(LARGE, 1).lo).is_found.all()
    assert (far.has_copy("run"), len(far.notes)) == (False, 2)
    assert far.notes[0].startswith(f"no copies of segments in {Path(far.near.path).parent}, each is read")
    assert far.notes[0].endswith("the disk is full, or has no inodes left: make room")


@pytest.mark.parametrize("at", [300_000, -300])
def test_a_damaged_copy_is_fetched_again(far: Far, at: int) -> None:
    """Among its entries, and in the footer with its checksums."""
    facts = write_run(far, "run", many(LARGE, 1))
    copy = Path(far.near.path) / "run"
    content = bytearray(copy.read_bytes())
    content[at] ^= 0xFF
    copy.write_bytes(content)
    assert opened(far, facts).find(many(LARGE, 1).hi, many(LARGE, 1).lo).is_found.all()
    assert far.fetched == ["run"]
    assert copy.read_bytes() != bytes(content)


def test_a_copy_that_was_cut_off_is_fetched_again(far: Far) -> None:
    facts = write_run(far, "run", many(LARGE, 1))
    copy = Path(far.near.path) / "run"
    copy.write_bytes(copy.read_bytes()[:5000])
    assert opened(far, facts).find(many(LARGE, 1).hi, many(LARGE, 1).lo).is_found.all()


def test_damage_where_it_is_durable_is_damage(far: Far, tmp_path: Path) -> None:
    facts = write_run(far, "run", many(LARGE, 1))
    far.discard_copies()
    durable = tmp_path / "far" / "keys" / "0" / "run"
    content = bytearray(durable.read_bytes())
    content[20_000] ^= 0xFF
    durable.write_bytes(content)
    store = opened(far, facts)
    with pytest.raises(StateDamagedError, match=r"rows 0 to .* are damaged"):
        store.find(many(LARGE, 1).hi, many(LARGE, 1).lo)


def test_a_deleted_segment_is_gone_here_and_there(far: Far) -> None:
    write_run(far, "run", many(LARGE, 1))
    far.delete("run")
    assert (far.names(), far.near.names()) == ([], [])


def test_copies_that_no_done_lists_are_discarded(far: Far) -> None:
    for number in range(3):
        write_run(far, f"run-{number}", many(LARGE, number))
    far.discard_copies(keep={"run-1"})
    assert far.near.names() == ["run-1"]
    assert len(far.names()) == 3


def test_copies_lie_where_spark_says_and_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'one'},{tmp_path / 'two'}")
    storages = [CachedStorage.before(Storage(fs.LocalFileSystem(), path), print) for path in ("keys/0", "keys/1")]
    assert len({storage.near.path for storage in storages}) == 2
    assert all(storage.near.path.startswith(str(tmp_path / "one")) for storage in storages)
    assert (tmp_path / "one").stat().st_mode & 0o077 == 0


def test_a_directory_that_others_prepared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    name = cache._own_directory().name
    (tmp_path / name).rmdir()
    (tmp_path / name).symlink_to(elsewhere)
    with pytest.raises(HaltError, match="it belongs to somebody else"):
        CachedStorage.before(Storage(fs.LocalFileSystem(), "keys/0"), print)
