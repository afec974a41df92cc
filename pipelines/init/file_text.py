"""The text of the pipeline file: YAML with comments, written line by line. Texts from outside are quoted, secrets are references."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipelines.counts import count_of
from pipelines.init.columns import Column

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_NO_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}")


@dataclass(frozen=True)
class Place:
    """Where a file reads and writes. Texts are literal or references such as `${KAFKA_BOOTSTRAP}`.

    `kafka` and `clickhouse`: entries of the `connection_params`, in their order. `creates`: the sink makes the table.
    """

    pipeline_id: str
    topic: str
    kafka: Mapping[str, str]
    clickhouse: Mapping[str, str]
    table: str
    creates: bool = True
    nats_url: str = "${NATS_URL}"


@dataclass(frozen=True)
class Content:
    """What a file says of records. `dedup`: the key and the window, if copies are dropped. `unfilled`: columns that no field fills."""

    records: int
    columns: Sequence[Column]
    keys: Sequence[tuple[str, float]]
    sorted_by: Sequence[str]
    dedup: tuple[str, str] | None = None
    unfilled: Sequence[str] = ()

    @property
    def whole_value(self) -> str:
        """The name of the field that is the whole value; no other field has it."""
        name = "whole_value"
        while any(name in (column.facts.name, column.field) for column in self.columns):
            name += "_"
        return name


def text_of(place: Place, content: Content) -> str:
    """Return the text of the file."""
    return "\n".join([*_head(place, content), *_source(place, content), *_transforms(content), *_sink(place, content), ""])


def setting(text: str) -> str:
    """Return a setting of a connection as a YAML scalar; a reference stays one."""
    return f'"{text}"' if _REFERENCE.fullmatch(text) else scalar(text)


def scalar(text: str) -> str:
    """Return a text as a YAML scalar in the flow style, with nothing that the loader replaces."""
    escaped = text.replace("${", "$${")
    return escaped if _BARE.fullmatch(escaped) and escaped.lower() not in _NO_TEXT else json.dumps(escaped, ensure_ascii=False)


def _head(place: Place, content: Content) -> Iterator[str]:
    yield f"# Made by `tallyflow init` from {count_of(content.records, 'record')}. Types are guesses from these; a value of another type"
    yield "# becomes a dead letter with its reason, and no value is changed. Next: tallyflow preview, then run."
    yield from ("version: v3", f"pipeline_id: {scalar(place.pipeline_id)}", "", "sources:")


def _source(place: Place, content: Content) -> Iterator[str]:
    yield from ("  - type: kafka", f"    topic: {scalar(place.topic)}", "    connection_params:")
    for name, value in place.kafka.items():
        yield f"      {name}: {_brokers(value) if name == 'brokers' else setting(value)}"
    yield "    # The first start reads the topic from its beginning; `latest` leaves out what it holds now."
    yield "    consumer_group_initial_offset: earliest"
    yield "    schema_fields:"
    readable = [column for column in content.columns if not column.extracted]
    for column in readable:
        entry = {"name": column.facts.name, "type": column.source} | _notation(column)
        yield from (f"      # {_comment(note)}" for note in _notes(column))
        yield f"      {'- ' if column.type else '# left out: '}{_flow(entry if column.type else {'name': column.facts.name})}"
    if any(column.extracted and column.type for column in content.columns):
        yield "    columns:"
        yield "      # For the fields that only the whole value has in one type."
        yield f"      - {{name: {content.whole_value}, from: value}}"


def _brokers(text: str) -> str:
    brokers = [text] if _REFERENCE.fullmatch(text) else text.split(",")
    return f"[{', '.join(setting(broker.strip()) for broker in brokers)}]"


def _notation(column: Column) -> dict[str, str]:
    if not column.notation:
        return {}
    return {"format" if "%" in column.notation else "unit": column.notation}


def _notes(column: Column) -> Iterator[str]:
    if column.type and column.facts.null_share:
        yield f"null or absent in {column.facts.null_share:.1%} of the sample"
    yield from column.notes


def _transforms(content: Content) -> Iterator[str]:
    extracted = [column for column in content.columns if column.extracted and column.type]
    if extracted or content.dedup:
        yield from ("", "transforms:")
    if extracted:
        yield from ("  - type: compute", "    config:", "      fields:")
        for column in extracted:
            path = column.extracted.replace("'", "''")
            entry = {"name": column.field, "expression": f"json_extract_string({content.whole_value}, '{path}')", "type": "string"}
            yield from (f"        # {_comment(column.facts.name)}: {_comment(note)}" for note in _notes(column))
            yield f"        - {_flow(entry)}"
    if content.dedup:
        key, window = content.dedup
        yield "  # A record with a key that was seen within the window is a copy, and dropped."
        yield from ("  - type: dedup", f"    config: {{key: {scalar(key)}, time_window: {window}}}")
    elif content.keys:
        shares = ", ".join(f"{_comment(name)} ({share:.1%} distinct)" for name, share in content.keys[:3])
        yield ""
        yield f"# Likely keys: {shares}. To drop copies:"
        start = "" if extracted else "# transforms:\n"
        yield f"{start}#   - type: dedup\n#     config: {{key: {scalar(_comment(content.keys[0][0]))}, time_window: 24h}}"


def _sink(place: Place, content: Content) -> Iterator[str]:
    yield from ("", "sink:", "  type: clickhouse", "  connection_params:")
    yield from (f"    {name}: {setting(value) if not value.isdigit() else value}" for name, value in place.clickhouse.items())
    yield f"  table: {place.table}"
    if place.creates:
        yield "  create_table: true"
        if content.sorted_by:
            yield f"  order_by: [{', '.join(content.sorted_by)}]"
    yield "  max_batch_size: 50000"
    yield "  max_delay_time: 1s"
    yield "  mapping:"
    for column in content.columns:
        if column.type:
            yield f"    - {_flow({'name': column.field, 'column_name': column.name, 'column_type': column.type})}"
    if content.unfilled:
        yield f"  # No field fills these columns of the table: {', '.join(map(_comment, content.unfilled))}"
    yield from ("", "nats:", f"  url: {setting(place.nats_url)}")


def _flow(entry: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{name}: {scalar(value)}' for name, value in entry.items())}}}"


def _comment(text: str) -> str:
    """Return a text for a comment: one line, without characters that end it."""
    return "".join(character if character.isprintable() else " " for character in text)[:200]
