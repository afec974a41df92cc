"""The commands on the key store: the keys that dedup remembers."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from pipelines.cli.arguments import AsJson, File, NamedFile, errors_as_exit, out, print_json, progress_bar, utc
from pipelines.config import load
from pipelines.counts import count_of
from pipelines.home import default_home

if TYPE_CHECKING:
    from pipelines.maintenance.inspect import KeyHistory, KeyState, Needs, Seen
    from pipelines.maintenance.inspect_join import JoinHistory, JoinState
    from pipelines.maintenance.join_history import JoinRecord


_SHOWN_RECORDS = 20


@contextmanager
def _key_state(file: File, needs: "Needs" = "keys") -> "Iterator[KeyState]":
    from pipelines.maintenance.inspect import KeyState

    with errors_as_exit(), closing(KeyState(load(file), file.read_text(), default_home(), needs)) as state:
        yield state


def state(file: File, as_json: AsJson = False) -> None:
    """Show the key store of a pipeline's dedup, bucket by bucket, or the stores of its join: entries, bytes and segments."""
    from pipelines.maintenance.inspect_join import join_state

    with _key_state(file) as keys:
        if keys.joins:
            _show_join(join_state(keys), as_json)
            return
        store = keys.summary()
    if as_json:
        print_json(asdict(store))
        return
    clock = f"clock {store.clock:%Y-%m-%d %H:%M:%S} UTC" if store.clock else "no record processed yet"
    title = f"keys of {store.pipeline}: {', '.join(store.key)} within {store.window}"
    table = Table("bucket", "entries", "bytes", "bytes per entry", "segments", title=title, caption=clock)
    for bucket in store.buckets:
        table.add_row(str(bucket.bucket), *_extent(bucket.entries, bucket.bytes, bucket.runs), end_section=bucket is store.buckets[-1])
    table.add_row("all", *_extent(*(sum(getattr(bucket, name) for bucket in store.buckets) for name in ("entries", "bytes", "runs"))))
    out.print(table)


def _show_join(found: "JoinState", as_json: bool) -> None:
    if as_json:
        print_json(asdict(found))
        return
    keys = f"{', '.join(found.left_key)} = {', '.join(found.right_key)} within {found.left_window} and {found.right_window}"
    title = f"stores of the join of {found.pipeline}: {keys}"
    table = Table(
        "stored",
        "entries",
        "bytes",
        "bytes per entry",
        "segments",
        title=title,
        caption=f"clock {utc(found.clock)}" if found.clock else "no watermark yet",
    )
    for store in found.stores:
        table.add_row(store.what, *_extent(store.entries, store.bytes, store.runs))
    out.print(table)


def _extent(entries: int, size: int, runs: int) -> tuple[str, str, str, str]:
    return f"{entries:,}", f"{size:,}", f"{size / entries:.1f}" if entries else "", str(runs)


def why(
    file: NamedFile,
    key: Annotated[list[str], typer.Argument(help="The value of each key field, in the order of the pipeline file.")],
    as_json: AsJson = False,
) -> None:
    """Show the history of a key: of dedup when it was accepted, when it expires, and its copies; of a join which records have met."""
    from pipelines.maintenance.inspect_join import why_joined

    with _key_state(file) as keys, progress_bar() as progress:
        if keys.joins:
            of_join = why_joined(keys, key, progress)
            found, lines = asdict(of_join), _lines_of_join(of_join)
        else:
            history = keys.why(key, progress)
            found, lines = asdict(history), _lines(history)
    if as_json:
        print_json(found)
        return
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(history: "KeyHistory") -> Iterator[str]:
    key = ", ".join(f"{name} = {json.dumps(value)}" for name, value in history.key.items())
    if history.accepted is None:
        yield f"{key}: not in the key store (bucket {history.bucket}). No record with this key was accepted, or the key has expired."
        return
    yield f"{key}: accepted {_where(history.accepted)} (bucket {history.bucket})"
    ended = "expired: the next record with this key is accepted" if history.is_expired else "until then copies are dropped"
    yield f"expires {_time(history.expires)}; {ended}"
    since = f"since {utc(history.counted_from)} (earlier records were purged)" if history.counted_from else "since"
    yield f"{count_of(history.duplicates, 'copy')} dropped {since}, in {count_of(history.records_scanned, 'record')} scanned"
    for seen in history.dropped:
        yield f"  dropped {_where(seen)}"
    if history.duplicates > len(history.dropped):
        yield f"  and {history.duplicates - len(history.dropped):,} more"


