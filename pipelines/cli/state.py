"""The commands about the keys that a pipeline with dedup remembers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from pipelines.cli.arguments import AsJson, File, errors_as_exit, out, print_json, progress, utc
from pipelines.config import load
from pipelines.home import default_home

if TYPE_CHECKING:
    from pipelines.maintenance.inspect import KeyHistory, KeyState, Seen


@contextmanager
def _key_state(file: File, needs_dedup: bool = True) -> "Iterator[KeyState]":
    from pipelines.maintenance.inspect import KeyState

    with errors_as_exit():
        state = KeyState(load(file), file.read_text(), default_home(), needs_dedup)
        try:
            yield state
        finally:
            state.close()


def state(file: File, as_json: AsJson = False) -> None:
    """Show how many keys the dedup of a pipeline remembers: entries, bytes and runs per bucket."""
    with _key_state(file) as keys:
        found = keys.summary()
    if as_json:
        print_json(asdict(found))
        return
    clock = f"clock {found.clock:%Y-%m-%d %H:%M:%S} UTC" if found.clock else "nothing judged yet"
    title = f"keys of {found.pipeline}: {', '.join(found.key)} within {found.window}"
    table = Table("bucket", "entries", "bytes", "bytes per entry", "runs", title=title, caption=clock)
    for one in found.buckets:
        table.add_row(str(one.bucket), *_extent(one.entries, one.bytes, one.runs), end_section=one is found.buckets[-1])
    table.add_row("all", *_extent(*(sum(getattr(one, name) for one in found.buckets) for name in ("entries", "bytes", "runs"))))
    out.print(table)


def _extent(entries: int, size: int, runs: int) -> tuple[str, str, str, str]:
    return f"{entries:,}", f"{size:,}", f"{size / entries:.1f}" if entries else "", str(runs)


def why(
    file: File,
    key: Annotated[list[str], typer.Argument(help="The value of each field of the key, in the order of the file.")],
    as_json: AsJson = False,
) -> None:
    """Show what became of a key: when and where it was accepted, until when copies are dropped, and how many were."""
    with _key_state(file) as keys, progress("looking through the raw stream") as tell:
        found = keys.why(key, tell)
    if as_json:
        print_json(asdict(found))
        return
    for line in _told(found):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _told(found: "KeyHistory") -> Iterator[str]:
    key = ", ".join(f"{name} = {json.dumps(value)}" for name, value in found.key.items())
    if found.accepted is None:
        yield f"{key}: not in the store (bucket {found.bucket}). No record of this key was accepted, or its window ended some time ago."
        return
    yield f"{key}: accepted {_where(found.accepted)} (bucket {found.bucket})"
    ended = "its window has ended: the next one goes on" if found.is_over else "until then copies are dropped"
    yield f"expires {_time(found.expires)}; {ended}"
    since = f"since {utc(found.counted_from)} (earlier records were purged)" if found.counted_from else "since"
    yield f"{found.duplicates:,} copies dropped {since}, in {found.records_scanned:,} records"
    for seen in found.dropped:
        yield f"  dropped {_where(seen)}"
    if found.duplicates > len(found.dropped):
        yield f"  and {found.duplicates - len(found.dropped):,} more"


def _where(seen: "Seen") -> str:
    kafka = f"{seen.topic} partition {seen.partition} offset {seen.offset}" if seen.topic else "its raw frame is gone"
    return f"{_time(seen.at)}, {kafka}, raw position {seen.position}"


def _time(instant: datetime | None) -> str:
    return utc(instant) if instant else "never"


def compact(file: File, as_json: AsJson = False) -> None:
    """Merge the runs of each bucket into one and drop expired keys; may run beside the pipeline. Proves that no live key went."""
    from pipelines.maintenance.compact import compact as run

    with _key_state(file) as keys:
        found = run(keys)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    table = Table("bucket", "entries", "bytes", "runs", "oldest", "live keys, all found", "outcome", title="before -> after")
    for one in found:
        pairs = [(one.before.entries, one.after.entries), (one.before.bytes, one.after.bytes), (one.before.runs, one.after.runs)]
        oldest = " -> ".join(f"{each.oldest:%m-%d %H:%M:%S}" if each.oldest else "none" for each in (one.before, one.after))
        table.add_row(str(one.bucket), *(f"{a:,} -> {b:,}" for a, b in pairs), oldest, f"{one.live_keys:,}", one.outcome)
    out.print(table)


def rebuild_state(file: File, as_json: AsJson = False) -> None:
    """Rebuild the keys that dedup remembers from the raw stream, for a stopped pipeline whose store was lost or is damaged."""
    from pipelines.maintenance.rebuild import rebuild

    with _key_state(file) as keys, progress("judging the raw stream again") as tell:
        found = rebuild(keys, tell)
    if as_json:
        print_json(asdict(found))
        return
    out.print(
        f"{found.records:,} records judged again: {found.accepted:,} first ones and {found.duplicates:,} duplicates, as the ledger counted"
    )
    out.print(f"the store holds {found.entries:,} entries in {found.runs} runs; start the pipeline")


def rebucket(file: File, as_json: AsJson = False) -> None:
    """Give a stopped pipeline the number of buckets that its file says now: rewrites the keys that dedup remembers."""
    from pipelines.maintenance.rebucket import rebucket as run

    with _key_state(file, needs_dedup=False) as keys:
        found = run(keys)
    if as_json:
        print_json(asdict(found))
        return
    out.print(
        f"{found.buckets_before} -> {found.buckets} buckets; {found.entries_before:,} -> {found.entries:,} entries; start the pipeline"
    )


def reset_clock(file: File, as_json: AsJson = False) -> None:
    """Let the windows of a stopped pipeline go on whose arrivals are ahead of NATS's clock, because that was ahead and stepped back."""
    from pipelines.maintenance.reset_clock import reset_clock as run

    with _key_state(file) as keys:
        found = run(keys)
    if as_json:
        print_json({"arrival": found.arrival.isoformat(), "server": found.server.isoformat()})
        return
    if found.arrival <= found.server:
        out.print(
            f"arrivals stand at {_time(found.arrival)}, NATS's clock says {_time(found.server)}: nothing is ahead, nothing was changed"
        )
        return
    out.print(
        f"arrivals stand at {_time(found.arrival)}, NATS's clock says {_time(found.server)}: they go on at half its speed until "
        f"{_time(found.met)}, so windows take up to twice as long until then; start the pipeline"
    )
