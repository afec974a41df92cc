"""Runs and the store: what was added is found, what has expired goes, and damage is noticed before it can let a duplicate through."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from pipelines.errors import HaltError, RetryableError, StateDamagedError
from pipelines.key_store import bucket_filter as bucket_filter
from pipelines.key_store.index import Index, Sought
from pipelines.key_store.segment_file import BLOCK_ROWS
from pipelines.key_store.segments import Entries, Run, RunFacts, write_run
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import FAN, SMALL_FAN, KeyedStore, bucket_with_turn, merge, merged_runs

NEVER = -1


def entries(*rows: tuple[int, int, int, int]) -> Entries:
    """Entries of (hi, lo, time, sequence), sorted; the ordinal is 7."""
    hi, lo, time, sequence = zip(*sorted(rows), strict=True)
    return Entries(
        np.array(hi, dtype=np.uint64),
        np.array(lo, dtype=np.uint64),
        np.array(time, dtype=np.int64),
        np.array(sequence, dtype=np.uint64),
        np.full(len(hi), 7, dtype=np.uint32),
    )


def many(count: int, seed: int, time: int = 0) -> Entries:
    random = np.random.default_rng(seed)
    hi = np.sort(random.integers(0, 2**64, count, dtype=np.uint64))
    return Entries(
        hi,
        random.integers(0, 2**64, count, dtype=np.uint64),
        np.full(count, time),
        np.full(count, seed, dtype=np.uint64),
        np.arange(count, dtype=np.uint32),
    )


def words(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.local(tmp_path / "bucket-0")


@pytest.fixture
def store(storage: Storage) -> KeyedStore:
    return KeyedStore(storage)


# -- a run ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 1000, BLOCK_ROWS, BLOCK_ROWS + 1, 300_000])
def test_a_run_finds_all_that_it_holds_and_nothing_else(storage: Storage, count: int) -> None:
    held, others = many(count, 1), many(count, 2)
    run = Run.open(storage, write_run(storage, "run", held))
    at, rows = run.find(Sought.of(held.hi, held.lo))
    assert sorted(at) == list(range(count))
    assert np.array_equal(held.hi[at], run.entries.hi[rows])
    assert np.array_equal(held.lo[at], run.entries.lo[rows])
    assert len(run.find(Sought.of(others.hi, others.lo))[0]) == 0
    assert len(run.find(Sought.of(held.hi, others.lo))[0]) == 0


def test_the_smallest_and_the_largest_hash_are_found(storage: Storage) -> None:
    top = 2**64 - 1
    run = Run.open(storage, write_run(storage, "run", entries((0, 0, 1, 1), *((x << 59, 5, 1, 1) for x in range(1, 32)), (top, top, 1, 1))))
    at, _ = run.find(Sought.of(words(0, top, top, 0), words(0, top, 0, top)))
    assert sorted(at) == [0, 1]


def test_different_keys_with_one_high_half_are_told_apart(storage: Storage) -> None:
    run = Run.open(storage, write_run(storage, "run", entries((9, 1, 10, 1), (9, 2, 20, 1), (9, 3, 30, 1))))
    at, rows = run.find(Sought.of(words(9, 9, 9, 9), words(3, 1, 4, 2)))
    assert {int(a): int(run.entries.time[r]) for a, r in zip(at, rows, strict=True)} == {0: 30, 1: 10, 3: 20}


def test_a_run_takes_36_bytes_per_key_and_three_of_index(storage: Storage) -> None:
    write_run(storage, "run", many(200_000, 1))
    assert (Path(storage.path) / "run").stat().st_size < 200_000 * 39.1


@pytest.mark.parametrize("count", [1, 7, 100, 5000, 1_200_000])
def test_the_filter_passes_every_present_hash_and_few_others(count: int) -> None:
    held, others = many(count, 1), many(10_000, 2)
    index, sought = Index.of(held.hi, held.lo), Sought.of(held.hi, held.lo)
    assert np.array_equal(index.may_hold(sought), np.arange(count))
    behind = np.arange(count) - index.first_row(sought, np.arange(count))
    assert 0 <= behind.min() <= behind.max() < 30
    assert len(index.may_hold(Sought.of(others.hi, others.lo))) < 400


def test_a_name_is_used_once(storage: Storage) -> None:
    write_run(storage, "run", many(5, 1))
    with pytest.raises(FileExistsError):
        write_run(storage, "run", many(5, 2))


@pytest.mark.parametrize("row", [0, BLOCK_ROWS - 1, BLOCK_ROWS, 99_999])
@pytest.mark.parametrize("column", range(5))
def test_a_flipped_bit_in_a_column_is_noticed_when_touched(storage: Storage, row: int, column: int) -> None:
    held = many(100_000, 1, time=77)
    facts = write_run(storage, "run", held)
    path = Path(storage.path) / "run"
    content = bytearray(path.read_bytes())
    wanted = held.columns()[column].tobytes()
    at = content.find(wanted) + row * held.columns()[column].itemsize
    content[at] ^= 1
    path.write_bytes(content)
    run = Run.open(storage, facts)
    with pytest.raises(StateDamagedError, match=r"rows \d+ to \d+ are damaged; nothing was written; stop"):
        run.find(Sought.of(held.hi[row : row + 1], held.lo[row : row + 1]))
    untouched = 99_999 if row < BLOCK_ROWS else 0
    at_untouched, _ = run.find(Sought.of(held.hi[untouched : untouched + 1], held.lo[untouched : untouched + 1]))
    assert len(at_untouched) == 1


@pytest.mark.parametrize("name", ["filter", "first_rows"])
def test_a_flipped_bit_in_the_index_is_noticed_on_opening(storage: Storage, name: str) -> None:
    held = many(100_000, 1)
    facts = write_run(storage, "run", held)
    path = Path(storage.path) / "run"
    content = bytearray(path.read_bytes())
    index = Index.of(held.hi, held.lo)
    wanted = (index.filter if name == "filter" else index.first_rows).tobytes()
    content[content.find(wanted) + len(wanted) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StateDamagedError, match=r"opening state run .*: its index is damaged; nothing was written; .*rebuild-state"):
        Run.open(storage, facts)


def test_a_run_of_an_older_format_is_refused_with_the_remedy(storage: Storage) -> None:
    storage.write("run", pa.record_batch({"hi": pa.array([1], pa.uint64())}), {b"run": b'{"format": 2, "rows": 1}', b"crc": b""})
    with pytest.raises(StateDamagedError, match=r"it is of format 2, and this release reads 3; .*rebuild-state"):
        Run.open(storage, RunFacts("run", 1, 1, ""))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_flipped_bit_anywhere_is_noticed_or_harmless(data: st.DataObject) -> None:
    with TemporaryDirectory() as directory:
        storage, held = Storage.local(Path(directory)), many(50, 1)
        facts = write_run(storage, "run", held)
        path = Path(directory) / "run"
        content = bytearray(path.read_bytes())
        bit = data.draw(st.integers(0, 8 * len(content) - 1))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            found = Run.open(storage, facts).checked_entries()
        except StateDamagedError:
            return
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(held.columns(), found.columns(), strict=True))


def test_a_damaged_missing_or_other_run_is_noticed_on_opening(storage: Storage) -> None:
    facts, other = write_run(storage, "run", many(1000, 1)), write_run(storage, "other", many(1000, 2))
    path = Path(storage.path) / "run"
    with pytest.raises(StateDamagedError, match="not the file that the ledger lists"):
        Run.open(storage, type(facts)("other", other.rows, other.newest, facts.digest))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StateDamagedError, match="opening state run"):
        Run.open(storage, facts)
    path.unlink()
    with pytest.raises(StateDamagedError, match=r"opening state run .*run"):
        Run.open(storage, facts)


# -- the store --------------------------------------------------------------------------------------------------------------------


def add(store: KeyedStore, found: Entries, to: int, expired: int = NEVER) -> None:
    store.open(store.add(found, (to - 1, to), expired, has_turn=bucket_with_turn(to, 4) == 0))


def test_the_newest_entry_of_a_key_is_found(store: KeyedStore) -> None:
    add(store, entries((5, 5, 100, 1), (6, 6, 100, 1)), 1)
    add(store, entries((5, 5, 200, 2)), 2)
    found = store.find(words(5, 6, 7), words(5, 6, 7))
    assert found.is_found.tolist() == [True, True, False]
    assert found.time.tolist() == [200, 100, 0]
    assert found.sequence.tolist() == [2, 1, 0]
    assert found.ordinal.tolist() == [7, 7, 0]


def test_a_run_that_is_not_listed_does_not_exist(store: KeyedStore, storage: Storage) -> None:
    store.add(entries((5, 5, 100, 1)), (0, 1), NEVER, has_turn=True)
    assert not store.find(words(5), words(5)).is_found[0]
    again = KeyedStore(storage)
    again.open([])
    assert not again.find(words(5), words(5)).is_found[0]


def test_another_process_finds_what_is_listed(store: KeyedStore, storage: Storage) -> None:
    for to in range(1, 12):
        add(store, many(500, to), to)
    again = KeyedStore(storage)
    again.open(store.live)
    for to in range(1, 12):
        assert again.find(many(500, to).hi, many(500, to).lo).is_found.all()


def test_the_number_of_runs_stays_logarithmic(store: KeyedStore) -> None:
    for to in range(1, 200):
        add(store, many(300, to), to)
    assert len(store.live) <= 2 * SMALL_FAN + 2 * FAN
    assert sum(facts.rows for facts in store.live) == 199 * 300
    assert [int(facts.name.split("-")[0]) for facts in store.live] == sorted(int(facts.name.split("-")[0]) for facts in store.live)


def test_what_has_expired_is_not_listed_any_more(store: KeyedStore) -> None:
    for to in range(1, 100):
        add(store, many(300, to, time=to), to, expired=to - 10)
    assert sum(facts.rows for facts in store.live) <= 300 * 40
    recent = many(300, 95)
    assert store.find(recent.hi, recent.lo).is_found.all()


def test_an_expired_entry_hides_an_older_one_of_a_later_time(store: KeyedStore) -> None:
    """With times of a field, the newest accepted record may be over while the one before is not; it must not come back."""
    add(store, entries((5, 5, 100, 1), *((x, 1, 100, 1) for x in range(1000, 21_000))), 1)
    add(store, entries((5, 5, 50, 2)), 2)
    for to in range(3, 10):
        add(store, entries((to, 9, 90, to)), to, expired=60)
    found = store.find(words(5), words(5))
    assert (found.is_found.tolist(), found.time.tolist()) == ([True], [50])


def test_compaction_leaves_one_run_and_every_live_key(store: KeyedStore) -> None:
    for to in range(1, 30):
        add(store, many(1000, to, time=to), to)
    store.open(store.compact(expired=9, made_for=29))
    assert len(store.live) == 1
    assert store.live[0].rows == 20 * 1000
    for to in range(1, 30):
        assert store.find(many(1000, to).hi, many(1000, to).lo).is_found.all() == (to > 9)
    assert store.compact(expired=9, made_for=29) == list(store.live)
    assert store.compact(expired=29, made_for=29) == []


# -- the cover --------------------------------------------------------------------------------------------------------------------

Step = st.tuples(
    st.sampled_from(["add", "add", "add", "fail", "compact", "restart"]), st.integers(0, 1), st.integers(1, 400), st.booleans()
)


@settings(deadline=None, max_examples=60)
@given(st.lists(Step, min_size=1, max_size=40), st.sampled_from([1, 100, 3000]), st.sampled_from([0, 1, 4]), st.sampled_from([5, 100]))
def test_two_processes_find_exactly_the_live_keys(steps: list[Any], generation_rows: int, rows_per_key: int, window: int) -> None:
    """Against a dict: batches by turns of two processes, attempts whose run nobody lists, compactions beside them, and restarts."""
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_filter, "_LEAST_ROWS", generation_rows)
        patch.setattr(bucket_filter, "_ROWS_PER_KEY", rows_per_key)
        patch.setattr("pipelines.key_store.store.SMALL_FAN", 3)
        storage = Storage.local(Path(directory))
        stores, listed = [KeyedStore(storage), KeyedStore(storage)], []
        model: dict[tuple[int, int], int] = {}
        for to, (step, process, count, has_turn) in enumerate(steps, 1):
            store, expired = stores[process], to - window
            store.open(listed)
            # Some keys of an earlier step again, under a later time.
            batch = many(400, 1 + to % 3 if count % 3 else to, time=to).take(np.arange(0, count, 1 + to % 3))
            check_against(store, model, batch, expired)
            if step == "restart":
                stores[process] = KeyedStore(storage)
            elif step == "compact":
                before, listed = listed, store.compact(expired, to)
                for facts in {*before} - {*listed}:
                    storage.delete(facts.name)
            else:
                written = store.add(batch, (to - 1, to), expired, has_turn)
                if step == "add":
                    before, listed = listed, written
                    model.update(dict.fromkeys(zip(batch.hi.tolist(), batch.lo.tolist(), strict=True), to))
                    for facts in {*before} - {*listed}:
                        storage.delete(facts.name)


def check_against(store: KeyedStore, model: dict[tuple[int, int], int], batch: Entries, expired: int) -> None:
    for asked in (batch, batch.take(slice(0, 3)), many(300, 10_000)):
        found = store.find(asked.hi, asked.lo)
        for at, key in enumerate(zip(asked.hi.tolist(), asked.lo.tolist(), strict=True)):
            time = model.get(key, NEVER)
            assert bool(found.is_found[at]) == (time != NEVER) or time <= expired
            assert not found.is_found[at] or int(found.time[at]) == time


def test_older_runs_get_filters_that_go_with_their_runs(store: KeyedStore, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_filter, "_LEAST_ROWS", 2000)
    for to in range(1, 41):
        add(store, many(1000, to, time=to), to, expired=to - 20)
    assert len(store.bucket_filter.generations) <= 6
    others = many(10_000, 99)
    assert len(store.bucket_filter.may_hold(Sought.of(others.hi, others.lo))) < 1000
    again = KeyedStore(storage)
    again.open(store.live)
    covered = []
    for seed in range(50, 80):
        again.find(many(500, seed).hi, many(500, seed).lo)
        covered.append(sum(facts in again.bucket_filter for facts in again.live))
    assert covered[0] < covered[-1] == len(again.live)
    assert covered == sorted(covered)


def test_a_damaged_block_is_noticed_before_a_run_is_covered(storage: Storage) -> None:
    held = many(1000, 1)
    facts = write_run(storage, "run", held)
    path = Path(storage.path) / "run"
    content = bytearray(path.read_bytes())
    content[content.find(held.hi.tobytes()) + 4000] ^= 1
    path.write_bytes(content)
    store, others = KeyedStore(storage), many(1000, 2)
    store.open([facts])
    with pytest.raises(StateDamagedError, match="rows 0 to 65536 are damaged"):
        store.find(others.hi, others.lo)


# -- where runs lie ---------------------------------------------------------------------------------------------------------------


def test_a_filesystem_that_is_not_this_machines(tmp_path: Path) -> None:
    """As an object store: no mapping into memory, no fsync, no rename."""
    elsewhere = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    storage = Storage(elsewhere, "pipeline/dedup/0")
    assert not storage.is_local
    store = KeyedStore(storage)
    for to in range(1, 8):
        add(store, many(400, to), to)
    assert store.find(many(400, 3).hi, many(400, 3).lo).is_found.all()
    unlisted = set(storage.names()) - {facts.name for facts in store.live}
    for name in unlisted:
        storage.delete(name)
    assert storage.names() == sorted(facts.name for facts in store.live)
    with pytest.raises(FileExistsError):
        write_run(storage, store.live[0].name, many(5, 1))


class Elsewhere:
    """A file system that answers every call with this error."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def get_file_info(self, _: object) -> None:
        raise self.error

    open_input_file = get_file_info


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("When listing: AWS Error NETWORK_CONNECTION during ListObjectsV2: could not connect"), RetryableError),
        (OSError(28, "No space left on device"), RetryableError),
        (OSError("When listing: AWS Error ACCESS_DENIED during ListObjectsV2: no"), HaltError),
        (PermissionError(13, "Permission denied"), HaltError),
    ],
)
def test_an_absent_file_system_is_waited_for_a_refusal_halts(error: OSError, expected: type[Exception]) -> None:
    storage = Storage(Elsewhere(error), "keys/0")
    batch = pa.record_batch({"a": [1]})
    for call in (
        storage.names,
        storage.delete_all,
        lambda: storage.read("run"),
        lambda: storage.size("run"),
        lambda: storage.write("run", batch, {}),
    ):
        with pytest.raises(expected, match="reaching the key store at keys/0: "):
            call()


