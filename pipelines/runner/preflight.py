"""Checks before a start: the systems answer, the table fits, and the streams belong to this pipeline.

Every check fails with one clear message and changes nothing, except that missing streams (and, if the file asks for it, the table) are
created.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from pipelines.config import OTHER_SHAPE, PipelineConfig, shape_of
from pipelines.config.sinks import PIPELINE_COLUMN
from pipelines.config.text import leaves
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.nats.stream_settings import check_stream
from pipelines.connectors.nats.streams import StreamState
from pipelines.connectors.sinks import Sink, Table
from pipelines.connectors.sources import Source, SourceFacts
from pipelines.counts import count_of
from pipelines.errors import DataLossError, HaltError
from pipelines.key_store.storage import Storage
from pipelines.protocol.existence import check_started
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import ROLES, SHAPE_KEY, STREAM_ID_KEY, Names, all_roles
from pipelines.protocol.stream_limits import LEAST_PAYLOAD_BYTES
from pipelines.protocol.topology import LegId
from pipelines.rollups.feeds import rollups_of
from pipelines.rollups.state import rollup_state

CONTACT_SECONDS = 3.0
"""Timeout of a source's first answer: short, so that whoever starts a pipeline soon reads what the start waits for."""


@dataclass(frozen=True)
class Prepared:
    """The findings of the checks: the sources by ingest leg, the tables as they are by sink leg, and the id of each stream by role."""

    sources: dict[LegId, SourceFacts]
    tables: dict[LegId, Table]
    stream_ids: dict[str, str]


def prepare(config: PipelineConfig, log: JetStream, sources: Mapping[LegId, Source], sinks: Mapping[LegId, Sink]) -> Prepared:
    """Run all checks, in the order of the data. `sources`: by ingest leg; `sinks`: by sink leg.

    Raises RetryableError while a system is away, HaltError or ConfigurationError for the rest.
    """
    facts = {leg: source.facts(CONTACT_SECONDS) for leg, source in sources.items()}
    for leg, source in sources.items():
        # Partitions of a topic that was just created may have no leader yet.
        source.known_ends(facts[leg].partitions, CONTACT_SECONDS)
    log.connect()
    if config.state_uri:
        Storage.at(config.state_uri).check()
    # Before anything is made: a file of another shape leaves no table.
    streams = existing_streams(config, log)
    tables = {leg: sink.ensure() for leg, sink in sinks.items()}
    for leg, sink in sinks.items():
        if rollups_of(seen := config.seen_from(leg)):
            rollup_state(seen, sink).check(tables[leg])
    stream_ids = ensure_streams(config, log, streams)
    for leg, sink in sinks.items():
        check_existing_rows(config.seen_from(leg), log, sink, tables[leg])
    return Prepared(facts, tables, stream_ids)


def existing_streams(config: PipelineConfig, log: JetStream) -> dict[str, StreamState | None]:
    """Return the streams by role, None for one that is missing. Change nothing.

    Raise HaltError for a file of another shape, a stream with other settings or a server that takes no large frame; DataLossError where
    only some are missing.
    """
    log.check_payload(LEAST_PAYLOAD_BYTES)
    names, roles = Names(config.pipeline_id), all_roles(config.streams, config.topology.outs)
    found = dict(zip(roles, log.states([names.stream(role) for role in roles]).values(), strict=True))
    shape = _shape_text(config)
    for present in filter(None, found.values()):
        _check_same_shape(config, present, shape)
    missing = [role for role, state in found.items() if state is None]
    # Streams that never held a message are being created, by a start that was killed or by one beside ours.
    if missing and any(state is not None and state.last_sequence for state in found.values()):
        raise DataLossError(
            f"starting pipeline {config.pipeline_id}: of its streams {', '.join(names.stream(role) for role in missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; restore all streams from one moment, or delete the pipeline and start it anew"
        )
    for role, state in found.items():
        if state is not None:
            check_stream(state.settings, names.subjects(role))
    return found


def ensure_streams(config: PipelineConfig, log: JetStream, found: Mapping[str, StreamState | None]) -> dict[str, str]:
    """Create the streams that `existing_streams` has missed, and give all as many replicas as the file names; return the ids by role.

    Raise HaltError if a start beside this one has created them for a file of another shape.
    """
    names, shape, ids = Names(config.pipeline_id), _shape_text(config), {}
    replicas = config.resources.nats.stream.replicas
    for role, state in found.items():
        if state is None:
            metadata = {STREAM_ID_KEY: uuid4().hex[:16], SHAPE_KEY: shape}
            size, is_ledger = _limit(config, role), role == "ledger"
            state = log.ensure_stream(names.stream(role), names.subjects(role), metadata, size or -1, is_ledger, replicas or 1)
            _check_same_shape(config, state, shape)
        elif replicas is not None and state.settings.num_replicas != replicas:
            log.set_replicas(names.stream(role), replicas)
        ids[role] = state.metadata[STREAM_ID_KEY]
    return ids


