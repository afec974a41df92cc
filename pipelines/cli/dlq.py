"""The commands about dead letters."""

import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.arguments import AsJson, File, NamedFile, err, errors_as_exit, out, print_json, progress_bar, since_instant, utc
from pipelines.config import load
from pipelines.counts import count_of

if TYPE_CHECKING:
    from pipelines.dead_letters.stream import DeadLetters
    from pipelines.dead_letters.triage import Group, Selection
    from pipelines.protocol.positions import Position

app = typer.Typer(help="Inspect dead letters (records that a stage has rejected), redrive them, or discard them.", no_args_is_help=True)

Stage = Annotated[str | None, typer.Option(help="Only dead letters of this stage: parse, filter, compute, dedup, join, transform or sink.")]
GroupName = Annotated[str | None, typer.Option("--group", help="Only dead letters of this group (its fingerprint).")]
_INSTANT = "UTC, or a time ago: 30m, 1h, 2d."
Since = Annotated[
    datetime | None,
    typer.Option(parser=since_instant, metavar="TIME", help=f"Only dead letters that arrived at this instant or later; {_INSTANT}"),
]
Until = Annotated[
    datetime | None,
    typer.Option(parser=since_instant, metavar="TIME", help=f"Only dead letters that arrived before this instant; {_INSTANT}"),
]
Key = Annotated[str | None, typer.Option(help="Only dead letters with this Kafka key.")]
State = Annotated[
    str,
    typer.Option(
        help="Only dead letters in this state: open, parked (rejected too often), redriven, discarded, waiting (open or parked), or all."
    ),
]


@contextmanager
def dead_letters(file: File) -> "Iterator[DeadLetters]":
    from pipelines.dead_letters.stream import DeadLetters

    with errors_as_exit(), closing(DeadLetters(load(file))) as reader:
        yield reader


def selection(
    stage: str | None, group: str | None, since: datetime | None, until: datetime | None, key: str | None, state: str = "all"
) -> "Selection":
    """Return the selection that the options ask for. Raise BadParameter for an unknown state or stage."""
    from pipelines.dead_letters.triage import STAGES, Selection
    from pipelines.protocol.redrive import STATES, WAITING

    sets = {"all": None, "waiting": WAITING, **{one: frozenset({one}) for one in STATES}}
    if state not in sets:
        raise typer.BadParameter(f"must be one of {', '.join(sets)}", param_hint="--state")
    if stage is not None and stage not in STAGES:
        raise typer.BadParameter(f"must be one of {', '.join(STAGES)}", param_hint="--stage")
    return Selection(stage, group, since, until, key.encode() if key is not None else None, sets[state])


def parse_position(text: str) -> "Position":
    """Parse a raw position such as 17.3, as `list`, `groups` and `export` show it."""
    from pipelines.protocol.positions import record_position

    try:
        return record_position(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="position") from None


@app.command()
def groups(
    file: File,
    stage: Stage = None,
    since: Since = None,
    until: Until = None,
    key: Key = None,
    state: State = "waiting",
    as_json: AsJson = False,
) -> None:
    """Group dead letters by cause: show the count, first and last arrival, an example and the likely fix of each group."""
    with dead_letters(file) as reader, progress_bar() as progress:
        groups_by_size = reader.groups(selection(stage, None, since, until, key, state), progress)
    if as_json:
        print_json([{**plain_group(group), "remedy": group.remedy} for group in groups_by_size])
        return
    print_groups(groups_by_size)
    total = sum(group.letters for group in groups_by_size)
    out.print(f"{count_of(total, 'dead letter')} in {count_of(len(groups_by_size), 'group')}", highlight=False)


def plain_group(group: "Group") -> dict[str, Any]:
    return {**asdict(group), "position": str(group.position)}


def print_groups(groups: "Iterable[Group]") -> None:
    for group in groups:
        where = f" of {group.field}" if group.field else ""
        title = f"{group.fingerprint}  {count_of(group.letters, 'dead letter')}  {group.stage}: {group.code}{where}"
        out.print(title, style="bold", markup=False, highlight=False)
        for line in (
            group.message,
            f"from {utc(group.first)} to {utc(group.last)}",
            f"for example {group.topic} partition {group.partition} offset {group.offset}, raw position {group.position}",
            *([copies_text(group.copies_dropped, group.copies_counted_from)] if group.copies_dropped else []),
            *([f"likely fix: {group.remedy}"] if group.remedy else []),
        ):
            out.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def copies_text(count: int, counted_from: datetime | None) -> str:
    since = f", since {utc(counted_from)} (earlier records were purged)" if counted_from else ""
    return f"dedup dropped {count_of(count, 'copy')} of these records in their favor{since}"


