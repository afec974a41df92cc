"""Analysis of a sound config: notes for its author, what this release cannot run, its version and its shape. Pure."""

import hashlib
import json
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from pipelines.config.base import LiteralSecret, Location, Model
from pipelines.config.durations import format_duration
from pipelines.config.fields import BEHIND_ALL, after_join, all_passed, at_sink, checked, definitions, joins, of_source, path_of
from pipelines.config.order import in_order
from pipelines.config.pipeline import PipelineConfig
from pipelines.config.sinks import ClickHouseConnection
from pipelines.config.sources import KafkaConnection, KafkaSource
from pipelines.config.tables.postgres import PostgresConnection
from pipelines.config.text import path_text, read_tree
from pipelines.config.transforms import DedupConfig
from pipelines.config.transforms.lookup import LookupConfig
from pipelines.protocol.stream_limits import bytes_kept_of_out
from pipelines.types.columns import parse_type

BESIDE_THE_RUN = frozenset({"checks", "alerts"})
"""Fields of the root that no runner reads."""
_NATIVE_PORTS = (9000, 9440)
_IS_EXPR = "is read as expr-lang: it is no SQL over these fields"


def notes(config: PipelineConfig) -> list[str]:
    """Return the notes of `validate` on a sound file: ignored fields, literal secrets, settings that weaken a guarantee.

    One sentence each.
    """
    return [
        f"{path_text(at)}: {message}"
        for rule in (
            secrets,
            ignored,
            order,
            _expressions,
            retention,
            limits,
            kafka_connections,
            nats_connection,
            sink_connections,
            table_connections,
            unused_tables,
            deliveries,
            routes,
            emitted_nulls,
        )
        for at, message in rule(config)
    ]


Notes = Iterator[tuple[Location, str]]


def secrets(config: PipelineConfig) -> Notes:
    for at, secret in _literals(config, ()):
        if secret.get_secret_value():
            yield at, "the secret is written into the file: use ${NAME} or {file: PATH}"


