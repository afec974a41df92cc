"""A stream that stays full for long: attempt after attempt leaves nothing behind, neither files nor memory, and then all goes on."""

import gc
import os
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from support.leg_case import LEDGER, NAMES, LegCase, event

from pipelines.engine.leg import StoppedError
from pipelines.errors import RetryableError
from pipelines.key_store.storage import Storage

BUCKETS = 4
OUT = NAMES.stream("out")


def kept(case: LegCase) -> tuple[object, ...]:
    """What could grow: files, their bytes, open runs, what filters cover and hold."""
    covers = [
        (number, len(store.bucket_filter.generations), len(store.bucket_filter._oldest)) for number, store in sorted(case.stores.items())
    ]
    sizes = sum(path.stat().st_size for path in case.directory.rglob("*.arrow"))
    return (
        sorted(case.files()),
        sizes,
        sorted(name for name in open_files() if name.startswith(str(case.directory))),
        covers,
        len(case.log.messages(NAMES.stream("runs"))),
    )


def open_files() -> list[str]:
    """What this process has open, among it what connections that other tests left behind open and close at times of their own."""
    gc.collect()
    opened = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            opened.append(str(descriptor.readlink()))
    return opened


def waits(case: LegCase) -> None:
    with pytest.raises(StoppedError):
        case.go_on()


@pytest.mark.parametrize("full", ["out", "ledger"])
def test_retrying_a_full_stream_makes_nothing_grow(tmp_path: Path, full: str) -> None:
    case = LegCase(tmp_path, BUCKETS)
    for start in (0, 1000):
        case.send([event(number) for number in range(start, start + 1000)])
        case.go_on()
    case.send([event(number) for number in range(1500, 4000)])
    case.log.max_bytes = {NAMES.stream(full): 1}
    plan = case.process.chain.plan
    case.process.chain.plan = lambda *args, **body: plan(*args, **body) if full == "out" else _beside_the_limit(case, plan, args, body)
    waits(case)
    waits(case)
    first, opened = kept(case), len(open_files())
    for _ in range(60):
        waits(case)
    assert kept(case) == first
    assert len(open_files()) < opened + 60
    case.log.max_bytes = {}
    case.go_on()
    assert case.files() == case.listed()
    assert sum(rows for listing in case.lists().values() for _, rows, *_ in listing) == 4000


def _beside_the_limit(case: LegCase, plan: object, args: tuple[object, ...], body: dict[str, object]) -> object:
    """The plan still fits, its `done` does not."""
    limits, case.log.max_bytes = case.log.max_bytes, {}
    try:
        return plan(*args, **body)
    finally:
        case.log.max_bytes = limits


def test_runs_of_attempts_by_other_processes_go_with_the_done(tmp_path: Path) -> None:
    case = LegCase(tmp_path, BUCKETS)
    case.send([event(number) for number in range(1000)])
    case.log.max_bytes = {OUT: 1}
    for _ in range(3):
        waits(case)
        # Spark may give each attempt to another worker.
        case.forget_stores()
    case.log.max_bytes = {}
    case.go_on()
    assert case.files() == case.listed()


def test_runs_of_an_attempt_of_an_earlier_start_go_with_the_done(tmp_path: Path) -> None:
    killed = LegCase(tmp_path, BUCKETS)
    killed.send([event(number) for number in range(1000)])
    killed.log.max_bytes = {OUT: 1}
    waits(killed)
    assert killed.files()
    case = LegCase(tmp_path, BUCKETS, killed.log, epoch=2)
    case.process.start_offset()
    case.log.max_bytes = {}
    case.go_on()
    assert case.files() == case.listed()
    assert case.log.last(LEDGER, NAMES.chain("process")) is not None


def test_a_file_that_could_not_be_ended_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = LegCase(tmp_path, 1)
    case.send([event(number) for number in range(100)])
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for _ in range(3):
        waits(case)
        assert case.files() == set()
    with pytest.raises(RetryableError, match="No space left on device; the disk is full"):
        case.process.execute(case.process.chain.state.plan)


def test_a_file_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    storage, batch = Storage.local(tmp_path), pa.record_batch({"a": [1]})
    storage.write("taken", batch, {})
    with pytest.raises(FileExistsError):
        storage.write("taken", batch, {})
    assert storage.names() == ["taken"]
