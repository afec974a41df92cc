"""The verdicts of the checks, from literal facts."""

from datetime import UTC, datetime, timedelta

import pytest

from pipelines.connectors.clickhouse.removal import removes_rows
from pipelines.connectors.sinks import Table
from pipelines.proof.checks import evaluate
from pipelines.proof.checks.evaluate import Behind, Confirmed, Held, Hours, PositionCounts, RepeatedKeys, VerifiedHour, ViewSum
from pipelines.proof.checks.facts import passes_every_row
from pipelines.proof.report import Finding
from pipelines.protocol.tally import LegTally, Tally

FIRST, LATER = datetime(2026, 11, 22, 3, 59, tzinfo=UTC), datetime(2026, 11, 22, 5, 30, tzinfo=UTC)


def account(written: int = 10, rejected: int = 0, lost: int = 0, sunk: int = 10) -> Tally:
    legs = (
        LegTally("ingest", 10, {"written to raw": 10}, 0, False),
        LegTally("process", 10, {"written to out": written - lost, "dead letters": rejected}, 0, False),
        LegTally("sink", sunk, {"confirmed by ClickHouse": sunk}, written - lost - sunk, False),
    )
    dead_letters = LegTally("redrive", rejected, {"still dead letters": rejected}, rejected, False)
    return Tally(legs, dead_letters)


def test_conservation_holds_where_every_event_is_accounted_for() -> None:
    found = evaluate.conservation(account(written=8, rejected=2, sunk=5))
    assert (found.passed, found.facts["residue"], found.facts["waiting before sink"]) == (True, 0, 3)


def test_conservation_names_the_leg_that_lost_an_event() -> None:
    found = evaluate.conservation(account(lost=1, sunk=9))
    assert not found.passed
    assert "process +1" in found.message


def test_conservation_names_a_leg_that_read_what_nobody_wrote() -> None:
    found = evaluate.conservation(account(written=10, sunk=12))
    assert not found.passed
    assert "sink has read 2 rows more" in found.message


def test_a_doubled_position_and_a_repeated_key_are_each_named() -> None:
    positions = PositionCounts(11, 10, 1, ({"topic": "t", "partition": 0, "offset": 4, "rows": 2},))
    keys = RepeatedKeys(({"topic": "t", "partition": 0, "offset": 9},), False)
    found = evaluate.duplicates(positions, keys)
    assert not found.passed
    assert found.message == "1 positions are in the table more than once; 1 rows repeat a key within the window"
    assert [example["offset"] for example in found.examples] == [4, 9]


def test_duplicates_that_cannot_be_told_are_said_to_be_unjudged() -> None:
    found = evaluate.duplicates(None, None, "the table has no position columns")
    assert (found.passed, found.not_evaluated) == (True, "the table has no position columns")


@pytest.mark.parametrize(("found", "passed"), [(99, False), (100, True), (101, False)])
def test_as_many_positions_are_there_as_were_confirmed(found: int, passed: bool) -> None:
    assert evaluate.gaps(Confirmed(100, 100), Held(found, is_by_position=True)).passed == passed


@pytest.mark.parametrize(
    ("held", "answer"),
    [
        (Held(100, True, confirmed=100), "100 positions, as confirmed"),
        (Held(105, True, confirmed=100), "100 positions, as confirmed"),
        (Held(104, True, confirmed=99), "1 of 100 confirmed rows are missing"),
        (
            Held(99, True, removes="its TTL", confirmed=99),
            "1 of 100 confirmed rows are missing, and its TTL removes rows: disable this check if that is intended",
        ),
        (Held(107, True, removes="its TTL", confirmed=100), "2 positions more than the 105 that were confirmed"),
        (Held(105, True, confirmed=103), "3 positions more than the 100 that were confirmed before"),
        (Held(99, False), "1 of 100 confirmed rows are missing"),
        (Held(107, False), "2 rows more than the 105 that were confirmed"),
    ],
)
def test_a_gap_is_numbered_and_never_hidden_by_an_open_chunk(held: Held, answer: str) -> None:
    found = evaluate.gaps(Confirmed(100, 105), held)
    assert (found.message, found.facts["found"]) == (answer, held.count)
    assert found.passed == answer.endswith(", as confirmed")
    assert found.not_evaluated == ("" if held.is_by_position else "the table has no position columns: rows were counted")


@pytest.mark.parametrize("held", [Held(100, False), Held(103, False), Held(105, True)])
def test_no_verdict_where_open_chunks_rows_are_not_known(held: Held) -> None:
    found = evaluate.gaps(Confirmed(100, 105), held)
    assert (found.passed, found.is_mild) == (False, True)
    assert "a chunk that was being inserted" in found.not_evaluated


def test_a_row_of_no_record_is_extra_even_beside_a_missing_one() -> None:
    found = evaluate.gaps(Confirmed(100, 100), Held(100, True, foreign=1))
    assert (found.passed, found.message) == (False, "1 rows belong to no record of the topic: another writer inserted them")
    assert "1 of 100 confirmed rows are missing; 1 rows" in evaluate.gaps(Confirmed(100, 100), Held(99, True, foreign=1)).message