@app.command("list")
def list_dead_letters(
    file: File,
    stage: Stage = None,
    group: GroupName = None,
    since: Since = None,
    until: Until = None,
    key: Key = None,
    state: State = "waiting",
    limit: Annotated[int, typer.Option(min=1, help="List at most this many, in the order of their positions.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List dead letters by position, without their contents."""
    with dead_letters(file) as reader:
        found, count = reader.list(selection(stage, group, since, until, key, state), limit)
        if not count and group is not None:
            show_unknown_group(reader, group)
    rows = found.to_pylist()
    if as_json:
        print_json({"letters": [_plain(row) for row in rows], "selected": count})
        return
    for row in rows:
        reason = f"{row['stage']}: {row['code']}{' of ' + row['field'] if row['field'] else ''}"
        record = f"{row['_tf_topic']} partition {row['_tf_partition']} offset {row['_tf_offset']}"
        for line in (
            f"{_position(row)}  {row['state']}  {reason}",
            f"  {row['source']}: {record}, {utc(row['_tf_arrival'])}, group {row['fingerprint']}",
        ):
            out.print(line, markup=False, highlight=False, soft_wrap=True)
    out.print(f"{len(rows):,} of {count_of(count, 'dead letter')}", highlight=False)


def show_unknown_group(reader: "DeadLetters", group: str) -> bool:
    """Name the groups that there are, if `group` is none of them; return whether it is none."""
    known = reader.causes()
    if any(each.fingerprint == group for each in known):
        return False
    named = "; ".join(f"{each.fingerprint} ({count_of(each.letters, 'dead letter')}, {each.stage}: {each.code})" for each in known[:10])
    more = f"; and {len(known) - 10:,} more" if len(known) > 10 else ""
    there = f"the groups are {named}{more}" if known else "there is no dead letter"
    err.print(f"there is no group {group}; {there}", markup=False, highlight=False)
    return True


@app.command()
def show(
    file: NamedFile,
    position: Annotated[str, typer.Argument(help="Raw position of the dead letter, such as 17.3, as `list` and `groups` show it.")],
    as_json: AsJson = False,
) -> None:
    """Show a dead letter in full: the record's bytes, its origin, and why it was rejected; if two sinks refused it, that of each."""
    at = parse_position(position)
    with dead_letters(file) as reader, progress_bar() as progress:
        found = reader.at(at, progress)
        reason = reader.reason(found) if found.num_rows else ""
        rows = found.to_pylist()
        values = [reader.value_at(row) for row in rows]
    if not found.num_rows:
        err.print(f"no dead letter at position {position}", style="red", highlight=False)
        raise typer.Exit(1)
    # One for each sink that has refused the record.
    plain = [
        _plain(row, with_record=True) | ({"reason": reason} if reason else {}) | ({"field_value": value} if value is not None else {})
        for row, value in zip(rows, values, strict=True)
    ]
    if as_json:
        print_json(plain[0] if len(plain) == 1 else plain)
        return
    for dead_letter in plain:
        for name, value in dead_letter.items():
            out.print(f"{name}: {value if isinstance(value, str) else json.dumps(value)}", markup=False, highlight=False, soft_wrap=True)


_SHOWN = ("source", "fingerprint", "state", "stage", "sink", "code", "field", "message", "config_version", "attempts", "origin")
"""Fields of a dead letter that `list` and `show` have as they are."""


def _plain(row: dict[str, Any], with_record: bool = False) -> dict[str, Any]:
    """Return a dead letter as JSON values; the record's own bytes only on demand."""
    own = {
        "position": _position(row),
        "topic": row["_tf_topic"],
        "partition": row["_tf_partition"],
        "offset": row["_tf_offset"],
        "arrival": utc(row["_tf_arrival"]),
        **{name: row[name] for name in _SHOWN},
    }
    if not with_record:
        return own
    size = row["oversize"]
    return {
        **own,
        "timestamp": _time_of_kafka(row["timestamp"]),
        "headers": [[_text(name), _text(value)] for name, value in row["headers"] or []],
        "key": _text(row["key"]),
        "value": _text(row["value"]),
        "copies_dropped": row["copies_dropped"],
        "copies_counted_from": utc(row["copies_counted_from"]) if row["copies_counted_from"] else None,
        **({"value_bytes": size["bytes"], "value_sha256": size["sha256"].hex()} if size else {}),
    }


def _time_of_kafka(at: datetime | None) -> str | None:
    """Format Kafka's time of a record; a time at either end of the range may lie beyond it."""
    from pipelines.protocol.records import TIMESTAMPS_MS, instant

    if at is None:
        return None
    first, last = (instant(end_ms * 1000) for end_ms in TIMESTAMPS_MS)
    return utc(at) + (" or later" if at >= last else " or earlier" if at <= first else "")


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"hex:{value.hex()}"


def _position(row: dict[str, Any]) -> str:
    from pipelines.dead_letters.triage import position_as_text

    return position_as_text(row)
