"""The table, or the right to it, changes under a running pipeline: a halt that says what to do, no dead letter, and nothing is lost."""

from collections.abc import Callable, Iterator

import pytest
from support.network_case import halts, running, stop
from support.pipeline_case import PipelineCase

from pipelines.errors import ConfigurationError
from pipelines.runner.runner import Runner
from resources.local.clickhouse.service import keep_users
from resources.local.clickhouse.users import read_users

pytestmark = [pytest.mark.integration, pytest.mark.crash]


def started(case: PipelineCase) -> Runner:
    """A runner that has written 1,000 rows."""
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    case.in_background(runner)
    case.send_events(1000)
    case.wait_count(1000)
    return runner


def test_a_column_that_is_added_under_load_gets_its_default(case: PipelineCase) -> None:
    case.create_topic()
    with running(case), case.load(100):
        case.wait_count(200)
        case.client().command(f"ALTER TABLE {case.table} ADD COLUMN more Int64 DEFAULT id * 2")
        case.wait_count(case.count() + 500)
    assert case.client().query(f"SELECT countIf(more != id * 2) FROM {case.table}").result_rows == [(0,)]


@pytest.mark.parametrize(
    ("change", "fault", "remedy"),
    [
        ("DROP COLUMN amount", "the table has no column 'amount'", "ADD COLUMN amount Nullable(Float64) AFTER name"),
        ("RENAME COLUMN name TO title", "the table has no column 'name'", "RENAME COLUMN title TO name"),
        ("MODIFY COLUMN id Int16", "column 'id' is Int16, the ", "MODIFY COLUMN id Int64"),
    ],
    ids=["dropped", "renamed", "narrowed"],
)
def test_a_changed_column_halts_before_the_insert_until_mended(case: PipelineCase, change: str, fault: str, remedy: str) -> None:
    runner = started(case)
    case.client().command(f"ALTER TABLE {case.table} {change}")
    # What Int16 would cut.
    case.sent = case.good = 40_000
    case.send_events(1000)
    message = halts(runner, "sink")
    assert fault in message
    assert "Put the table and the file" in message
    stop(case, runner)
    with pytest.raises(ConfigurationError, match=fault):
        case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} {remedy}")
    case.warm_run()
    assert (case.count(), case.dead_letters()) == (2000, [])
    if "DROP" not in change:
        case.check()


@pytest.fixture
def user(case: PipelineCase) -> Iterator[Callable[[str], None]]:
    """A user for the pipeline alone, beside that of the oracle; gives a function that changes it."""
    directory = case.stack.home / "servers" / "clickhouse"
    before = [f"{one.name}:{one.password}" for one in read_users(directory / "users.json").values()]

    def change(text: str) -> None:
        keep_users(directory, [*before, text])

    change("pipeline:canary-7d1f")
    case.write_file(lambda document: document["sink"]["connection_params"].update(username="pipeline", password="canary-7d1f"))
    yield change
    keep_users(directory, before)


@pytest.mark.parametrize(("changed", "code"), [("pipeline:canary-7d1f:select", 497), ("pipeline:other", 516)], ids=["right", "password"])
def test_a_revoked_right_halts_under_load_until_granted_again(
    case: PipelineCase, user: Callable[[str], None], changed: str, code: int
) -> None:
    runner = started(case)
    user(changed)
    case.send_events(1000)
    message = halts(runner, "sink")
    assert f"ClickHouse error {code}" in message
    assert "canary-7d1f" not in message
    stop(case, runner)
    user("pipeline:canary-7d1f")
    case.warm_run()
    assert (case.count(), case.dead_letters()) == (2000, [])
    case.check()
