"""Byte code of test files: each worker of xdist would make that of all files, at the same time as the others.

In: the files of a session. Out: pytest's own cache files, with rewritten asserts (15 s of CPU for all). It has no call for this, so its
private functions are used; `constraints.txt` pins it.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir, try_makedirs


def share_of_worker(files: Iterable[Path]) -> list[Path]:
    """The files that this worker compiles; none without workers."""
    worker, count = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    return sorted(files)[int(worker.removeprefix("gw")) :: int(count)] if worker and count else []


def files_of(arguments: Sequence[str]) -> set[Path]:
    """The test files that a command line names, by themselves or by their directory."""
    named = [Path(argument.partition("::")[0]).absolute() for argument in arguments]
    return {file for path in named for file in (path.rglob("test_*.py") if path.is_dir() else [path])}


def compile_files(config: pytest.Config, files: Iterable[Path]) -> None:
    """Compile the files that are not compiled yet; a fault of syntax is left to their collection."""
    for path in files:
        cached = get_cache_dir(path) / f"{path.stem}{PYC_TAIL}"
        if _read_pyc(path, cached) is None and try_makedirs(cached.parent):
            with suppress(SyntaxError):
                digest, code = _rewrite_test(path, config)
                _write_pyc(config.stash[assertstate_key], code, digest, cached)
