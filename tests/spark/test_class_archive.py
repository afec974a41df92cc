"""The class archive: a real JVM maps it, and one that cannot starts without it and says nothing on standard output."""

import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from pipelines.engine.class_archive import make_archive
from pipelines.errors import HaltError
from pipelines.spark_classes import archive_path, java_option


def _spark_version(options: str) -> "subprocess.CompletedProcess[str]":
    """By Spark's own script, which makes the class path that PySpark's JVM has, too."""
    script = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(script), "--driver-java-options", options, "--version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_archive_of_this_environment_is_mapped_by_its_jvm() -> None:
    path = archive_path()
    assert path is not None
    if not path.exists():
        make_archive(path)
    # -Xshare:on: a JVM that cannot map it ends with an error.
    ended = _spark_version(f"-Xshare:on -XX:SharedArchiveFile={path}")
    assert ended.returncode == 0, ended.stderr


def test_a_damaged_archive_is_not_used_and_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert java_option() == ""
    path = archive_path()
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no archive" * 1000)
    ended = _spark_version(java_option())
    assert (ended.returncode, ended.stdout) == (0, "")


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "modules").write_bytes(b"")
    (tmp_path / "bin" / "java").write_bytes(b"")
    (tmp_path / "bin" / "java").chmod(0o755)
    ours = archive_path()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert archive_path() not in (None, ours)
    shutil.rmtree(tmp_path / "lib")
    assert archive_path() is None
    assert java_option() == ""


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(HaltError, match="cannot write to"):
        make_archive(tmp_path / "file" / "tallyflow" / "x.jsa")
