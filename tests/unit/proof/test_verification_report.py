"""The report of a verification of several tables: one verdict, and every number with the sink that it belongs to."""

from datetime import UTC, datetime

from pipelines.proof.report import Verdict
from pipelines.proof.verification.result import UNCONFIRMED, Checksum, Verification

NOON, LATER = datetime(2026, 11, 24, 12, tzinfo=UTC), datetime(2026, 11, 24, 13, tzinfo=UTC)


def report(table: str, rows: int, last: datetime = NOON) -> Verification:
    made = Verification("orders", table=table, arrivals=(NOON, last), sequences=(1, rows), checksums=[Checksum("id", "1", "1")])
    made.counts = {"rows": rows, "found": rows}
    return made


def test_the_report_of_one_table_stays_as_it_is() -> None:
    one = report("db.all", 5)
    assert Verification.together({"": one}) is one
    assert "rows 5, found 5" in one.lines()


def test_every_number_is_named_with_its_sink() -> None:
    both = Verification.together({"all": report("db.all", 5), "large": report("db.large", 2, LATER)})
    assert (both.arrivals, both.sequences) == ((NOON, LATER), (1, 5))
    lines = list(both.lines())
    assert "all: rows 5, found 5" in lines
    assert "large: rows 2, found 2" in lines
    assert "large: same checksum on both sides: id" in lines
    assert both.verdict is Verdict.CLEAN


def test_a_fault_of_one_table_is_the_verdict_of_all() -> None:
    lost = report("db.large", 2)
    lost.find("rows", "missing", 1)
    both = Verification.together({"all": report("db.all", 5), "large": lost})
    assert both.verdict is Verdict.DIFFERS
    assert [(one.place, one.kind) for one in both.findings] == [("rows (large)", "missing")]
    assert both.findings[0].remedy


def test_what_one_sink_has_not_confirmed_is_compared_later() -> None:
    waiting = report("db.large", 2)
    waiting.cannot_prove(UNCONFIRMED, 3)
    both = Verification.together({"all": report("db.all", 5), "large": waiting})
    assert both.verdict is Verdict.NOT_PROVEN
    assert not both.is_whole
