"""How a range is cut, which slices must be one, and what several results come to."""

from datetime import UTC, datetime, timedelta

import pytest
from support.verification_case import CONFIG, SECOND, of

from pipelines.process.program import Program
from pipelines.process.steps.dedup import Dedup
from pipelines.proof.report import Finding, Gap
from pipelines.proof.verification.result import Checksum, Verification, add_up
from pipelines.proof.verification.run import Request, Subject
from pipelines.proof.verification.slices import Slice, Verified, cut, joined
from pipelines.proof.verification.span import History, Plan
from pipelines.protocol.codec import from_text, to_text

START = datetime(1970, 1, 1, tzinfo=UTC)


def subject(config: Program, frames: int = 12, together_from: int = 99) -> Subject:
    """A frame every 4 s, sequence n at 4n s; all from `together_from` on arrived at once."""
    arrivals = [4 * min(one, together_from) * SECOND for one in range(1, frames + 1)]
    plans = [Plan(1, frames, "v")]
    return Subject(History(plans, range(1, frames + 1), arrivals, frames, is_whole=True), {"v": config}, config, [])


def after(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def request(since: datetime | None = None, until: datetime | None = None) -> Request:
    return Request(None, since, until)  # type: ignore[arg-type]


def test_a_range_without_dedup_is_cut_into_a_slice_per_slot() -> None:
    borders = [(one.since, one.until, one.follows) for one in cut(subject(CONFIG), request(), 3)]
    assert borders == [(None, after(20), False), (after(20), after(36), True), (after(36), None, True)]


@pytest.mark.parametrize(("window", "slices"), [(16, 4), (17, 3), (21, 1), (900, 1)])
def test_a_slice_reads_before_it_at_most_its_own_size(window: int, slices: int) -> None:
    config = of(Dedup(("id",), window * SECOND))
    assert len(cut(subject(config), request(), 4)) == slices


def test_slices_keep_the_requests_bounds_and_none_is_empty() -> None:
    found = cut(subject(CONFIG), request(after(10), after(30)), 2)
    assert [(one.since, one.until) for one in found] == [(after(10), after(20)), (after(20), after(30))]
    assert cut(subject(CONFIG), request(after(900)), 2) == []


def test_frames_of_one_arrival_are_not_parted() -> None:
    assert len(cut(subject(CONFIG, together_from=1), request(), 4)) == 1
    assert [one.since for one in cut(subject(CONFIG, together_from=5), request(), 4)] == [None, after(16), after(20)]


def part(number: int, relies_from: int, last_fault: int) -> Verified:
    return Verified(Slice(after(number), after(number + 1), number > 0), Verification("p", table="t"), relies_from, last_fault)


def test_a_slice_that_trusted_faulty_rows_joins_their_slices() -> None:
    parts = [part(0, 1, 7), part(1, 8, 0), part(2, 15, 22), part(3, 22, 0), part(4, 31, 0)]
    assert [[parts.index(one) for one in group] for group in joined(parts)] == [[0], [1], [2, 3], [4]]
    parts[4] = part(4, 7, 0)
    assert [[parts.index(one) for one in group] for group in joined(parts)] == [[0, 1, 2, 3, 4]]


def test_results_add_up() -> None:
    fault = {"position": "1.0"}
    later = {"position": "9.0"}
    found = add_up(
        [
            Verification(
                "p",
                {"records": 5, "copies": 0},
                [Finding("rows", "missing", 2, None, [fault, fault])],
                [Gap("unsure", 3)],
                [Gap("purged")],
                "t",
                (after(1), after(2)),
                (1, 4),
                [Checksum("a", "ffffffffffffffff", "0000000000000001")],
            ),
            Verification("p", table="t"),
            Verification(
                "p",
                {"records": 7, "copies": 1},
                [Finding("rows", "missing", 3, None, [later]), Finding("rows", "different", 1, "a", [later])],
                [Gap("unsure", 4)],
                [Gap("purged")],
                "t",
                (after(3), after(4)),
                (5, 9),
                [Checksum("a", "0000000000000002", "0000000000000002")],
            ),
        ],
        2,
    )
    assert found == Verification(
        "p",
        {"records": 12, "copies": 1},
        [Finding("rows", "missing", 5, None, [fault, fault]), Finding("rows", "different", 1, "a", [later])],
        [Gap("unsure", 7)],
        [Gap("purged")],
        "t",
        (after(1), after(4)),
        (1, 9),
        [Checksum("a", "0000000000000001", "0000000000000003")],
    )


def test_a_report_of_a_task_is_read_as_it_was_written() -> None:
    findings = [Finding("rows", "missing", 2, "a", [{"position": "1.0"}])]
    whole = Verification(
        "p", {"rows": 3}, findings, [Gap("unsure", 3)], [Gap("purged")], "t", (after(1), after(2)), (1, 4), [Checksum("a", "0", "1")]
    )
    for report in (whole, Verification("p", table="t")):
        assert from_text(Verified, to_text(Verified(Slice(None, None, False), report, 1, 0))).report == report
