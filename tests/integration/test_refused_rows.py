"""Rows that ClickHouse refuses: dead letters with their records, and everything else is in the table, whatever happens on the way."""

from collections import Counter
from itertools import chain

import pytest
from support.pipeline_case import PipelineCase
from support.refused_case import BAD, make_strict, mend, refused

import pipelines.sink.refusal_limits
from pipelines.errors import HaltError
from pipelines.protocol.failpoints import VARIABLE
from pipelines.protocol.tally import tally
from pipelines.testing import SINGLE

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("brief_inserts")]


@pytest.fixture
def strict(case: PipelineCase) -> PipelineCase:
    make_strict(case)
    return case


def sink_totals(case: PipelineCase) -> dict[str, int]:
    log = case.log()
    found = tally(log, case.names, SINGLE).legs[-1].outcomes
    log.close()
    return found


def test_rows_refused_by_a_constraint_are_dead_letters(strict: PipelineCase) -> None:
    strict.send_events(400)
    strict.warm_run()
    assert refused(strict) == BAD
    assert sink_totals(strict) == {"confirmed by ClickHouse": 396, "dead letters": 4}
    strict.check()
    (dead_letter, *_) = strict.dead_letters()
    assert dead_letter["message"].startswith(
        f"ClickHouse error 469 (VIOLATED_CONSTRAINT): Constraint `seven` for table default.{strict.table} is violated at"
    )
    assert "Column values" not in dead_letter["message"], "the message holds no value of the record"
    assert len({one["message"] for one in strict.dead_letters()}) == 1, "nor its place among others"
    strict.send_events(5)
    strict.warm_run()
    assert sink_totals(strict) == {"confirmed by ClickHouse": 401, "dead letters": 4}
    strict.check()


def test_a_table_mended_during_the_search_changes_no_decision(strict: PipelineCase) -> None:
    strict.send_events(400)
    assert strict.run_plain(**{VARIABLE: "sink.after-amend:4"}).returncode == -9
    mend(strict)
    strict.warm_run()
    assert set(refused(strict)) < set(BAD)
    strict.check()


def test_a_row_refused_by_an_expression_is_found_unnumbered(case: PipelineCase) -> None:
    case.create_topic()
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN share Int64 MATERIALIZED intDiv(100, id - 42)")
    case.send_events(100)
    case.warm_run()
    assert refused(case) == [42]
    case.check()


def test_an_insert_into_too_many_partitions_is_cut(case: PipelineCase) -> None:
    case.create_topic()
    case.warm_run()
    client = case.client()
    definition = str(client.query(f"SHOW CREATE TABLE {case.table}").result_rows[0][0])
    client.command(f"DROP TABLE {case.table}")
    client.command(definition.replace("ORDER BY", "PARTITION BY id ORDER BY"))
    case.send_events(330)
    case.warm_run()
    assert (case.count(), case.dead_letters()) == (330, [])
    case.check()


def test_a_views_refusal_halts_and_once_mended_stores_once(case: PipelineCase) -> None:
    case.create_topic()
    case.warm_run()
    client, view, target = case.client(), f"{case.table}_view", f"{case.table}_target"
    window = "SETTINGS non_replicated_deduplication_window = 10000"
    client.command(f"CREATE TABLE {target} (id Int64) ENGINE = MergeTree ORDER BY id {window}")
    client.command(f"CREATE MATERIALIZED VIEW {view} TO {target} AS SELECT id + throwIf(id = 42) AS id FROM {case.table}")
    case.send_events(100)
    with pytest.raises(HaltError, match=r"a materialized view on the table refuses these rows.*Fix the view, or detach it"):
        case.warm_run()
    assert case.dead_letters() == []
    client.command(f"DROP VIEW {view}")
    client.command(f"CREATE MATERIALIZED VIEW {view} TO {target} AS SELECT id FROM {case.table}")
    case.warm_run()
    case.check()
    assert Counter(chain(*client.query(f"SELECT id FROM {target}").result_rows)) == Counter(range(100))


def test_a_table_that_refuses_row_after_row_stops_the_leg(strict: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines.sink.refusal_limits, "MAX_REFUSED_ROWS", 5)
    strict.client().command(f"ALTER TABLE {strict.table} ADD CONSTRAINT none CHECK id < 0")
    # One partition: which row is refused first is the order of its records.
    strict.send_events(60, partitions=1)
    with pytest.raises(HaltError, match="more than 5 of its rows are refused, the last with: ClickHouse error 469"):
        strict.warm_run()
    strict.client().command(f"ALTER TABLE {strict.table} DROP CONSTRAINT none")
    strict.warm_run()
    assert len(refused(strict)) == 6, "five that were decided, and the one that the first constraint refuses"
    strict.check()