def _literals(value: Any, at: Location) -> Iterator[tuple[Location, LiteralSecret]]:
    if isinstance(value, LiteralSecret):
        yield at, value
    elif isinstance(value, Model):
        for name, field in type(value).model_fields.items():
            yield from _literals(getattr(value, name), (*at, field.alias or name))
    elif isinstance(value, tuple | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _literals(item, (*at, key))


def ignored(config: PipelineConfig) -> Notes:
    resources = config.resources
    for name, value in (("sources", resources.sources), ("transform", resources.transform), ("sink", resources.sink)):
        if value:
            yield ("resources", name), "replicas, requests, limits and storage are ignored: Spark and its master decide them"
    if resources.nats.stream.max_messages is not None:
        yield ("resources", "nats", "stream", "maxMsgs"), "is ignored: one message carries many records; use max_bytes"
    for index, source in enumerate(config.sources):
        for name in ("schema_registry", "schema_version"):
            if getattr(source, name) is not None:
                why = "schema_fields describe the JSON, a value that starts with a registry's schema id becomes a dead letter"
                yield ("sources", index, name), f"is ignored: {why}"
    for seen in config.by_table:
        if seen.sink.order_by and not seen.sink.create_table:
            yield (*seen.sink_at, "order_by"), "is ignored without create_table"
        if seen.sink.create_rollups and not seen.sink.rollups:
            yield (*seen.sink_at, "create_rollups"), "is ignored without rollups"


def order(config: PipelineConfig) -> Notes:
    indexes = [index for index, _ in in_order(config)]
    if indexes != sorted(indexes):
        runs = ", ".join(f"{config.transforms[index].type} ([{index}])" for index in indexes)
        yield ("transforms",), f"run as GlassFlow runs them: {runs}; `transforms_order: file` keeps the order of the file"


def _expressions(config: PipelineConfig) -> Notes:
    for passed in all_passed(config):
        for asked in passed.transform.config.expressions():
            found = checked(asked, passed.before, passed.transform.config.language)
            at: Location = ("transforms", passed.index, "config", *asked.at)
            if asked.name and asked.type is None:
                yield at, f"{asked.name} is {found.type}"
            if found.language == "expr" and passed.transform.config.language is None:
                yield at, _IS_EXPR
    for seen in config.by_sink:
        for asked in seen.sink.expressions():
            if seen.sink.language is None and checked(asked, at_sink(config), None).language == "expr":
                yield (*seen.sink_at, *asked.at), _IS_EXPR


def retention(config: PipelineConfig) -> Notes:
    kept = config.resources.nats.stream.max_age
    windows: list[tuple[Location, Any]] = [
        (("transforms", index, "config", "time_window"), transform.config.time_window)
        for index, transform in enumerate(config.transforms)
        if transform.type == "dedup"
    ]
    if config.join and joins(config):
        sides = (("left_source", config.join.left_source), ("right_source", config.join.right_source))
        windows.extend((("join", name, "time_window"), side.time_window) for name, side in sides if side)
    for at, window in windows:
        if window > kept:
            longer = f"{format_duration(window)} is longer than resources.nats.stream.max_age ({format_duration(kept)})"
            yield at, f"{longer}: a lost key store could not be rebuilt"


def limits(config: PipelineConfig) -> Notes:
    limit, kept = config.resources.nats.stream.max_bytes, bytes_kept_of_out(config.buckets)
    if 0 < limit < kept:
        yield (
            ("resources", "nats", "stream", "max_bytes"),
            f"the last frame of each of {config.buckets} buckets always stays in out; with one more frame they may take {kept} bytes, so "
            "large rows could block the pipeline forever",
        )


def kafka_connections(config: PipelineConfig) -> Notes:
    for index, source in enumerate(config.sources):
        connection = getattr(source, "connection_params", None)
        if not isinstance(connection, KafkaConnection):
            continue
        at: Location = ("sources", index, "connection_params")
        if connection.skip_tls_verification:
            yield (*at, "skip_tls_verification"), "anyone can impersonate the brokers"
        in_the_clear = not connection.protocol.endswith("SSL") and not all(map(_is_here, connection.brokers))
        if connection.logs_in and connection.mechanism == "PLAIN" and in_the_clear:
            yield (*at, "protocol"), "the password is sent unencrypted"
        if (connection.oauth_token_endpoint_url or "").lower().startswith("http:") and not _is_here(connection.oauth_token_endpoint_url):
            yield (*at, "oauth_token_endpoint_url"), "the client secret is sent unencrypted: use https"
        if connection.username and not connection.logs_in:
            yield (*at, "username"), f"is not used: protocol {connection.protocol} with mechanism {connection.mechanism} does not log in"


def nats_connection(config: PipelineConfig) -> Notes:
    nats = config.nats
    in_the_clear = any(url.startswith("nats://") and not _is_here(url) for url in nats.servers)
    if (nats.password or nats.token) and not nats.tls and in_the_clear:
        yield ("nats", "url"), "the credentials are sent unencrypted: use tls://, or set tls"


def _is_here(url: str | None) -> bool:
    """Return whether the URL names a server on this host.

    Only the host's name counts; nothing is resolved.
    """
    try:
        host = urlsplit(url if url and "://" in url else f"//{url or ''}").hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def sink_connections(config: PipelineConfig) -> Notes:
    for seen in config.by_table:
        yield from _sink_connection(seen)


def table_connections(config: PipelineConfig) -> Notes:
    for name, table in config.tables.items():
        connection = getattr(table, "connection_params", None)
        if isinstance(connection, ClickHouseConnection):
            yield from _clickhouse(connection, ("tables", name, "connection_params"))
        if isinstance(connection, PostgresConnection) and connection.password.get_secret_value():
            is_here = connection.host.startswith("/") or _is_here(connection.host)
            if connection.sslmode in ("disable", "prefer") and not is_here:
                at: Location = ("tables", name, "connection_params", "sslmode")
                yield at, "the password and the rows may be sent unencrypted: use require, verify-ca or verify-full"


def unused_tables(config: PipelineConfig) -> Notes:
    read = {transform.config.table for transform in config.transforms if isinstance(transform.config, LookupConfig)}
    for name in config.tables:
        if name not in read:
            yield ("tables", name), "no look-up reads it, so it is never fetched"


def _sink_connection(config: PipelineConfig) -> Notes:
    yield from _clickhouse(config.sink.connection_params, (*config.sink_at, "connection_params"))


def _clickhouse(connection: ClickHouseConnection, at: Location) -> Notes:
    host = f"[{connection.host}]" if ":" in connection.host else connection.host
    if connection.password.get_secret_value() and not connection.secure and not _is_here(host):
        yield (*at, "secure"), "the password and the rows are sent unencrypted"
    if connection.skip_certificate_verification:
        yield (*at, "skip_certificate_verification"), "anyone can impersonate the server"
    if connection.http_port is None and connection.port in _NATIVE_PORTS:
        native = f"{connection.port} is usually the native port, and Tallyflow speaks HTTP"
        yield (*at, "port"), f"{native}: set http_port (usually 8123 or 8443)"


def deliveries(config: PipelineConfig) -> Notes:
    for seen in config.by_table:
        if seen.sink.delivery == "at_least_once":
            yield (*seen.sink_at, "delivery"), "rows may be duplicated after a crash"


def emitted_nulls(config: PipelineConfig) -> Notes:
    if config.join is None or not joins(config) or config.join.unmatched != "emit" or config.join.right_source is None:
        return
    made = {one.name for passed in after_join(config)[0] if passed.transform.computes for one in passed.transform.config.expressions()}
    of_right = {one.joined_name for one in config.join.output_fields if one.source_id == config.join.right_source.source_id} - made
    for seen in config.by_sink:
        for index, entry in enumerate(seen.sink.mapping):
            if entry.name in of_right and not parse_type(entry.column_type).takes_null:
                why = "unless the table gives it a DEFAULT, a left record without a match becomes a dead letter, and is not emitted"
                yield (*seen.sink_at, "mapping", index, "column_type"), f"is not Nullable: {why}"


def routes(config: PipelineConfig) -> Notes:
    routed = [seen.sink for seen in config.by_sink if not config.topology.refuser_of(seen.sink_leg)]
    if len(routed) > 1 and all(sink.when for sink in routed):
        yield ("sinks",), "each has a `when`: a record that none takes has no row, and is counted as taken by no sink"


def unsupported(config: PipelineConfig) -> list[str]:
    """List what the file asks for and this release does not run: one sentence each, with its path."""
    messages: list[str] = []
    if joins(config):
        messages += _before_a_join(config)
        if config.fallbacks:
            messages.append("sinks: a fallback (on_refused) behind a join is not supported yet")
    elif len(config.sources) > 1:
        messages += [
            f"transforms[{index}]: a dedup of one source among several is not supported yet; without source_id it compares all records"
            for index, transform in in_order(config)
            if transform.type == "dedup" and transform.source_id is not None
        ]
    return messages


def _before_a_join(config: PipelineConfig) -> Iterator[str]:
    """Yield what the dedup of a side of a join asks for and does not do."""
    for source in config.sources:
        for passed in of_source(config, source)[0]:
            asked, at = passed.transform.config, f"transforms[{passed.index}]"
            if isinstance(asked, DedupConfig) and asked.time_field is not None:
                yield f"{at}: a dedup by event time before a join is not supported yet; without time_field it compares arrivals"
            if isinstance(asked, DedupConfig) and asked.keep_duplicates:
                yield f"{at}: keep_duplicates before a join is not supported yet"


def document_of(config: PipelineConfig) -> dict[str, Any]:
    """Return the config as JSON values in the vocabulary of the file, without defaults and without connections.

    Left out: every `connection_params` but the database of a sink, `nats`, `state_uri`, `checks` and `alerts`. So the document holds no
    secret, describes only the outcome of each record, and does not change with a password or a broker's address.
    """
    sink_connection = set(type(config.sink.connection_params).model_fields) - {"database"}
    document: dict[str, Any] = config.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        exclude={
            "nats": True,
            "state_uri": True,
            **dict.fromkeys(BESIDE_THE_RUN, True),
            "sources": {"__all__": {"connection_params"}},
            "only_sink": {"connection_params": sink_connection},
            "sinks": {"__all__": {"connection_params": sink_connection}},
            "tables": {"__all__": {"connection_params"}},
        },
    )
    return {"version": config.version, **document}


