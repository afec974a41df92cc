"""Errors of our own host, which are no damage: what is said of them, and what limits of a process do."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from pipelines.config import load
from pipelines.demo.examples import example_file
from pipelines.errors import HaltError, RetryableError, StateDamagedError
from pipelines.host import RESERVED_FILES, is_of_host, raise_file_limit
from pipelines.key_store.segments import Entries, Run, RunFacts, write_run
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import RUNS_PER_BUCKET, KeyedStore
from pipelines.runner.options import files_needed

MANY_RUNS = """
import resource, sys
from pathlib import Path
from pipelines.host import raise_file_limit
from pipelines.key_store.storage import Storage
from pipelines.key_store.segments import Run, RunFacts

soft, hard, needed, directory, name, rows, newest, digest = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard)))
if int(needed):
    raise_file_limit(int(needed))
facts = RunFacts(name, int(rows), int(newest), digest)
held = [Run.open(Storage.local(Path(directory)), facts) for _ in range(18 * 64)]
print(len(held))
"""


def entries(count: int) -> Entries:
    hashes = np.arange(1, count + 1, dtype=np.uint64)
    return Entries(hashes, hashes, hashes.astype(np.int64), hashes, hashes.astype(np.uint32))


def opened(storage: Storage, facts: RunFacts, soft: int, hard: int, needed: int) -> subprocess.CompletedProcess[str]:
    """18 runs of each of 64 buckets in a process with these limits of files."""
    limits = [str(number) for number in (soft, hard, needed)]
    run = [storage.path, *(str(part) for part in facts)]
    return subprocess.run([sys.executable, "-c", MANY_RUNS, *limits, *run], capture_output=True, text=True, check=False)


def test_the_soft_limit_of_files_does_not_bind(tmp_path: Path) -> None:
    storage = Storage.local(tmp_path)
    facts = write_run(storage, "run", entries(10))
    assert opened(storage, facts, soft=1024, hard=4096, needed=2000).stdout == "1152\n"
    without = opened(storage, facts, soft=1024, hard=4096, needed=0).stderr
    assert "RetryableError: reaching the key store at" in without
    assert "this process may open no more files: raise its limit (LimitNOFILE= of the service" in without
    assert "rebuild" not in without


def test_a_hard_limit_that_is_too_low_is_refused_first(tmp_path: Path) -> None:
    storage = Storage.local(tmp_path)
    facts = write_run(storage, "run", entries(10))
    found = opened(storage, facts, soft=256, hard=1024, needed=1792)
    assert "HaltError: starting on this host: a process may open 1024 files here, this pipeline needs 1792" in found.stderr
    assert found.stdout == ""


@pytest.mark.parametrize(("example", "stores"), [("orders", 1), ("customers", 3)], ids=["dedup", "join beside a dedup"])
def test_the_segments_of_every_store_have_a_file(example: str, stores: int) -> None:
    config = load(example_file(example), {"KAFKA_BOOTSTRAP": "127.0.0.1:1", "CLICKHOUSE_HOST": "127.0.0.1", "CLICKHOUSE_PORT": "1"})
    assert files_needed(config) == RESERVED_FILES + stores * config.buckets * RUNS_PER_BUCKET


def test_a_limit_is_never_lowered() -> None:
    raised, soft = raise_file_limit(10), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert raised >= 256
    assert raise_file_limit(10) == raised
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft


@pytest.mark.parametrize(
    ("number", "expected", "answer"),
    [
        (errno.EMFILE, RetryableError, "LimitNOFILE"),
        (errno.ENFILE, RetryableError, "fs.file-max"),
        (errno.ENOMEM, RetryableError, "no memory left"),
        (errno.EIO, RetryableError, "kernel log"),
        (errno.ENOSPC, RetryableError, "make room"),
        (errno.EACCES, HaltError, "the rights to it"),
        (errno.EROFS, HaltError, "read-only"),
    ],
)
def test_an_error_of_this_host_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception], answer: str
) -> None:
    storage = Storage.local(tmp_path)
    facts = write_run(storage, "run", entries(10))

    def refused(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(expected, match=answer) as caught:
        KeyedStore(storage).open([facts])
    assert not isinstance(caught.value, StateDamagedError)
    assert "rebuild" not in str(caught.value)


def test_a_run_that_is_missing_or_cut_is_damage(tmp_path: Path) -> None:
    storage = Storage.local(tmp_path)
    facts = write_run(storage, "run", entries(10))
    for content in (b"", b"ARROW1"):
        (tmp_path / "run").write_bytes(content)
        with pytest.raises(StateDamagedError, match="rebuild-state"):
            Run.open(storage, facts)
    (tmp_path / "run").unlink()
    with pytest.raises(StateDamagedError, match="rebuild-state"):
        Run.open(storage, facts)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EACCES, "Permission denied"), True),
        (OSError("Error writing bytes to file. Detail: No space left on device"), True),
        (pa.ArrowMemoryError("malloc of size 64 failed"), True),
        (duckdb.IOException("Could not write file"), True),
        (RetryableError("ClickHouse is away"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), False),
        (OSError(errno.EINVAL, "Invalid argument"), False),
        (OSError("not an Arrow file"), False),
        (ValueError("No space left on device"), False),
        (pa.ArrowInvalid("no such column"), False),
    ],
    ids=str,
)
def test_errors_of_this_host_are_told_from_bugs_of_a_stage(error: Exception, expected: bool) -> None:
    assert is_of_host(error) is expected
