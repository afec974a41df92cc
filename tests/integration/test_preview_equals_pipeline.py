"""The preview of records is what the pipeline makes of them: rows, dead letters and counts, for random programs and for our recipes.

`TALLYFLOW_PREVIEW_PROGRAMS` (default 6) says how many programs are drawn, from a seed that each run draws and prints;
`TALLYFLOW_PREVIEW_SEED` plays one again.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.pipeline_case import PipelineCase
from support.preview_account import assert_equal, play
from support.random_programs import random_recipe
from support.recipes import RECIPES

from pipelines.process.steps.compute import Compute
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.filter import Filter
from pipelines.process.steps.parse import Parse
from pipelines.protocol.records import StageOutput
from resources.local.stack import LocalStack

pytestmark = pytest.mark.integration

CHANGED_BY_MUTANTS = "filter, compute and dedup"
"""The recipe that is played for mutants, and as it is before them."""
PROGRAMS = int(os.environ.get("TALLYFLOW_PREVIEW_PROGRAMS", "6"))


def test_random_programs_end_as_their_preview_says(running_stack: LocalStack, tmp_path: Path) -> None:
    given = os.environ.get("TALLYFLOW_PREVIEW_SEED")
    first = int(given) if given else random.SystemRandom().randrange(10**9)
    ends: Counter[str] = Counter()
    for seed in range(first, first + (1 if given else PROGRAMS)):
        print(f"program of TALLYFLOW_PREVIEW_SEED={seed}")
        directory = tmp_path / str(seed)
        directory.mkdir()
        case = PipelineCase(running_stack, directory)
        play(case, random_recipe(seed, case.document()))
        ends.update(assert_equal(case))
        case.end()
    print(ends)
    assert given or ends.keys() >= {"row", "rejected"}


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - {CHANGED_BY_MUTANTS}))
def test_a_recipe_ends_as_its_preview_says(case: PipelineCase, name: str) -> None:
    play(case, RECIPES[name])
    assert assert_equal(case)["row"] > 0


def passes_all(step: Any, context: Any, rows: pa.Table) -> StageOutput:
    return StageOutput(rows, rows.slice(0, 0))


def leaves_out_one(apply: Callable[..., StageOutput]) -> Callable[..., StageOutput]:
    def mutant(*arguments: Any) -> StageOutput:
        found = apply(*arguments)
        return StageOutput(found.accepted.slice(1), found.rejected, found.dropped)

    return mutant


def doubles(apply: Callable[..., StageOutput]) -> Callable[..., StageOutput]:
    """A computed value that only the content of a row shows."""

    def mutant(*arguments: Any) -> StageOutput:
        found = apply(*arguments)
        values = found.accepted.column("total").to_pylist()
        changed = pa.array([value and value * 2 for value in values], pa.float64())
        index = found.accepted.column_names.index("total")
        return StageOutput(found.accepted.set_column(index, "total", changed), found.rejected, found.dropped)

    return mutant


MUTANTS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "a record that parse loses": (Parse, "apply", leaves_out_one(Parse.apply)),
    "a filter that passes all": (Filter, "apply", passes_all),
    "another value of a column": (Compute, "apply", doubles(Compute.apply)),
    "a window of a microsecond": (Dedup, "of_file", lambda config, fields, units: Dedup(config.key, 1)),
}


def test_a_mutant_of_a_step_is_found_by_the_comparison(case: PipelineCase) -> None:
    play(case, RECIPES[CHANGED_BY_MUTANTS])
    assert assert_equal(case)["row"] > 0
    for name, (step, method, mutant) in MUTANTS.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step, method, mutant)
            print(name)
            with pytest.raises(AssertionError):
                assert_equal(case)
