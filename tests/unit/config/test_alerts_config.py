"""The `alerts` of the pipeline file: defaults, what is refused, and that they decide nothing about records."""

from datetime import timedelta

import pytest

from pipelines.config import Alerts, PipelineConfig, parse, run_digest, version_of
from pipelines.config.docs import EXAMPLE
from pipelines.errors import ConfigurationError


def of(alerts: str = "") -> PipelineConfig:
    return parse(EXAMPLE + alerts, name="alerts", environment={})


def limits(alerts: Alerts) -> tuple[object, ...]:
    lag, dead_letters = alerts.lag, alerts.dead_letters
    return lag.offsets, lag.lasting, dead_letters.count, dead_letters.age, alerts.stuck_after, alerts.max_restarts, alerts.repeat_after


def test_the_defaults_call_people_as_the_documentation_says() -> None:
    minutes, hour = timedelta(minutes=1), timedelta(hours=1)
    assert limits(of().alerts) == (100_000, 2 * minutes, 100, hour, 10 * minutes, 5, hour)


def test_every_limit_is_read_with_its_unit() -> None:
    text = "alerts: {lag: {offsets: 5, for: 0s}, dead_letters: {count: 1, age: 1d}, stuck_after: 90s, max_restarts: 0, repeat_after: 30m}"
    seconds, minutes, day = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
    assert limits(of(text).alerts) == (5, 0 * seconds, 1, day, 90 * seconds, 0, 30 * minutes)


@pytest.mark.parametrize(
    ("alerts", "fault"),
    [
        ("{lag: {offsets: 0}}", "alerts.lag.offsets: must be more than 0"),
        ("{lag: {offsets: many}}", "alerts.lag.offsets: must be a whole number"),
        ("{lag: {for: 120}}", "alerts.lag.for: must be a duration with its unit, such as 60s or 1h30m"),
        ("{lag: {lasts: 2m}}", "alerts.lag.lasts: unknown field"),
        ("{dead_letters: {age: 0s}}", "alerts.dead_letters.age: must be longer than zero"),
        ("{dead_letter: {}}", "alerts.dead_letter: unknown field; did you mean 'dead_letters'?"),
        ("{stuck_after: 30s}", "alerts.stuck_after: must be at least 1m"),
        ("{max_restarts: -1}", "alerts.max_restarts: must be at least 0"),
        ("{max_restarts: true}", "alerts.max_restarts: must be a whole number"),
        ("{repeat_after: 0s}", "alerts.repeat_after: must be longer than zero"),
    ],
)
def test_a_faulty_limit_is_refused_in_plain_words(alerts: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        of(f"alerts: {alerts}")
    assert any(str(one).startswith(fault) for one in raised.value.faults), raised.value


def test_limits_do_not_change_the_version_of_the_pipeline() -> None:
    assert version_of(of("alerts: {max_restarts: 0, lag: {offsets: 5}}")) == version_of(of())


def test_only_checks_alerts_and_comments_leave_a_runner_as_is() -> None:
    before = run_digest(EXAMPLE)
    assert run_digest(f"# why\n{EXAMPLE}alerts: {{max_restarts: 0}}\nchecks: {{gaps: {{enabled: false}}}}\n") == before
    assert run_digest(f"{EXAMPLE}nats: {{url: 'nats://elsewhere:4222'}}\n") != before
    assert run_digest(EXAMPLE.replace("${CLICKHOUSE_PASSWORD:-}", "${ANOTHER:-}")) != before
