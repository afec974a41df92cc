"""Fetching of the broker's jars, with a stand-in for `java -jar ivy.jar` that puts prepared files where Ivy would."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from resources.local.errors import LocalServerError
from resources.local.java import Java
from resources.local.kafka.jars import cache_directory, ensure_jars

IVY = """\
#!/bin/sh
echo run >> {runs}
while [ $# -gt 0 ]; do [ "$1" = -retrieve ] && pattern=$2; shift; done
printf '\\tfound org#one;1 in public\\n\\tfound org#two;1 in public\\n'
printf '\\t[SUCCESSFUL ] org#one;1!one.jar (1ms)\\n\\t[SUCCESSFUL ] org#two;1!two.jar (1ms)\\n'
mkdir -p "$(dirname "$pattern")" && cp {offered}/* "$(dirname "$pattern")"
exit {code}
"""
JARS = {"one-1.jar": b"one", "two-1.jar": b"two"}
PINS = {name: hashlib.sha256(content).hexdigest() for name, content in JARS.items()}


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of what the repository offers; the pins are those of its first content."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "offered"
    directory.mkdir()
    for name, content in JARS.items():
        (directory / name).write_bytes(content)
    return directory


def stand_in(offered: Path, code: int = 0) -> Java:
    java = offered.parent / "java"
    java.write_text(IVY.format(runs=offered.parent / "runs", offered=offered, code=code))
    java.chmod(0o755)
    return Java(java, 17)


def count_runs(offered: Path) -> int:
    return (offered.parent / "runs").read_text().count("run")


def fetch(java: Java, reported: list[str] | None = None) -> Path:
    return ensure_jars(java, dict(os.environ), (reported if reported is not None else []).append, PINS)


def test_jars_are_fetched_once_with_progress(offered: Path) -> None:
    reported: list[str] = []
    assert fetch(stand_in(offered), reported) == cache_directory()
    assert fetch(stand_in(offered)) == cache_directory()
    assert sorted(path.name for path in cache_directory().iterdir()) == ["one-1.jar", "two-1.jar"]
    assert count_runs(offered) == 1
    assert reported[-1] == "fetching Kafka's jars: 2 of 2"


def test_damaged_jar_is_fetched_again(offered: Path) -> None:
    fetch(stand_in(offered))
    (cache_directory() / "one-1.jar").write_bytes(b"on")
    fetch(stand_in(offered))
    assert (cache_directory() / "one-1.jar").read_bytes() == b"one"
    assert count_runs(offered) == 2


def test_jar_that_differs_from_its_pin_is_refused(offered: Path) -> None:
    (offered / "two-1.jar").write_bytes(b"evil")
    with pytest.raises(LocalServerError, match=rf"two-1.jar: sha256 is {hashlib.sha256(b'evil').hexdigest()}, pinned is"):
        fetch(stand_in(offered))
    assert [path.name for path in cache_directory().parent.iterdir() if path.is_dir()] == []


def test_failed_fetch_shows_the_last_lines_and_the_way_by_hand(offered: Path) -> None:
    with pytest.raises(LocalServerError, match=r"(?s)exit code 3.*by hand.*SUCCESSFUL"):
        fetch(stand_in(offered, code=3))
    assert not cache_directory().exists()


def test_what_a_killed_fetch_left_is_removed(offered: Path) -> None:
    left_over = cache_directory().parent / "kafka-4.1.0.partial-xyz"
    left_over.mkdir(parents=True)
    fetch(stand_in(offered))
    assert not left_over.exists()


def test_two_fetches_at_once_run_ivy_once(offered: Path) -> None:
    java = stand_in(offered)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(java))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache_directory()] * 2
    assert count_runs(offered) == 1