def version_of(config: PipelineConfig) -> str:
    """Return the config version: 16 hex digits of the SHA-256 of `document_of` and of the code of functions.

    It is stable across processes and machines. A field that a later release adds does not change the version while it has its default; so
    no default may ever change.
    """
    codes = [code for transform in config.transforms if (code := transform.config.code())]
    document = {**document_of(config), **({"code": codes} if codes else {})}
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def run_digest(text: str) -> str:
    """Return a digest of 16 hex digits of what a runner acts on: all of a sound file but `checks` and `alerts`.

    Unlike the version, the digest covers the connections as the file gives them: `${NAME}` is not replaced.
    """
    tree, _ = read_tree(text, "the pipeline file")
    acted_on = {name: value for name, value in tree.items() if name not in BESIDE_THE_RUN}
    return hashlib.sha256(json.dumps(acted_on, sort_keys=True, default=str).encode()).hexdigest()[:16]


OTHER_SHAPE = (
    "restore them, or give the changed pipeline another pipeline_id and another table: it reads the topic anew, or from start_offsets on"
)
"""What to do where the shape of a file differs from that of its pipeline."""


def shape_of(config: PipelineConfig) -> dict[str, Any]:
    """Return what may not change over a pipeline's life, as JSON values: buckets, streams, sinks, fallbacks, and of sources topic and keys.

    A key (of dedup, of join) is a list of fields, or None without that stage. For dedup the shape also holds how each key field is read,
    which decides its hash, and what the window is measured on. The window itself may change. For a join it holds what its stores hold: the
    keys and the fields of each side, how each is read, and the windows, by which records were left out of the stores; a dedup's, too. By
    event time it also holds what the watermark is made of.
    """
    sides = (config.join.left_source, config.join.right_source) if config.join and joins(config) else ()
    join_keys = {side.source_id: list(side.key) for side in sides if side}
    dedups = {
        source.source_id: (passed.index, passed.transform.config)
        for source in config.sources
        for passed in path_of(config, source)
        if passed.transform.type == "dedup"
    }
    return {
        "buckets": config.buckets,
        # Left out where frames have their bodies themselves.
        **({"streams": config.streams} if config.streams > 1 else {}),
        # Each reads a stream of its own, the first one `out`.
        **({"sinks": [sink.id for sink in config.record_sinks]} if config.sinks else {}),
        # Each holds all dead letters, from the first one on.
        **({"sinks of dead letters": tables} if (tables := [config.topology.file_id(leg) for leg in config.topology.dead_letters]) else {}),
        # The only writer of a fallback's stream is the sink that refuses.
        **({"fallbacks": fallbacks} if (fallbacks := config.fallbacks) else {}),
        # The first one's leg and chain have no name, and the partitions of the others are counted behind its own.
        **({"order of sources": [source.source_id for source in config.sources]} if len(config.sources) > 1 else {}),
        "sources": {
            source.source_id: {
                "topic": source.topic,
                "dedup_key": list(dedups[source.source_id][1].key) if source.source_id in dedups else None,
                "join_key": join_keys.get(source.source_id),
                **(_join_shape(config, source, dedups.get(source.source_id, (0, None))[1]) if source.source_id in join_keys else {}),
                **(_dedup_shape(config, source, *dedups[source.source_id]) if source.source_id in dedups else {}),
            }
            for source in config.sources
        },
    }


