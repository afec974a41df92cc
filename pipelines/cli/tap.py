"""The command `tap`: records as they pass a stream of a pipeline."""

import json
from collections.abc import Mapping
from contextlib import closing, suppress
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

import typer

from pipelines.cli.arguments import AsJson, File, err, errors_as_exit, out
from pipelines.config import load

_SHOWN_CHARACTERS = 400


class At(StrEnum):
    """Where records are looked at."""

    RAW = "raw"
    OUT = "out"
    DLQ = "dlq"


class From(StrEnum):
    """The first record: the oldest that is stored, or the next that comes."""

    START = "start"
    NOW = "now"


def tap(
    file: File,
    at: Annotated[At, typer.Option(help="raw: records of Kafka; out: rows of a table, before the insert; dlq: dead letters.")] = At.RAW,
    key: Annotated[
        list[str] | None,
        typer.Option(help="Only this key: the Kafka key at raw and dlq, the dedup key at out, repeated for each of its fields."),
    ] = None,
    begin: Annotated[From, typer.Option("--from", help="From the oldest record that NATS still holds, or from now on.")] = From.NOW,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many records. Default: until Ctrl-C.")] = None,
    until_now: Annotated[
        bool, typer.Option("--until-now", help="End where the stream ends; with --from start, all that is stored.")
    ] = False,
    source: Annotated[str | None, typer.Option(metavar="ID", help="Only records of this source, at raw and dlq.")] = None,
    sink: Annotated[str | None, typer.Option(metavar="ID", help="The sink whose rows are shown, at out, if there are several.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show records as they pass: read from NATS only, and nothing is left there. A line each, or with --json an object a line."""
    from pipelines.connectors.nats.client import JetStream
    from pipelines.preview.tap import Tap

    if source is not None and at is At.OUT:
        raise typer.BadParameter("rows of a table have no source; use it with --at raw or --at dlq", param_hint="--source")
    if sink is not None and at is not At.OUT:
        raise typer.BadParameter("only rows of a table have a sink; use it with --at out", param_hint="--sink")
    with errors_as_exit():
        config = load(file)
        with closing(JetStream.of(config, "tallyflow-tap").connect()) as log, suppress(KeyboardInterrupt):
            look = Tap(config, log, at.value, source, sink, key or ())
            if key:
                columns = ", ".join(name for name, _ in look.key_columns)
                what = f"the dedup key, column {columns}" if at is At.OUT else "the Kafka key"
                err.print(f"--key is compared with {what}", markup=False, highlight=False)
            for record in islice(look.records(look.beginning(begin is From.NOW), lambda: until_now), limit):
                if as_json:
                    typer.echo(json.dumps(record))
                else:
                    out.print(line_of(record), markup=False, highlight=False, soft_wrap=True)


def line_of(record: Mapping[str, Any]) -> str:
    """Return a record as one line: its raw position and Kafka coordinates, why it was rejected, its key, and its value or its columns."""
    parts = [record["position"], f"{record['topic']}/{record['partition']}/{record['offset']}"]
    if "stage" in record:
        parts.append(f"{record['stage']}: {record['code']}{' of ' + record['field'] if record['field'] else ''}")
    if "row" in record:
        return "  ".join([*parts, _short(json.dumps(record["row"], ensure_ascii=False))])
    if record["key"] is not None:
        parts.append(f"key {_short(record['key'])}")
    return "  ".join([*parts, "null" if record["value"] is None else _short(record["value"])]).replace("\n", " ")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text):,} characters)"
