"""The command `status`: the legs of a running pipeline in 80 columns, with their messages below, once or again and again."""

import json
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from pipelines.cli.arguments import directory_of, errors_as_exit, out
from pipelines.config import load
from pipelines.control.control import ask_all, by_halt, read_halts
from pipelines.counts import count_of
from pipelines.errors import HaltError

_LOOK_SECONDS = 1.0
_HISTORY = 60
"""The looks that a sparkline shows, and so about its seconds."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_STYLES = {"running": "green", "waiting": "yellow", "halted": "red"}
History = dict[str, deque[float]]
"""The rows per second of each leg at the last looks."""


def show_status(file: Path, watch: bool, as_json: bool) -> None:
    """Show the status of the pipeline of a file. Exit with 1 if it is not running, or not healthy."""
    with errors_as_exit():
        directory = directory_of(load(file))
        if not directory.is_dir():
            raise HaltError(f"pipeline {directory.name} was never started on this host")
        now = ask_all(directory)
        if now is None:
            out.print("not running on this host; `tallyflow tally` shows what it has processed")
            _print_halts(directory, ())
            raise typer.Exit(1)
        if as_json:
            typer.echo(json.dumps(now, indent=2))
        elif watch:
            with suppress(KeyboardInterrupt):
                _watch(directory, now)
        else:
            out.print(status_view(now))
            _print_halts(directory, now["legs"])
    if not now["healthy"]:
        raise typer.Exit(1)


def _print_halts(directory: Path, running: Collection[str]) -> None:
    """Print why the last runners of the legs that are not `running` halted, for each leg that did."""
    halts = {leg: halt for leg, halt in read_halts(directory).items() if leg not in running}
    for halt, names in by_halt(halts).items():
        out.print(f"{names} halted at {halt.at}: {halt.message}", markup=False, highlight=False)


def _watch(directory: Path, now: dict[str, Any]) -> None:
    """Show the status again every second, until the last runner has ended."""
    history: History = {}
    with Live(status_view(now), console=out, auto_refresh=False) as live:
        while True:
            time.sleep(_LOOK_SECONDS)
            newer = ask_all(directory)
            if newer is None:
                break
            rates = rates_between(now, newer)
            for leg, rate in rates.items():
                history.setdefault(leg, deque(maxlen=_HISTORY)).append(rate)
            live.update(status_view(newer, rates, history), refresh=True)
            now = newer
    out.print("the pipeline is not running on this host any more")
    _print_halts(directory, ())


def rates_between(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, float]:
    """Return the rows per second that each leg has taken between two looks; legs that were started meanwhile have none."""
    seconds = max(now["at"] - before["at"], 1e-3)
    return {
        name: max(0, leg["totals"].get("rows_in", 0) - before["legs"][name]["totals"].get("rows_in", 0)) / seconds
        for name, leg in now["legs"].items()
        if name in before["legs"] and before["legs"][name]["totals"]
    }


def status_view(
    now: Mapping[str, Any], rates: Mapping[str, float] | None = None, history: Mapping[str, Collection[float]] | None = None
) -> Group:
    """Return the table of the legs, the sparklines of their `history`, and all messages.

    `rates`: those between two looks; without them the runner's own, over its last half minute.
    """
    lines = [Text(line, style="dim") for line in _sparklines(history or {})]
    return Group(_table(now, rates or {}), *lines, *_messages(now))


def _table(now: Mapping[str, Any], rates: Mapping[str, float]) -> Table:
    numbers = [Column(name, justify="right", no_wrap=True) for name in ("waiting", "oldest", "in", "out", "rows/s", "idle")]
    columns = [Column("leg", overflow="fold"), Column("state", no_wrap=True), *numbers]
    layout: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
    table = Table(*columns, title=f"pipeline {now['pipeline']}", caption=_caption(now), **layout)
    for name, leg in now["legs"].items():
        rate, totals = rates.get(name, leg["rows_per_second"]), leg["totals"]
        table.add_row(
            Text(name),
            Text(leg["state"], style=_STYLES.get(leg["state"], "")),
            short_count(leg["waiting"]),
            short_duration(leg["waiting_seconds"]) if leg["waiting"] else "",
            short_count(totals.get("rows_in", 0)),
            short_count(totals.get("rows_out", 0)),
            short_count(round(rate)) if rate is not None else "",
            _idle(leg["last_batch"], now["at"]),
        )
    return table


def _under_earlier(now: Mapping[str, Any]) -> str:
    """Return which legs do not work under the reloaded settings yet; empty if all do, or if runners here have different ones."""
    digest = now["settings"]["digest"]
    legs = ", ".join(name for name, leg in now["legs"].items() if digest and leg["settings"] != digest)
    return f"; {legs}: when the batch is done" if legs else ""


def _idle(batch: Mapping[str, Any], at: float) -> str:
    """Return how long ago a leg's last batch ended; empty before its first."""
    if not batch:
        return ""
    ago = datetime.fromtimestamp(at, UTC) - datetime.fromisoformat(batch["at"])
    return short_duration(max(0.0, ago.total_seconds()))


