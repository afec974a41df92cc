"""The command that writes a first pipeline file from a sample of records."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as Columns

from pipelines.cli.arguments import AsJson, announce, err, errors_as_exit, out, print_json
from pipelines.counts import count_of
from pipelines.errors import SampleError

if TYPE_CHECKING:
    from pipelines.connectors.sinks import Table
    from pipelines.init.columns import Column
    from pipelines.init.file_text import Place
    from pipelines.init.records import Sample
    from pipelines.init.run import Draft

_KAFKA, _CLICKHOUSE = "${KAFKA_BOOTSTRAP}", "${CLICKHOUSE_HOST}:${CLICKHOUSE_PORT}"
_LOGIN = {
    "protocol": "${KAFKA_SECURITY_PROTOCOL:-PLAINTEXT}",
    "mechanism": "${KAFKA_SASL_MECHANISM:-NO_AUTH}",
    "username": "${KAFKA_SASL_USERNAME:-}",
    "password": "${KAFKA_SASL_PASSWORD:-}",
}
_ADDRESS = re.compile(r"(?P<host>\$\{[^}]*\}|\[[^]]+\]|[^:]+):(?P<port>\$\{[^}]*\}|[0-9]+)")


FindServers = Callable[[str], None]
"""Adds the local servers that the references of a text stand for to the environment, and says which."""
FIND_SERVERS = "pipelines.cli.init.find_servers"
"""Where a context has it among its `meta`; this room knows no local servers."""


@dataclass(frozen=True)
class _Choice:
    """What options and answers say. `asks_table`: ClickHouse is asked whether the table exists."""

    topic: str
    brokers: str
    clickhouse: str
    database: str
    table: str
    from_file: Path | None
    most: int
    asks_table: bool

    def place(self) -> "Place":
        from pipelines.init.file_text import Place

        if not (parts := _ADDRESS.fullmatch(self.clickhouse)):
            raise typer.BadParameter(f"{self.clickhouse!r} is not host:port", param_hint="--clickhouse")
        login = {"username": "${CLICKHOUSE_USER:-default}", "password": "${CLICKHOUSE_PASSWORD:-}"}
        server = {"host": parts["host"].strip("[]"), "port": parts["port"], "database": self.database, **login}
        return Place(_pipeline_id(self.topic), self.topic, {"brokers": self.brokers, **_LOGIN}, server, self.table)


def init(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="The pipeline file to write. Default: the topic's name, .yaml.", dir_okay=False)
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Topic to read.")] = None,
    brokers: Annotated[
        str | None, typer.Option(help="Bootstrap servers, host:port with commas between, or a reference. Default: ${KAFKA_BOOTSTRAP}.")
    ] = None,
    clickhouse: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="ClickHouse over HTTP. Default: ${CLICKHOUSE_HOST}:${CLICKHOUSE_PORT}.")
    ] = None,
    database: Annotated[str, typer.Option(help="Database of the table.")] = "default",
    table: Annotated[str | None, typer.Option(help="Table, which may exist. Default: the topic's name.")] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file", help="Sample a file with a JSON value per line; then nothing is connected to.", exists=True, dir_okay=False
        ),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, max=100_000, help="Records to sample, the newest ones.")] = 1000,
    dedup_key: Annotated[
        str | None, typer.Option(help="Drop copies: records whose value of this field was seen within the window.")
    ] = None,
    dedup_window: Annotated[str, typer.Option(help="Window of --dedup-key.")] = "24h",
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: take the defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files if they exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a first pipeline file for a topic, from a sample of its records: fields, types, units of times, table and sorting key.

    The file passes `validate`, `lint` and `preview`; beside it lies the statement of the proposed table, unless the table exists. Reads
    Kafka with a consumer of no group, asks ClickHouse for the table, changes nothing on either. Without addresses in options and variables
    it takes the servers that `tallyflow up` runs. Secrets are references such as ${CLICKHOUSE_PASSWORD}.
    """
    from pipelines.init.run import draft

    asks = not (yes or as_json)
    with errors_as_exit():
        topic = topic or _asked("Topic", from_file.stem if from_file else "", asks, "--topic")
        choice = _Choice(
            topic,
            brokers or _asked("Brokers", _KAFKA, asks and not from_file),
            clickhouse or _asked("ClickHouse, host:port over HTTP", _CLICKHOUSE, asks and not from_file),
            database,
            table or _asked("Table", _identifier(topic), asks),
            from_file,
            sample,
            asks_table=from_file is None or clickhouse is not None,
        )
        file = file or Path(f"{_file_name(topic)}.yaml")
        _check_free([file, file.with_suffix(".sql")], force)
        place, taken, found = _sampled(choice, context.meta[FIND_SERVERS])
        made = draft(place, taken, found, (dedup_key, dedup_window) if dedup_key else None)
        if asks:
            _print_fields(made, taken)
            if not dedup_key and (key := _asked_key(made)):
                made = draft(place, taken, found, (key, dedup_window))
            typer.confirm(f"Write {file}?", default=True, abort=True)
        _write(file, made.text, force)
        if made.statement:
            _write(file.with_suffix(".sql"), made.statement, force)
    if as_json:
        print_json(_document(made, taken, file))
        return
    if not asks:
        _print_fields(made, taken)
    _print_result(made, taken, file)


def _asked(what: str, default: str, asks: bool, option: str = "") -> str:
    """Return the answer to a question, or the default without one. Raise BadParameter if there is neither."""
    if asks:
        return str(typer.prompt(what, default=default or None))
    if not default:
        raise typer.BadParameter("is required", param_hint=option)
    return default


def _asked_key(made: "Draft") -> str:
    """Return the field by which copies are dropped; empty to keep all, and if no field is likely."""
    key = str(typer.prompt("Drop copies by this field (none: keep all)", default="none")) if made.keys else "none"
    return "" if key == "none" else key


