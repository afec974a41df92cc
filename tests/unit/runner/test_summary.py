"""The account with which a run closes: its own part, and the balance of the whole."""

import pytest

from pipelines.protocol.tally import LegTally, Tally
from pipelines.runner.summary import duration, summary


def tally(read: int, written: int, dead: int, waiting: int = 0) -> Tally:
    ingest = LegTally("ingest", read, {"written to raw": read, "expired and skipped": 0}, 0, False)
    outcomes = {"written to out": written, "duplicates dropped": 0, "dead letters": dead}
    process = LegTally("process", read - waiting, outcomes, waiting, False, upstream=("ingest",))
    return Tally((ingest, process), LegTally("redrive", dead, {"still dead letters": dead}, dead, False))


def test_a_run_accounts_for_its_own_part() -> None:
    event = summary(tally(100, 99, 1), tally(300, 296, 2, waiting=2), ("ingest", "process"), 192.0)
    assert event.message.splitlines() == [
        "ended after 3 min 12 s; in this run:",
        "  ingest: 200 records in; 200 written to raw",
        "  process: 198 records in; 197 written to out, 1 dead letter",
        "  still waiting: 2 before process",
        "  2 dead letters to look at: `tallyflow dlq groups`",
        "every event is accounted for, by the ledger; `tallyflow audit` proves it",
    ]
    assert event.facts["legs"]["ingest"] == {"rows_in": 200, "outcomes": {"written to raw": 200, "expired and skipped": 0}}


def test_a_residue_is_never_called_accounted_for() -> None:
    event = summary(tally(0, 0, 0), tally(10, 9, 0), ("process",), 1.0)
    assert event.message.splitlines()[-1] == "1 event NOT accounted for, by the ledger; `tallyflow tally` shows where"
    assert "ingest" not in event.message


@pytest.mark.parametrize(("seconds", "text"), [(8.14, "8.1 s"), (59.94, "59.9 s"), (192, "3 min 12 s"), (7500, "2 h 5 min")])
def test_durations_are_in_the_largest_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
