"""What a process leaves to Python's cyclic collector."""

import subprocess
import sys

_PROGRAM = """
import gc
import duckdb, pyarrow
from pipelines.collection import COLLECT_AFTER_OBJECTS, collect_rarely

collect_rarely()
before = gc.get_stats()[0]["collections"]
polled = [[number] for number in range(COLLECT_AFTER_OBJECTS - 1_000)]
assert gc.get_stats()[0]["collections"] == before, "what a poll makes was looked at"
assert gc.get_freeze_count() > 10_000, "what was imported is looked at again"
first = []
first.append(first)
polled += [[number] for number in range(2_000)]
assert gc.get_stats()[0]["collections"] == before + 1, "cycles are never found"
"""


def test_the_collector_leaves_imports_out_and_lets_polls_pass() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True)


_IMPORTING = """
import gc
from pipelines.collection import no_collection

before = gc.get_stats()[0]["collections"]
with no_collection():
    made = [[number] for number in range(5_000)]
assert gc.get_stats()[0]["collections"] == before, "what an import makes was looked at"
assert gc.isenabled() and gc.get_freeze_count() > 5_000, "what was imported is looked at later"
"""


def test_the_collector_rests_while_a_process_imports() -> None:
    subprocess.run([sys.executable, "-c", _IMPORTING], check=True)
