"""A runner with a filter and computed fields, killed with SIGKILL at failpoints: every record ends in one way, once."""

from collections import Counter

import pytest
from support.computed_case import (
    COMPUTE,
    DEDUP,
    FILTER,
    accounts,
    assert_ends_behind_dedup,
    assert_proven,
    events,
    outcome,
    with_transforms,
)
from support.pipeline_case import PipelineCase

from pipelines.protocol.failpoints import VARIABLE

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    "points", [("process.after-publish:1", "leg.before-commit:2"), ("process.between-frames:1", "sink.after-insert:1")]
)
def test_counts_of_dropped_records_survive_kills(case: PipelineCase, points: tuple[str, ...]) -> None:
    case.write_file(with_transforms(FILTER, COMPUTE))
    case.create_topic()
    for number, point in enumerate(points):
        case.send(events(600, first=600 * number))
        killed = case.run_plain(**{VARIABLE: point})
        assert killed.returncode == -9, killed.stderr
    case.warm_run()
    fate, of_process = accounts(case)
    expected = Counter(outcome(value) for value in case.records().values())
    assert fate == expected
    assert (of_process["dropped by filter"], of_process["written to out"]) == (expected["dropped"], expected["row"])
    assert_proven(case, rows=expected["row"], dropped_by_filter=expected["dropped"])


@pytest.mark.parametrize(
    "points", [("process.before-state:1", "process.after-state:2"), ("process.after-publish:1", "leg.before-commit:2")]
)
def test_what_is_dropped_behind_dedup_survives_kills(case: PipelineCase, points: tuple[str, ...]) -> None:
    """Between the key store and the streams, an attempt may have remembered a record whose position is not written yet."""
    case.write_file(with_transforms(DEDUP, FILTER, COMPUTE, order="file"))
    case.create_topic()
    for number, point in enumerate(points):
        case.send(events(600, first=200 * number))
        killed = case.run_plain(**{VARIABLE: point})
        assert killed.returncode == -9, killed.stderr
    case.warm_run()
    assert min(assert_ends_behind_dedup(case).values()) > 30