def _join_shape(config: PipelineConfig, source: KafkaSource, dedup: DedupConfig | None) -> dict[str, Any]:
    assert config.join is not None
    side = next(one for one in (config.join.left_source, config.join.right_source) if one and one.source_id == source.source_id)
    fields = definitions(config, source, BEHIND_ALL)
    taken = [one for one in config.join.output_fields if one.source_id == source.source_id]
    return {
        "join_key_fields": [fields[name] for name in side.key],
        "join_window": format_duration(side.time_window),
        # What decides which records have met, and which were late.
        **({"join_time_field": {"name": side.time_field, **fields[side.time_field]}} if side.time_field else {}),
        **({"join_lateness": format_duration(config.join.allowed_lateness)} if side.time_field else {}),
        # By it, too, records were left out of the stores of the join.
        **({"dedup_window": format_duration(dedup.time_window)} if dedup else {}),
        "join_fields": {one.joined_name: {"field": one.name, **fields[one.name]} for one in taken},
    }


def _dedup_shape(config: PipelineConfig, source: KafkaSource, index: int, dedup: DedupConfig) -> dict[str, Any]:
    fields = definitions(config, source, index)
    shape: dict[str, Any] = {"dedup_key_fields": [fields[name] for name in dedup.key], "dedup_time": dedup.time}
    if dedup.time_field is not None:
        shape |= {
            "dedup_time_field": {"name": dedup.time_field, **fields[dedup.time_field]},
            "dedup_lateness": format_duration(dedup.allowed_lateness),
        }
    return shape