def _lines_of_join(history: "JoinHistory") -> Iterator[str]:
    key = ", ".join(f"{name} = {json.dumps(value)}" for name, value in history.key.items())
    since = f"from raw {history.since} on, {count_of(history.records_scanned, 'record')} scanned"
    if not history.records:
        yield f"{key}: no record with this key, {since}"
        return
    shown = history.records[-_SHOWN_RECORDS:]
    yield f"{key}: {count_of(len(history.records), 'record')} {since} (bucket {history.bucket})"
    if len(shown) < len(history.records):
        yield f"  the last {len(shown)}:"
    for record in shown:
        own = f", its own time {utc(record.time)}" if record.time else ""
        yield f"  {record.side} {_where(record.seen)}{own}: {_fate(record)}"


def _fate(record: "JoinRecord") -> str:
    met = f"; {count_of(record.joined, 'left record')} met it" if record.joined else ""
    fates = {
        "joined": f"joined with {record.met}",
        "unmatched": "unmatched, its window has ended",
        "waits": f"waits until {'the watermark is at ' if record.time else ''}{_time(record.until)}",
        "copy": "a copy, dropped by dedup",
        "late": "a dead letter: older than the watermark",
        "kept": f"kept{met}",
        "newest": f"the newest, joined until {_time(record.until)}{met}",
        "replaced": f"replaced by a newer one{met}",
    }
    return fates[record.outcome]


def _where(seen: "Seen") -> str:
    kafka = f"{seen.topic} partition {seen.partition} offset {seen.offset}" if seen.topic else "its raw frame was purged"
    return f"{_time(seen.at)}, {kafka}, raw position {seen.position}"


def _time(instant: datetime | None) -> str:
    return utc(instant) if instant else "never"


def compact(file: File, as_json: AsJson = False) -> None:
    """Compact the key stores: merge the segments of each bucket and drop expired keys. Verifies that no live key is lost."""
    from pipelines.maintenance.compact import compact as run

    with _key_state(file) as keys:
        buckets = run(keys)
    if as_json:
        print_json([asdict(bucket) for bucket in buckets])
        return
    columns = ("bucket", "entries", "bytes", "segments", "oldest", "live keys, all found", "outcome")
    table = Table(*(("store",) if keys.joins else ()), *columns, title="before -> after")
    for bucket in buckets:
        pairs = [(getattr(bucket.before, name), getattr(bucket.after, name)) for name in ("entries", "bytes", "runs")]
        oldest = " -> ".join(f"{each.oldest:%m-%d %H:%M:%S}" if each.oldest else "none" for each in (bucket.before, bucket.after))
        place = (*((bucket.store,) if keys.joins else ()), str(bucket.bucket))
        table.add_row(*place, *(f"{a:,} -> {b:,}" for a, b in pairs), oldest, f"{bucket.live_keys:,}", bucket.outcome)
    out.print(table)


def rebuild_state(file: File, as_json: AsJson = False) -> None:
    """Rebuild the key store of a stopped pipeline from the raw stream, after the store was lost or damaged."""
    from pipelines.maintenance.rebuild import rebuild

    with _key_state(file) as keys, progress_bar() as progress:
        rebuilt = rebuild(keys, progress)
    if as_json:
        print_json(asdict(rebuilt))
        return
    outcomes = ", ".join(f"{count:,} {label}" for label, count in rebuilt.outcomes.items())
    out.print(f"{count_of(rebuilt.records, 'record')} replayed: {outcomes}, as the ledger counted")
    out.print(f"the key store holds {count_of(rebuilt.entries, 'entry')} in {count_of(rebuilt.runs, 'segment')}; start the pipeline")


def rebucket(file: File, as_json: AsJson = False) -> None:
    """Change a stopped pipeline to the number of buckets in its file: rewrites the key store."""
    from pipelines.maintenance.rebucket import rebucket as run

    with _key_state(file, "nothing") as keys:
        change = run(keys)
    if as_json:
        print_json(asdict(change))
        return
    out.print(
        f"buckets {change.buckets_before} -> {change.buckets}, entries {change.entries_before:,} -> {change.entries:,}; start the pipeline"
    )


def reset_clock(file: File, as_json: AsJson = False) -> None:
    """Reset the arrival clock of a stopped pipeline after NATS's clock was ahead and stepped back."""
    from pipelines.maintenance.reset_clock import reset_clock as run

    with _key_state(file) as keys:
        reset = run(keys)
    if as_json:
        print_json({"arrival": reset.arrival.isoformat(), "server": reset.server.isoformat()})
        return
    if reset.arrival <= reset.server:
        out.print(f"last arrival {_time(reset.arrival)}, NATS's clock {_time(reset.server)}: the arrival is not ahead, nothing was changed")
        return
    out.print(
        f"last arrival {_time(reset.arrival)}, NATS's clock {_time(reset.server)}: arrivals advance at half speed until "
        f"{_time(reset.met)}, and windows last up to twice as long until then; start the pipeline"
    )


COMMANDS = (state, why, compact, rebucket, rebuild_state, reset_clock)