class Unordered:
    """A file system that lists in an order of its own."""

    def get_file_info(self, _: fs.FileSelector) -> list[fs.FileInfo]:
        return [fs.FileInfo(f"keys/0/{name}", fs.FileType.File) for name in ("b", "c", "a")]


def test_files_that_are_listed_without_order_are_sorted() -> None:
    assert Storage(Unordered(), "keys/0").names() == ["a", "b", "c"]


def test_a_missing_file_of_a_remote_store_is_damage() -> None:
    with pytest.raises(StateDamagedError, match="opening state run keys/0/run"):
        Run.open(Storage(Elsewhere(FileNotFoundError("gone")), "keys/0"), RunFacts("run", 1, 1, ""))


def test_a_place_is_a_directory_or_a_uri(tmp_path: Path) -> None:
    assert Storage.at(str(tmp_path)) == Storage.local(tmp_path)
    assert Storage.at(f"file://{tmp_path}").is_local
    assert not Storage.at("s3://bucket/keys?region=eu-west-1&endpoint_override=127.0.0.1:1").is_local
    with pytest.raises(HaltError, match=r"opening the key store at ftp://host/keys: .*; correct state_uri"):
        Storage.at("ftp://host/keys")


# -- merging ----------------------------------------------------------------------------------------------------------------------


