"""What the JVM of a function host writes to its standard error."""

import subprocess
import time

import pytest

from pipelines.functions.spark_child import passing_on_errors

SAYS = """
echo "before" >&2
echo "WARNING: Using incubator modules: jdk.incubator.vector" >&2
echo "WARNING: another" >&2
"""


def test_all_passes_on_but_the_warning_of_every_start(capfd: pytest.CaptureFixture[str]) -> None:
    with passing_on_errors():
        subprocess.run(["sh", "-c", SAYS], check=True)
    said, deadline = "", time.monotonic() + 30
    while "another" not in said and time.monotonic() < deadline:
        said += capfd.readouterr().err
    assert said == "before\nWARNING: another\n"


def test_our_own_errors_go_where_they_went_before(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="no Java"), passing_on_errors():
        raise OSError("no Java")
    subprocess.run(["sh", "-c", "echo ours >&2"], check=True)
    assert capfd.readouterr().err == "ours\n"