def test_a_gap_carries_what_the_audit_has_named() -> None:
    finding = Finding("out -> table", "missing", 1, None, [{"topic": "t", "partition": 2, "offset": 7}])
    found = evaluate.gaps(Confirmed(100, 100), Held(99, True), [finding])
    assert "1 of 100 confirmed rows are missing" in found.message
    assert found.examples == [{"place": "out -> table", "kind": "missing", "count": 1, "topic": "t", "partition": 2, "offset": 7}]


WARN, FAIL = timedelta(minutes=2), timedelta(minutes=10)


@pytest.mark.parametrize(
    ("behind", "passed", "is_mild"),
    [
        (Behind(0, timedelta(0), 0, 0, 0), True, False),
        (Behind(5, timedelta(seconds=119), 40, 0, 0), True, False),
        (Behind(5, timedelta(seconds=120), 0, 0, 0), False, True),
        (Behind(0, timedelta(0), 40, 3, 0), False, True),
        (Behind(0, timedelta(0), 40, 40, 1), False, False),
        (Behind(5, timedelta(minutes=10), 0, 0, 0), False, False),
    ],
)
def test_freshness_is_about_what_waits_and_for_how_long(behind: Behind, passed: bool, is_mild: bool) -> None:
    found = evaluate.freshness(behind, WARN, FAIL)
    assert (found.passed, found.is_mild) == (passed, is_mild)


@pytest.mark.parametrize(("rejected", "passed"), [(0, True), (1, True), (2, False)])
def test_dead_letters_may_be_as_many_as_the_file_says(rejected: int, passed: bool) -> None:
    found = evaluate.dead_letters(account(10 - rejected, rejected, sunk=10 - rejected), max_percent=10.0)
    assert (found.passed, found.facts["dead letters"]) == (passed, rejected)


def test_dead_letters_that_entered_again_count_no_more() -> None:
    legs = account(6, 4, sunk=6).legs
    dead_letters = LegTally("redrive", 4, {"entered again": 3, "discarded": 0, "still dead letters": 1}, 1, False)
    found = evaluate.dead_letters(Tally(legs, dead_letters), max_percent=10.0)
    assert (found.passed, found.facts["dead letters"], found.facts["open dead letters"]) == (True, 4, 1)


def test_letters_of_an_earlier_time_are_no_share_of_this_one() -> None:
    legs = account(10, 0, sunk=10).legs
    dead_letters = LegTally("redrive", 0, {"entered again": 0, "discarded": 0, "still dead letters": 0}, 7, False, 7)
    assert evaluate.dead_letters(Tally(legs, dead_letters), max_percent=0.0).passed


def test_no_record_is_no_share_of_dead_letters() -> None:
    nothing = Tally(tuple(LegTally(leg, 0, {}, 0, False) for leg in ("ingest", "process", "sink")), LegTally("redrive", 0, {}, 0, False))
    assert evaluate.dead_letters(nothing, 0.0).passed


def test_an_extra_column_is_no_drift_a_changed_one_is_named() -> None:
    assert evaluate.schema_drift([], ["added"], []).passed
    found = evaluate.schema_drift(["sink.mapping[0].column_type: column 'id' is String, the file says Int64"], [], [])
    assert not found.passed
    assert "'id' is String" in found.message


def test_a_lagging_view_is_named_an_incomparable_one_reported() -> None:
    sums = [ViewSum("d.even", 10, 10, 10), ViewSum("d.odd", 9, 10, 10), ViewSum("d.unknown", None, 10, 10, "no count")]
    found = evaluate.views(sums)
    assert not found.passed
    assert found.message == (
        "d.odd adds up to 9, the table has 10 rows; a view lacks the rows that are older than itself until you insert them"
    )
    assert found.not_evaluated == "d.unknown: no count"


def test_a_view_may_be_ahead_of_the_first_count_of_a_live_table() -> None:
    assert evaluate.views([ViewSum("d.live", 12, 10, 12)]).passed
    ahead = evaluate.views([ViewSum("d.live", 13, 10, 12)])
    assert (ahead.passed, ahead.message) == (False, "d.live adds up to 13, the table has 10 rows")


@pytest.mark.parametrize(("total", "passed"), [(6, False), (7, True), (10, True), (12, True), (15, True), (16, False)])
def test_a_view_may_lead_or_lag_by_what_is_being_inserted(total: int, passed: bool) -> None:
    found = evaluate.views([ViewSum("d.live", total, 10, 12, inserting=3)])
    assert found.passed == passed
    is_clear = 10 <= total <= 12
    assert bool(found.not_evaluated) == (passed and not is_clear), "what is not certain is told"


def test_a_short_insert_window_is_named() -> None:
    found = evaluate.insert_window([("d.t", 10_000), ("d.view", 4)], 100)
    assert not found.passed
    assert "d.view remembers 4" in found.message