def test_new_entries_take_small_runs_in_and_leave_large_ones() -> None:
    assert merged_runs([], 100, True) == 0
    assert merged_runs([100] * (SMALL_FAN - 2), 100, True) == 0
    assert merged_runs([100] * (SMALL_FAN - 1), 100, True) == SMALL_FAN - 1
    assert merged_runs([1_000_000] + [100] * (SMALL_FAN - 1), 100, True) == SMALL_FAN - 1
    assert merged_runs([1_000_000] + [50_000] * (FAN - 2), 50_000, True) == 0
    assert merged_runs([9_000_000] + [800_000] * (FAN - 1) + [50_000] * (FAN - 1), 50_000, True) == 2 * (FAN - 1)
    assert merged_runs([9_000_000] + [800_000] * FAN + [100], 100, True) == FAN + 1


def test_without_the_turn_a_merge_waits_until_it_is_overdue() -> None:
    assert merged_runs([100] * (2 * SMALL_FAN - 2), 100, False) == 0
    assert merged_runs([100] * (2 * SMALL_FAN - 1), 100, False) == 2 * SMALL_FAN - 1
    assert merged_runs([800_000] * (2 * FAN) + [100], 100, False) == 2 * FAN + 1


def test_every_bucket_has_its_turn_whatever_the_step() -> None:
    for step in (1, 8, 16, 1000):
        assert {bucket_with_turn(to, 8) for to in range(0, 200 * step, step)} == set(range(8))


