"""How a planner's process ends: quietly when the JVM closes the connection, loudly with any other error."""

import subprocess
import sys

import pytest

_PLANNER = """
from pipelines.engine.ranges import RANGE_SCHEMA, SourceRanges, StreamRanges
reader = {source}({{"start": "0:0"}}).streamReader(RANGE_SCHEMA)
try:
    raise {error}
finally:
    reader.stop()
"""


def end_with(source: str, error: str) -> "subprocess.CompletedProcess[str]":
    """As PySpark's loop ends, which calls `stop` on the way."""
    return subprocess.run([sys.executable, "-c", _PLANNER.format(source=source, error=error)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("source", ["SourceRanges", "StreamRanges"])
@pytest.mark.parametrize("error", ["EOFError", "ConnectionResetError(104, 'reset')", "BrokenPipeError(32, 'pipe')"])
def test_a_connection_that_the_jvm_has_closed_is_an_orderly_end(source: str, error: str) -> None:
    ended = end_with(source, error)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_any_other_error_is_told() -> None:
    ended = end_with("SourceRanges", "ValueError('words')")
    assert ended.returncode == 1
    assert "ValueError: words" in ended.stderr
