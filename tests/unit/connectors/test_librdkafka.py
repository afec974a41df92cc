"""Whether our own C code reads Kafka depends on what is there, and nothing else does."""

from pathlib import Path

import pytest
from support.native import build_library

from pipelines.connectors.kafka.librdkafka import kafka_library
from pipelines.native_library import KAFKA_READER

MAPS = Path("/proc/self/maps")


def line_of(path: Path | str) -> str:
    return f"7f0000000000-7f0000001000 r-xp 00000000 fe:00 1234                       {path}\n"


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """What a process has mapped, in a file of its own."""
    build_library(KAFKA_READER)
    made = tmp_path / "maps"
    made.write_text(MAPS.read_text())
    return made


@pytest.fixture
def librdkafka() -> str:
    """The path of that of this process."""
    (path,) = {line.split(maxsplit=5)[5] for line in MAPS.read_text().splitlines() if "/librdkafka" in line}
    return path


def test_the_clients_librdkafka_is_found(maps: Path) -> None:
    assert kafka_library(maps) is not None


def test_a_system_without_such_a_list_has_no_library(maps: Path) -> None:
    maps.unlink()
    assert kafka_library(maps) is None


def test_a_client_that_is_one_library_with_its_own_has_none(maps: Path) -> None:
    maps.write_text("".join(line_of(path) for path in ("/lib/libc.so.6", "[heap]", "/lib/cimpl.so")))
    assert kafka_library(maps) is None


def test_of_two_libraries_none_is_taken(maps: Path, librdkafka: str) -> None:
    maps.write_text(line_of(librdkafka) + line_of("/usr/lib/librdkafka.so.1"))
    assert kafka_library(maps) is None


def test_a_library_that_was_replaced_meanwhile_is_not_taken(maps: Path, librdkafka: str) -> None:
    maps.write_text(line_of(f"{librdkafka} (deleted)"))
    assert kafka_library(maps) is None


def test_a_librdkafka_that_lacks_a_function_is_not_taken(maps: Path, tmp_path: Path) -> None:
    old = tmp_path / "librdkafka.so.1"
    # A library that the process has: none is mapped by this test.
    old.symlink_to(KAFKA_READER.path())
    maps.write_text(line_of(old))
    assert kafka_library(maps) is None


def test_what_is_not_built_is_not_used(maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert kafka_library(maps) is None