def test_another_attempts_answer_stands_even_if_deleted_since(store: KeyedStore) -> None:
    (first,) = store.add(many(100, 1), (0, 5), NEVER, True)
    assert store.add(many(100, 1), (0, 5), NEVER, True) == [first]
    store.storage.delete(first.name)
    (second,) = store.add(many(100, 1), (0, 5), NEVER, True)
    assert second.name != first.name
    assert store.storage.size(second.name)
    store.open([second])
    assert store.find(many(100, 1).hi, many(100, 1).lo).is_found.all()


Keys = st.integers(0, 5)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.dictionaries(st.tuples(Keys, Keys), st.integers(0, 9), min_size=1), min_size=1, max_size=6), st.integers(-1, 9))
def test_a_merge_keeps_the_newest_of_each_key_that_is_not_over(parts: list[dict[tuple[int, int], int]], expired: int) -> None:
    model: dict[tuple[int, int], tuple[int, int]] = {}
    for number, part in enumerate(parts):
        model.update({key: (time, number) for key, time in part.items()})
    merged = merge([entries(*((hi, lo, time, number) for (hi, lo), time in part.items())) for number, part in enumerate(parts)], expired)
    found = {(int(h), int(lo)): (int(t), int(s)) for h, lo, t, s in zip(merged.hi, merged.lo, merged.time, merged.sequence, strict=True)}
    assert found == {key: (time, number) for key, (time, number) in model.items() if time > expired}
    assert list(found) == sorted(found)