def _limit(config: PipelineConfig, role: str) -> int:
    """Return the largest size of a stream, 0 for unlimited: streams that share the bodies of frames share the limit."""
    if role == "dlq":
        return config.dead_letters.max_bytes
    is_between = role.partition("-")[0] in config.topology.roles_between
    return config.resources.nats.stream.max_bytes // config.streams if is_between else 0


def _check_same_shape(config: PipelineConfig, state: StreamState, now: str) -> None:
    before = state.metadata.get(SHAPE_KEY, "{}")
    if before != now:
        raise HaltError(_shape_difference(config.pipeline_id, before, now))


def check_other_shape(config: PipelineConfig, log: JetStream) -> None:
    """Raise HaltError without a pipeline, and for a file whose shape differs in more than the number of buckets."""
    check_started(log, Names(config.pipeline_id))
    for role in ROLES:
        stream = Names(config.pipeline_id).stream(role)
        state = log.state(stream)
        if state is None:
            raise HaltError(f"rebucketing {config.pipeline_id}: the stream {stream} is missing; restore all streams from one moment")
        before = json.loads(state.metadata.get(SHAPE_KEY, "{}"))
        expected = json.dumps({**before, "buckets": config.buckets}, sort_keys=True, separators=(",", ":"))
        if expected != _shape_text(config):
            raise HaltError(_shape_difference(config.pipeline_id, expected, _shape_text(config)))


def change_buckets(config: PipelineConfig, log: JetStream) -> None:
    """Write the shape of `config` to the streams' metadata."""
    for role in all_roles(config.streams, config.topology.outs):
        log.set_metadata(Names(config.pipeline_id).stream(role), {SHAPE_KEY: _shape_text(config)})


def _shape_text(config: PipelineConfig) -> str:
    return json.dumps(shape_of(config), sort_keys=True, separators=(",", ":"))


def _shape_difference(pipeline: str, before: str, now: str) -> str:
    old, new = ({"streams": 1, **dict(leaves(json.loads(text)))} for text in (before, now))
    changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    edits = "; ".join(f"{key} was {old.get(key)!r}, the file has {new.get(key)!r}" for key in changed)
    way = "; stop the pipeline and run `tallyflow rebucket`, or restore the old value" if changed == ["buckets"] else ""
    return (
        f"starting pipeline {pipeline}: {edits}. These decide where a record's state is stored and may not change while the pipeline lives"
        f"{way or f'; {OTHER_SHAPE}'}"
    )


def check_existing_rows(config: PipelineConfig, log: JetStream, sink: Sink, table: Table) -> None:
    """Raise HaltError when the sink of `config` has never sent a row and the table holds rows that may be those of another pipeline.

    Two pipelines in one table would silently double each other's records, and no proof could tell their rows apart.
    """
    if config.sink.existing_rows == "keep" or _has_sent(config, log):
        return
    if config.sink.names_pipeline and (unowned := sink.count_unowned(table.database, table.name)):
        raise HaltError(
            f"starting pipeline {config.pipeline_id}: {count_of(unowned, 'row')} of table {table.full_name} name no pipeline in "
            f"{PIPELINE_COLUMN}, so another one writes it without `shared_table: true`. Nothing was started: set it in the file of that "
            "one, too, and run `tallyflow apply` there, or name another table"
        )
    has_positions = any(column.name == "_tf_sequence" for column in table.columns)
    count = sink.count_rows(table.database, table.name, has_positions)
    # A runner of this pipeline may have begun to send while the rows were counted.
    if count == 0 or _has_sent(config, log):
        return
    whose = "with positions, of another pipeline or an earlier pipeline of this name" if has_positions else "of unknown origin"
    raise HaltError(
        f"starting pipeline {config.pipeline_id}: it has never sent a row, and table {table.full_name} holds {count_of(count, 'row')} "
        f"{whose}. Nothing was started, because records that are already in the table would be doubled: name another table, or empty this "
        f"one (TRUNCATE TABLE {table.full_name}). If both pipelines are to write it, set "
        "`shared_table: true` in both files. If it continues where another program has stopped, set `start_group` or `start_offsets` "
        "in the source, to begin there, and `existing_rows: keep` in the sink; audit, verify and the checks will report the rows as extra"
    )


def _has_sent(config: PipelineConfig, log: JetStream) -> bool:
    names = Names(config.pipeline_id)
    if log.state(names.stream("ledger")) is None:
        return False
    sink = read_chain(log, names, config.sink_leg.chain)
    return sink.done is not None or sink.plan is not None
