"""The workers share out the compiling of the test files, and what they write is what pytest reads."""

from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, get_cache_dir
from support.compiling import compile_files, files_of, share_of_worker


def test_workers_share_out_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {tmp_path / f"test_{number}.py" for number in range(8)}
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    shares = []
    for worker in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        shares += share_of_worker(files)
    assert sorted(shares) == sorted(files)
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    assert share_of_worker(files) == []


def test_pytest_reads_what_was_compiled(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    sound, broken = tmp_path / "deep" / "test_sound.py", tmp_path / "test_broken.py"
    sound.parent.mkdir()
    sound.write_text("def test_it():\n    assert 1 == 1\n")
    broken.write_text("def test_it(:\n")
    assert files_of([str(tmp_path)]) == files_of([f"{sound}::test_it", str(broken)]) == {sound, broken}
    compile_files(pytestconfig, [broken, sound])
    read = _read_pyc(sound, get_cache_dir(sound) / f"test_sound{PYC_TAIL}")
    assert read is not None
    assert "@pytest_ar" in read.co_names