def test_hours_that_differ_are_named() -> None:
    hours = Hours(
        [VerifiedHour("2026-11-22-03:00", True, ""), VerifiedHour("2026-11-22-04:00", False, "1 row differs")], ["2026-11-22-02:00"]
    )
    found = evaluate.verification(hours, FIRST, LATER)
    assert not found.passed
    assert found.examples == [{"hour": "2026-11-22-04:00", "found": "1 row differs"}]
    assert not found.is_mild
    matching = evaluate.verification(Hours([VerifiedHour("2026-11-22-03:00", True, "")]), None, LATER)
    assert (matching.passed, matching.message, matching.not_evaluated) == (True, "1 verified hours match", "")


def test_an_unverified_hour_is_a_warning_beside_matches() -> None:
    hours = Hours([VerifiedHour("2026-11-22-03:00", True, "")], ["2026-11-22-02:00"])
    found = evaluate.verification(hours, FIRST, LATER)
    assert (found.passed, found.is_mild, found.facts["hours missed"]) == (False, True, 1)
    assert "1 hours with records were not verified: 2026-11-22-02:00;" in found.message


def test_an_hour_that_is_not_proven_yet_is_a_mild_fault() -> None:
    hours = [VerifiedHour("2026-11-22-03:00", True, ""), VerifiedHour("2026-11-22-04:00", True, "", is_proven=False)]
    found = evaluate.verification(Hours(hours), FIRST, LATER)
    assert (found.passed, found.is_mild) == (False, True)
    assert "1 of 2 verified hours are not proven: 2026-11-22-04:00" in found.message
    both = evaluate.verification(Hours([*hours, VerifiedHour("2026-11-22-05:00", False, "1 row differs")]), FIRST, LATER)
    assert (both.passed, both.is_mild) == (False, False)


@pytest.mark.parametrize(
    ("first", "passed"),
    [
        (None, True),
        (datetime(2026, 11, 22, 4, 0, 1, tzinfo=UTC), False),
        (datetime(2026, 11, 22, 4, 59, 59, 999999, tzinfo=UTC), False),
        (datetime(2026, 11, 22, 5, 0, tzinfo=UTC), True),
    ],
)
def test_a_due_hour_that_was_not_verified_is_a_warning(first: datetime | None, passed: bool) -> None:
    found = evaluate.verification(Hours(), first, LATER)
    assert (found.passed, found.is_mild, bool(found.not_evaluated)) == (passed, not passed, passed)


@pytest.mark.parametrize(
    ("select", "every"),
    [
        ("SELECT id, upper(name) AS name FROM default.t", True),
        ("WITH 1 AS one SELECT id FROM default.t", True),
        ("SELECT id FROM default.t WHERE id > 1", False),
        ("SELECT id, count() AS n FROM default.t GROUP BY id", False),
        ("SELECT count() AS n FROM default.t", False),
        ("SELECT uniqExact(id) AS n FROM default.t", False),
        ("SELECT argMax(name, id) AS name FROM default.t", False),
        ("SELECT topK(3)(name) AS names FROM default.t", False),
        ("SELECT sumIf(id, id > 1) AS n FROM default.t", False),
        ("SELECT id FROM default.t ORDER BY id ASC WITH FILL TO 50", False),
        ("SELECT arrayJoin(tags) AS tag FROM default.t", False),
        ("SELECT DISTINCT id FROM default.t", False),
        ("SELECT id FROM default.t ARRAY JOIN tags", False),
        ("SELECT id FROM default.t LIMIT 3", False),
    ],
)
def test_which_views_give_a_row_for_each_row_of_their_table(select: str, every: bool) -> None:
    aggregates = {"argmax", "count", "sum", "topk", "uniqexact"}
    assert passes_every_row(f"CREATE MATERIALIZED VIEW default.v TO default.w (`id` Int64) AS {select}", aggregates) == every


@pytest.mark.parametrize(
    ("engine", "clauses", "what"),
    [
        ("MergeTree", "ORDER BY id SETTINGS index_granularity = 8192", ""),
        ("MergeTree", "ORDER BY id TTL at + toIntervalDay(1) SETTINGS index_granularity = 8192", "its TTL"),
        ("MergeTree", "ORDER BY id TTL toDateTime(at, 'UTC') + toIntervalDay(1) TO VOLUME 'cold' SETTINGS index_granularity = 8192", ""),
        ("MergeTree", "ORDER BY id TTL at + toIntervalDay(1) RECOMPRESS CODEC(ZSTD(9)), at + toIntervalDay(2) TO DISK 'd'", ""),
        ("MergeTree", "ORDER BY id TTL at + toIntervalDay(1) TO DISK 'cold', at + toIntervalDay(2)", "its TTL"),
        ("ReplicatedMergeTree", "ORDER BY id TTL at + toIntervalDay(1) WHERE id < 10", "its TTL"),
        ("ReplacingMergeTree", "ORDER BY id", "its engine ReplacingMergeTree"),
        ("ReplicatedSummingMergeTree", "ORDER BY id", "its engine ReplicatedSummingMergeTree"),
        ("Null", "", ""),
    ],
)
def test_what_of_a_definition_removes_rows_is_named(engine: str, clauses: str, what: str) -> None:
    assert removes_rows(Table("default", "t", engine, f"{engine} {clauses}", (), 0)) == what
