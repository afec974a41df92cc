"""The `checks` of the pipeline file: defaults, what is refused, and that they decide nothing about records."""

from datetime import timedelta
from typing import Any

import pytest

from pipelines.config import PipelineConfig, parse, version_of
from pipelines.config.docs import EXAMPLE
from pipelines.errors import ConfigurationError


def of(checks: str = "") -> PipelineConfig:
    return parse(EXAMPLE + checks, name="checks", environment={})


def test_all_checks_are_on_and_only_errors_block() -> None:
    found = of().checks
    named: dict[str, Any] = {name: getattr(found, name) for name in type(found).model_fields}
    assert all(check.enabled for check in named.values())
    assert {name for name, check in named.items() if check.holds_back} == {
        "conservation",
        "duplicates",
        "gaps",
        "verification",
        "schema_drift",
        "views",
    }


def test_thresholds_are_read_with_their_units() -> None:
    found = of("checks: {freshness: {warn_after: 90s, fail_after: 1h, severity: warn}, dead_letters: {max_percent: 0.5, over: 2h}}").checks
    assert (found.freshness.warn_after, found.freshness.fail_after) == (timedelta(seconds=90), timedelta(hours=1))
    assert (found.dead_letters.max_percent, found.dead_letters.over) == (0.5, timedelta(hours=2))


@pytest.mark.parametrize(
    ("checks", "fault"),
    [
        ("{freshness: {warn_after: 10m, fail_after: 10m}}", "checks.freshness.fail_after: must be longer than warn_after"),
        ("{freshness: {warn_after: 30s}}", "checks.freshness.warn_after: must be at least 1m"),
        ("{dead_letters: {max_percent: 101}}", "checks.dead_letters.max_percent: must be at most 100"),
        ("{dead_letters: {max_percent: many}}", "checks.dead_letters.max_percent: must be a number"),
        ("{gaps: {severity: critical}}", "checks.gaps.severity: must be one of warn, error"),
        ("{gap: {}}", "checks.gap: unknown field; did you mean 'gaps'?"),
        ("{views: {totals: [{table: 'a b', count_column: n}]}}", "checks.views.totals[0].table: must be letters, digits and underscores"),
        (
            "{views: {totals: [{table: a, count_column: n}, {table: a, count_column: m}]}}",
            "checks.views.totals[1].table: the table 'a' is named twice",
        ),
    ],
)
def test_a_faulty_check_is_refused_in_plain_words(checks: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        of(f"checks: {checks}")
    assert any(str(one).startswith(fault) for one in raised.value.faults), raised.value


def test_checks_do_not_change_the_version_of_the_pipeline() -> None:
    assert version_of(of("checks: {gaps: {enabled: false}}")) == version_of(of())
