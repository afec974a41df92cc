"""From a sample to a draft: the text of the pipeline file, checked as `validate`, `lint` and `preview` check it, and the table."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from pipelines.config import PipelineConfig, parse
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.sinks import Table
from pipelines.errors import SampleError
from pipelines.init.columns import Chooser, Column
from pipelines.init.existing import fitted
from pipelines.init.fields import fields_of, keys_of
from pipelines.init.file_text import Content, Place, text_of
from pipelines.init.records import Sample
from pipelines.init.table import order_by, statement_of
from pipelines.lint.run import Finding, findings
from pipelines.preview.declared import declared_program
from pipelines.preview.given import frames_of, of_lines
from pipelines.preview.run import preview
from pipelines.types.duckdb import open_engine

_EXPLAINED = {
    "TF008": "a text that may be a time",
    "TF009": "no field sorts the rows",
}
"""The findings of lint that a guess leaves to the author: the file says why, and ignores them."""


@dataclass(frozen=True)
class Draft:
    """A file and how it did. `outcomes`: of the sampled records in a preview; `reasons`: of the rejected ones, by how many have each.

    `statement`: creates the proposed table; empty for a table that exists. `findings`: of lint, without those that the file explains.
    """

    text: str
    columns: Sequence[Column]
    keys: Sequence[tuple[str, float]]
    statement: str
    findings: Sequence[Finding]
    outcomes: Mapping[str, int]
    reasons: Mapping[str, int] = field(default_factory=dict)


def config_of(place: Place, reads_topic: bool) -> PipelineConfig:
    """Return the config of a file of this place that reads one field. Raise ConfigurationError for faults of the place.

    `reads_topic`: the variables of connections must be set; else those that are missing stand for servers that do not exist. NATS is asked
    for nothing, so its variable may come later.
    """
    environment = {"NATS_URL": "nats://unset.invalid:4222", **os.environ}
    return parse(_skeleton(place), name="the options of init", environment=environment, offline=not reads_topic)


def addresses_of(place: Place, reads_topic: bool, asks_table: bool) -> str:
    """Return a text that refers to the servers of this place that are connected to, as the file will; to no NATS."""
    kafka = {"sources": [{"connection_params": dict(place.kafka)}]} if reads_topic else {}
    clickhouse = {"sink": {"connection_params": dict(place.clickhouse)}} if asks_table else {}
    return json.dumps({**kafka, **clickhouse, "nats": {"url": "asked for nothing"}})


def _skeleton(place: Place) -> str:
    """Return the text of a file that reads one field."""
    sample = Sample("")
    sample.add(b'{"id": "x"}')
    with open_engine() as engine:
        columns = [Chooser(engine, ["id"]).choose(one) for one in fields_of(sample.documents)]
    return text_of(place, Content(1, columns, (), ()))


def existing_table(config: PipelineConfig) -> Table | None:
    """Return the facts of the sink's table; None if it does not exist. Raise RetryableError or SampleError without an answer."""
    with closing(ClickHouse(config.sink)) as server:
        return server.inspect(config.sink.connection_params.database, config.sink.table)


def draft(place: Place, sample: Sample, table: Table | None = None, dedup: tuple[str, str] | None = None) -> Draft:
    """Return the draft of a file. Raise SampleError with a sentence for records from which none can be made.

    `table`: the one that exists. `dedup`: the key and the window, if copies are dropped.
    """
    sample.check()
    facts = fields_of(sample.documents)
    with open_engine() as engine:
        chooser = Chooser(engine, [one.name for one in facts])
        columns, unfilled = [chooser.choose(one) for one in facts], list[str]()
        if table is not None:
            columns, unfilled = fitted(chooser, columns, table)
    if not any(column.type and not column.extracted for column in columns):
        raise SampleError(f"sampling {sample.where}: no field has a value of one type that its records share; write the file by hand")
    keys = keys_of(facts, [column.field for column in columns if column.can_be_key])
    if dedup and dedup[0] not in [column.field for column in columns if column.type]:
        raise SampleError(
            f"sampling {sample.where}: no field {dedup[0]!r} to drop copies by; candidates: {', '.join(n for n, _ in keys) or 'none'}"
        )
    sorted_by = order_by(columns, [name for name, _ in keys]) if place.creates else []
    content = Content(sample.records, columns, keys, sorted_by, dedup, unfilled)
    text, found = _explained(text_of(place, content))
    outcomes, reasons = _tried(text, sample)
    statement = "" if table is not None else statement_of(place.clickhouse["database"], place.table, columns, [name for name, _ in keys])
    return Draft(text, columns, keys, statement, found, outcomes, reasons)


def _explained(text: str) -> tuple[str, list[Finding]]:
    """Return the text with the comments that lint obeys, and what lint finds besides."""
    lines = text.splitlines()
    found = _findings(text)
    for one in found:
        if one.code in _EXPLAINED:
            lines[one.line - 1] += f"  # {_EXPLAINED[one.code]} # tallyflow: ignore {one.code}"
    explained = "\n".join([*lines, ""])
    return explained, _findings(explained)


def _findings(text: str) -> list[Finding]:
    config = parse(text, name="the new file", environment=os.environ, offline=True)
    return findings(config, text, has_connections=False)


def _tried(text: str, sample: Sample) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return what becomes of the sampled objects, and the reasons of the rejected ones, by how many have each."""
    config = parse(text, name="the new file", environment=os.environ, offline=True)
    found = preview(declared_program(config), frames_of(of_lines(sample.values), config.sources))
    reasons = Counter(record.last.reason for record in found.records if record.last.outcome == "rejected")
    return found.outcomes(), reasons