def _identifier(topic: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", topic)[:100]
    return f"_{name}" if name[:1].isdigit() else name or "records"


def _file_name(topic: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", topic).lstrip(".") or "pipeline"


def _pipeline_id(topic: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", topic.lower()).strip("-")[:30].strip("-")
    return name if len(name) >= 5 else f"{name or 'topic'}-pipeline"


def _check_free(files: list[Path], force: bool) -> None:
    taken = [str(file) for file in files if file.exists()]
    if taken and not force:
        raise SampleError(f"writing {' and '.join(taken)}: already there; name another file, or overwrite with --force")


def _write(file: Path, text: str, force: bool) -> None:
    """Write a file. Raise SampleError if it cannot be written; without `force` also if somebody has made it meanwhile."""
    try:
        with file.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise SampleError(f"writing {file}: {error.strerror}") from error


def _sampled(choice: _Choice, find: FindServers) -> "tuple[Place, Sample, Table | None]":
    """Return the place, the sample, and the facts of the table if it exists; only what is needed is connected to."""
    from pipelines.init.records import of_lines, of_topic
    from pipelines.init.run import addresses_of, config_of, existing_table

    place, file = choice.place(), choice.from_file
    find(addresses_of(place, reads_topic=file is None, asks_table=choice.asks_table))
    config = config_of(place, reads_topic=file is None)
    if file is None:
        announce(f"reading up to {count_of(choice.most, 'record')} of {choice.topic}")
        taken = of_topic(config.sources[0], choice.most)
    else:
        with file.open("rb") as lines:
            taken = of_lines(str(file), lines, choice.most)
    found = existing_table(config) if choice.asks_table else None
    return replace(place, creates=found is None), taken, found


def _print_fields(made: "Draft", taken: "Sample") -> None:
    shown = Columns("field", "type", "null", "distinct", "column", box=None, expand=True)
    # An example is cut before a type is: the other columns take the room that they need.
    shown.add_column("example", ratio=1, no_wrap=True)
    for column in made.columns:
        facts = column.facts
        kinds = ", ".join(facts.kinds) or "null"
        notation = f" {column.notation}" if column.notation else ""
        shown.add_row(
            facts.name,
            f"{column.source or kinds}{notation}",
            f"{facts.null_share:.1%}" if facts.null_share else "",
            f"{facts.distinct:,}",
            _becomes(column) if column.type else f"left out: {column.notes[-1] if column.notes else ''}",
            _example(column),
        )
    out.print(f"{count_of(taken.records, 'record')} of {taken.where}", highlight=False, markup=False)
    out.print(shown, markup=False, highlight=False)
    if made.keys:
        keys = ", ".join(f"{name} ({share:.1%} distinct)" for name, share in made.keys[:5])
        out.print(f"candidate keys: {keys}", markup=False, highlight=False, soft_wrap=True)


def _becomes(column: "Column") -> str:
    """Return the column's type, and its name where that is not the field's."""
    return column.type if column.name == column.facts.name else f"{column.name} {column.type}"


def _example(column: "Column") -> str:
    from pipelines.init.columns import as_text

    text = as_text(column.facts.values[0]) if column.facts.values else ""
    return text if len(text) <= 32 else f"{text[:31]}…"


def _print_result(made: "Draft", taken: "Sample", file: Path) -> None:
    out.print(_summary(made, taken), markup=False, highlight=False, soft_wrap=True)
    for reason, count in made.reasons.items():
        out.print(f"  {count:,} rejected: {reason}", markup=False, highlight=False, soft_wrap=True)
    for finding in made.findings:
        out.print(f"  line {finding.line}: {finding.code}: {finding.message}", markup=False, highlight=False, soft_wrap=True)
    beside = f", and {file.with_suffix('.sql')}, the statement of the proposed table" if made.statement else ""
    out.print(f"wrote {file}{beside}", markup=False, highlight=False, soft_wrap=True)
    if taken.empty or taken.unreadable:
        found = ((taken.empty, "without a value"), (taken.unreadable, "without a JSON object"))
        others = ", ".join(f"{count_of(count, 'record')} {what}" for count, what in found if count)
        become = "becomes a dead letter" if taken.empty + taken.unreadable == 1 else "become dead letters"
        err.print(f"note: {others} {become}", style="yellow", markup=False, highlight=False)


def _summary(made: "Draft", taken: "Sample") -> str:
    outcomes = {name: count for name, count in made.outcomes.items() if name != "row"}
    others = "".join(f", {count:,} {name}" for name, count in sorted(outcomes.items()))
    return f"preview of {count_of(len(taken.documents), 'JSON object')}: {count_of(made.outcomes.get('row', 0), 'row')}{others}"


def _document(made: "Draft", taken: "Sample", file: Path) -> dict[str, Any]:
    return {
        "file": str(file),
        "records": {"sampled": taken.records, "objects": len(taken.documents), "empty": taken.empty, "unreadable": taken.unreadable},
        "fields": [
            {
                "name": column.facts.name,
                "kinds": dict(column.facts.kinds),
                "null_share": round(column.facts.null_share, 6),
                "distinct": column.facts.distinct,
                "type": column.source,
                "notation": column.notation,
                "column": column.name if column.type else None,
                "column_type": column.type or None,
                "notes": list(column.notes),
            }
            for column in made.columns
        ],
        "keys": [{"name": name, "distinct_share": round(share, 6)} for name, share in made.keys],
        "outcomes": dict(made.outcomes),
        "reasons": dict(made.reasons),
        "findings": [{"line": one.line, "code": one.code, "message": one.message} for one in made.findings],
        "statement": made.statement or None,
    }
