"""A new step is four files and nothing else: shown with one that does nothing, in a tree of its own that has them and what is here."""

from pathlib import Path

import pytest
from support.new_files import run_with

from pipelines.process.steps import kinds
from pipelines.protocol import outcomes

FILES = {
    "step.py": "pipelines/process/steps/nothing.py",
    "model.py": "pipelines/config/transforms/nothing.py",
    "statement.sql": "sql/reference/steps/nothing.sql",
    "check.py": "test_nothing.py",
}


def test_a_step_that_does_nothing_is_four_files(tmp_path: Path) -> None:
    assert "8 passed" in run_with("nothing", FILES, tmp_path)


def test_this_tree_has_no_such_step() -> None:
    assert set(kinds()) == {"parse", "dedup", "filter", "compute", "join", "lookup", "pyspark", "python", "mapping"}


def test_an_unregistered_outcome_is_an_error_before_any_record() -> None:
    with pytest.raises(TypeError, match="step 'sieve': its outcome 'sieved' is not registered"):
        outcomes.check_registered("sieve", (outcomes.Outcome("dropped.sieve", "sieved"),))


def test_what_an_unknown_step_dropped_is_counted_all_the_same() -> None:
    """As by a release before this one, or by a process that has no use for steps."""
    totals = {"rows_in": 9, "rows_out": 4, "duplicates": 2, "dropped.sieve": 3, "rejected.parse.tombstone": 0, "frames": 7}
    assert outcomes.counted("process", totals) == {"written to out": 4, "duplicates dropped": 2, "dead letters": 0, "dropped by sieve": 3}
    assert outcomes.residue("process", 9, totals) == 0
