from pathlib import Path

import pytest

from resources.local.errors import LocalServerError
from resources.local.java import find_java, parse_java_version

DEBIAN_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)\n'
ORACLE_8 = 'java version "1.8.0_412"\nJava(TM) SE Runtime Environment (build 1.8.0_412-b08)\n'


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (DEBIAN_17, 17),
        (ORACLE_8, 8),
        ('openjdk version "21" 2023-09-19 LTS\n', 21),
        ('openjdk version "25-ea" 2025-09-16\n', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx="1"\nopenjdk version "11.0.23" 2024-04-16\n', 11),
        ("The operation couldn’t be completed. Unable to locate a Java Runtime.\n", None),
        ("", None),
    ],
)
def test_feature_release_is_read_from_java_version_output(text: str, version: int | None) -> None:
    assert parse_java_version(text) == version


def put_java(directory: Path, output: str) -> Path:
    directory.mkdir(parents=True)
    java = directory / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{output}END\n")
    java.chmod(0o755)
    return java


def test_java_home_goes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = put_java(tmp_path / "home" / "bin", DEBIAN_17)
    put_java(tmp_path / "path", ORACLE_8)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    found = find_java()
    assert (found.executable, found.version) == (java, 17)


def test_java_on_path_is_found_without_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = put_java(tmp_path / "path", DEBIAN_17)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    assert find_java().executable == java


@pytest.mark.parametrize("output", [ORACLE_8, "no version here\n", None])
def test_useless_java_is_one_line_that_says_what_to_install(output: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if output is not None:
        put_java(tmp_path / "home" / "bin", output)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(LocalServerError, match="Java 17 or later") as raised:
        find_java()
    assert "\n" not in str(raised.value)
    assert "JAVA_HOME" in str(raised.value)