def short_count(count: int) -> str:
    """Return a count, from 10 million on in millions, rounded down; `tally` has all digits."""
    return f"{count:,}" if count < 10_000_000 else f"{count // 1_000_000:,} M"


def short_duration(seconds: float) -> str:
    """Return a duration in its largest unit, such as "8 s", "12 min", "5 h" or "3 d", rounded down."""
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds // unit:,.0f} {name}"
    return f"{seconds:.0f} s"


def _caption(now: Mapping[str, Any]) -> str:
    lag = sum(leg["waiting"] for leg in now["legs"].values())
    oldest = max(leg["waiting_seconds"] for leg in now["legs"].values())
    parts = [f"lag {count_of(lag, 'record')}" + (f", oldest {oldest:,.0f} s" if lag else ""), count_of(len(now["lag"]), "partition")]
    parts.append(f"up {short_duration(now['uptime_seconds'])}")
    if (wanted := now["lanes"]["wanted"]) > 1:
        parts.append(f"{now['lanes']['working']} of {wanted} lanes")
    return "; ".join(parts)


def _sparklines(history: Mapping[str, Collection[float]]) -> Iterator[str]:
    """Yield a line for each leg: its rows per second at the last looks, and the most of them."""
    width = max(map(len, history), default=0)
    for leg, rates in history.items():
        yield f"{leg:<{width}} {sparkline(rates)} most {max(rates):,.0f} rows/s"


def sparkline(values: Collection[float]) -> str:
    """Return a bar for each value, as high as its share of the largest; an empty bar for nothing."""
    most = max(values, default=0.0)
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(value / most * len(_BLOCKS)))] if value > 0 else " " for value in values)


def _messages(now: Mapping[str, Any]) -> Iterator[Text]:
    """Yield what the legs, the streams and the tables have to say, each a paragraph of its own."""
    for name, leg in now["legs"].items():
        if leg["message"]:
            yield Text(f"{name}: {leg['message']}", style=_STYLES.get(leg["state"], ""))
    if at := now["settings"]["reloaded_at"]:
        yield Text(f"settings reloaded at {at}{_under_earlier(now)}")
    yield from (Text(facts["advice"]) for facts in now["streams"].values() if facts["advice"])
    if now["purge_failure"]:
        yield Text(f"purging the streams failed and will be retried: {now['purge_failure']}")
    for copied in now.get("ledger_tables", {}).values():
        if copied["message"]:
            yield Text(f"ledger table: {copied['message']}")
    for table, facts in now.get("lookup_tables", {}).items():
        yield Text(f"table {table}: {count_of(facts['rows'], 'row')}, {facts['age_seconds']:,.0f} s old")
        if facts["failure"]:
            yield Text(facts["failure"], style="yellow")
