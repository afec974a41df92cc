"""What the JVM of a function host writes to its standard error."""

import subprocess
import threading

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
    # Only then is it read: what is written while `capfd` reads is lost.
    for passing in (thread for thread in threading.enumerate() if thread.name == "errors of the JVM"):
        passing.join(30)
    assert capfd.readouterr().err == "before\nWARNING: another\n"


def test_our_own_errors_go_where_they_went_before(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="no Java"), passing_on_errors():
        raise OSError("no Java")
    subprocess.run(["sh", "-c", "echo ours >&2"], check=True)
    assert capfd.readouterr().err == "ours\n"
