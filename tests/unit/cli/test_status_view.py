"""The table of `status`: it fits 80 columns, whatever it counts, and its messages stand below it."""

import io
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from pipelines.cli.arguments import Terminal
from pipelines.cli.status import rates_between, short_count, short_duration, sparkline, status_view

MESSAGE = "inserting a chunk: ClickHouse did not answer (Connection refused) at clickhouse-1.example.internal:8123, trying again"


def leg(rows: int, rate: float | None = 120.0, state: str = "running", message: str = "", waiting: int = 0) -> dict[str, Any]:
    last = {"counts": {"rows_in": min(rows, 200_000)}, "seconds": 0.12, "at": "2026-11-25T03:14:00.000+00:00"} if rows else {}
    totals = {"rows_in": rows, "rows_out": rows} if rows else {}
    pace = {"rows_per_second": rate, "waiting": waiting, "waiting_seconds": 12.0}
    return {"state": state, "message": message, "totals": totals, "last_batch": last, **pace}


def snapshot(legs: dict[str, Any], at: float = 1_795_576_445.0, **more: Any) -> dict[str, Any]:
    around = {"lag": {"0": 0, "1": 0}, "uptime_seconds": 4_000.0, "lanes": {"wanted": 1, "working": 1}, "streams": {}, "purge_failure": ""}
    settings = {"digest": "new", "reloaded_at": None}
    return {"pipeline": "orders", "at": at, "legs": legs, "settings": settings, **around, **more}


def test_a_reload_is_shown_with_the_legs_that_lack_it() -> None:
    legs = {name: {**leg(7), "settings": digest} for name, digest in (("ingest", "new"), ("sink", "old"))}
    settings = {"digest": "new", "reloaded_at": "2026-11-25T03:14:00+00:00"}
    assert "settings reloaded at 2026-11-25T03:14:00+00:00; sink: when the batch is done" in shown(snapshot(legs, settings=settings))
    legs["sink"]["settings"] = "new"
    assert "settings reloaded at 2026-11-25T03:14:00+00:00" in shown(snapshot(legs, settings=settings))
    assert not any("reloaded" in line for line in shown(snapshot(legs)))


def shown(now: Mapping[str, Any], *more: Any, width: int = 80) -> list[str]:
    written = io.StringIO()
    Terminal(file=written, width=width).print(status_view(now, *more))
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_the_table_has_the_runners_own_rates_in_one_look() -> None:
    now = snapshot({"ingest": leg(300_000, waiting=30), "process": leg(0, None, "starting"), "sink": leg(269_404, 0.0)})
    table = [line for line in shown(now) if line.split()[:1] in (["leg"], ["ingest"], ["process"], ["sink"])]
    assert [line.split() for line in table] == [
        ["leg", "state", "waiting", "oldest", "in", "out", "rows/s", "idle"],
        ["ingest", "running", "30", "12", "s", "300,000", "300,000", "120", "5", "s"],
        ["process", "starting", "0", "0", "0"],
        ["sink", "running", "0", "269,404", "269,404", "0", "5", "s"],
    ]
    assert any("lag 30 records, oldest 12 s; 2 partitions; up 1 h" in line for line in shown(now))


@pytest.mark.parametrize("rows", [0, 7, 300_000, 12_345_678, 9_876_543_210])
def test_no_line_is_wider_than_80_columns(rows: int) -> None:
    legs = {
        name: leg(rows, 123_456.0, "waiting", MESSAGE, 1_234_567) for name in ("ingest", "ingest:clicks", "process", "sink", "sink:audit")
    }
    lines = shown(snapshot(legs, purge_failure=MESSAGE), {}, {name: [float(n) for n in range(60)] for name in legs})
    assert max(map(len, lines)) <= 80
    table = [line.split() for line in lines if "waiting" in line and "inserting" not in line][1:]
    counts = short_count(rows).split()
    assert all([*counts, *counts, "123,456"] == line[5 : 6 + 2 * len(counts)] for line in table)
    assert len(table) == 5


def test_messages_stand_whole_below_the_table() -> None:
    streams = {"raw": {"advice": "raw stream tf-orders-raw is full"}, "out": {"advice": ""}}
    tables = {"lookup_tables": {"customers": {"rows": 1, "age_seconds": 61.0, "failure": "fetching customers failed"}}}
    now = snapshot({"ingest": leg(5), "sink": leg(5, 0.0, "waiting", MESSAGE)}, streams=streams, **tables)
    lines = shown(now)
    below = " ".join(lines[max(index for index, line in enumerate(lines) if "partitions; up" in line) + 1 :])
    assert " ".join(below.split()) == (
        f"sink: {MESSAGE} raw stream tf-orders-raw is full table customers: 1 row, 61 s old fetching customers failed"
    )


def test_rates_between_two_looks_are_per_second() -> None:
    before = snapshot({"ingest": leg(100), "sink": leg(0)}, at=10.0)
    now = snapshot({"ingest": leg(400), "sink": leg(50), "process": leg(7)}, at=12.0)
    assert rates_between(before, now) == {"ingest": 150.0}


def test_a_watch_shows_the_rates_of_the_last_looks() -> None:
    history: dict[str, Collection[float]] = {"ingest": [0.0, 50.0, 100.0], "process": [0.0, 0.0]}
    lines = shown(snapshot({"ingest": leg(5), "process": leg(5)}), {"ingest": 100.0}, history)
    assert "ingest   ▅█ most 100 rows/s" in lines
    assert any(line.startswith("process") and line.endswith("most 0 rows/s") for line in lines)


@pytest.mark.parametrize(("values", "text"), [([], ""), ([0.0, 0.0], "  "), ([1.0, 2.0, 4.0, 8.0], "▂▃▅█"), ([0.0, 1e-9], " █")])
def test_a_bar_is_as_high_as_its_share_of_the_largest(values: list[float], text: str) -> None:
    assert sparkline(values) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 s"), (59.4, "59 s"), (60.0, "1 min"), (3_599.0, "59 min"), (7_200.0, "2 h"), (864_000, "10 d")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (9_999_999, "9,999,999"), (10_000_000, "10 M"), (9_876_543_210, "9,876 M")])
def test_counts_are_short(count: int, text: str) -> None:
    assert short_count(count) == text
