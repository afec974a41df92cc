"""Files that are written as a whole, or not at all, and that only their owner may read."""

import os
from pathlib import Path

import pytest

from pipelines.private import write_whole


def test_a_file_is_replaced_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text("a much longer text that was there before")
    path.chmod(0o644)
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [*tmp_path.iterdir()] == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "facts.json"
    write_whole(path, "old")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="the disk is full"):
        write_whole(path, "new", is_durable=True)
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("old", [path])


def test_a_durable_file_is_synced_with_its_name_around_a_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "facts.json", list[tuple[bool, bool]]()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").resolve() == tmp_path, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_whole(path, "text")
    assert synced == []
    path.unlink()
    write_whole(path, "text", is_durable=True)
    assert synced == [(False, False), (True, True)], "the file first, then the directory that names it"
