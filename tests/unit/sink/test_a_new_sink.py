"""A new sink is three files and nothing else: shown with one in memory, in a tree of its own that has them and what is here."""

from pathlib import Path

from support.new_files import run_with

FILES = {
    "connector.py": "pipelines/connectors/sinks/memory.py",
    "model.py": "pipelines/config/sinks/memory.py",
    "check.py": "test_memory.py",
}


def test_a_sink_in_memory_is_three_files(tmp_path: Path) -> None:
    assert "3 passed" in run_with("memory_sink", FILES, tmp_path)
