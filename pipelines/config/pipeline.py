"""The root of the pipeline file, with the parts that belong to no stage: NATS, retention, tags."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from pipelines.config import rules
from pipelines.config.alerts import Alerts
from pipelines.config.base import (
    Duration,
    Effect,
    Faults,
    Location,
    Model,
    Secret,
    Size,
    Text,
    Whole,
    Window,
    matching,
    no_flag,
    ours,
    report,
    theirs,
)
from pipelines.config.checks import Checks
from pipelines.config.fields import at_sink
from pipelines.config.on_error import OnError, OnErrorField
from pipelines.config.sinks import DEAD_LETTERS, FALLBACK_FIELDS, Sink
from pipelines.config.sources import KafkaSource, Source
from pipelines.config.table_model import TableName
from pipelines.config.tables import LookupTable
from pipelines.config.transforms import Join, Transform
from pipelines.protocol.stream_limits import LEAST_LIMIT_BYTES, MAX_FRAME_BYTES, ROOM_BYTES
from pipelines.protocol.topology import LegId, Topology

PIPELINE_ID = r"^[a-z0-9][a-z0-9-]{3,38}[a-z0-9]$"
DEFAULT_NATS_URL = "nats://127.0.0.1:4222"
_STATE_SCHEMES = ("file", "s3", "gs", "abfs", "abfss", "hdfs")


def _only_v3(value: Any) -> Any:
    if value != "v3":
        raise ValueError("must be v3: other versions of the format are not read")
    return value


Owner = Annotated[
    str,
    AfterValidator(
        matching(r"^(?:team:[A-Za-z0-9_.-]+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7})$", "must be an e-mail address, or team:name")
    ),
]


class Metadata(Model):
    """Tags and owners of the pipeline."""

    tags: tuple[Text, ...] = theirs(
        (), "Tags to find the pipeline by, shown in Dagster; `tier:gold` is the tag `tier` with the value `gold`."
    )
    owners: tuple[Owner, ...] = ours((), "Owners of the pipeline, shown in Dagster: e-mail addresses, or `team:name`.")


_SPELLINGS = {"maxAge": "max_age", "maxBytes": "max_bytes"}
"""GlassFlow's files use either spelling."""


def _with_spellings(schema: dict[str, Any]) -> None:
    for also, name in _SPELLINGS.items():
        schema["properties"][also] = {**schema["properties"][name], "description": f"The same as `{name}`."}


class StreamResources(Model):
    """How much the raw and out streams keep."""

    model_config = ConfigDict(json_schema_extra=_with_spellings)

    max_age: Window = theirs(
        timedelta(hours=24), "How long records are kept after they were delivered; this much can be rebuilt.", Effect.RELOAD
    )
    max_bytes: Size = theirs(
        0,
        "Largest size of raw and of out: 0 is unlimited, else at least 6.8 MiB. "
        "Close to the limit, delivered messages are purged early; a full stream blocks its writer.",
    )
    replicas: Literal[1, 3, 5] | None = ours(
        None,
        "Servers of a NATS cluster that have each stream; a majority of them must be up. Default: a new stream is on one server, and those "
        "that are there stay as they are. A change takes effect at the next start.",
    )
    max_messages: Whole | None = theirs(None, "Accepted and ignored: one message carries many records.", alias="maxMsgs")

    @model_validator(mode="before")
    @classmethod
    def _both_spellings(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        twice = [(also, name) for also, name in _SPELLINGS.items() if value.keys() >= {also, name}]
        report("stream", [((also,), f"is the same field as {name}, which is also given") for also, name in twice])
        return {_SPELLINGS.get(key, key): item for key, item in value.items()}

    def faults(self) -> Faults:
        if 0 < self.max_bytes < LEAST_LIMIT_BYTES:
            yield (
                ("max_bytes",),
                f"must be 0, or at least {LEAST_LIMIT_BYTES} bytes for a topic of one partition: {ROOM_BYTES} are reserved for ingest, the "
                f"partition's last frame and that of its dead letters stay ({MAX_FRAME_BYTES} each), and the next one needs space; with "
                "less, dead letters could never be redriven",
            )


class NatsResources(Model):
    """Resources of NATS."""

    stream: StreamResources = theirs(StreamResources(), "How much the streams keep.")
    clock_ahead: Literal["halt", "warn"] = ours(
        "halt",
        "What to do when the arrival time that dedup uses is ahead of NATS's clock, because that clock was ahead and stepped back: `warn` "
        "continues, and may drop records as duplicates although the window has passed.",
    )
    max_clock_ahead: Duration = ours(
        timedelta(minutes=1), "How far the arrival time may be ahead of NATS's clock; the clocks of a cluster differ."
    )


class Resources(Model):
    """GlassFlow's Kubernetes resources; only `nats` is used, the rest is accepted and ignored."""

    nats: NatsResources = theirs(NatsResources(), "Resources of NATS.")
    sources: tuple[dict[str, Any], ...] = theirs((), "Accepted and ignored: replicas, requests and limits per source.")
    transform: tuple[dict[str, Any], ...] = theirs((), "Accepted and ignored: replicas, storage, requests and limits per source.")
    sink: dict[str, Any] = Field(default_factory=dict, description="Accepted and ignored: replicas, requests and limits of the sink.")


class NatsTls(Model):
    """TLS to NATS."""

    ca_file: Text | None = ours(None, "PEM file with the certificates to trust. Default: the system's.")
    cert_file: Text | None = ours(None, "PEM file with the client certificate.")
    key_file: Text | None = ours(None, "PEM file with the key of the client certificate.")
    hostname: Text | None = ours(None, "Name to expect in the server's certificate. Default: the host of the URL.")
    handshake_first: bool = ours(False, "Start TLS before the server's greeting, as the server option `handshake_first` requires.")

    def faults(self) -> Faults:
        if self.cert_file and not self.key_file:
            yield ("key_file",), "is required with cert_file"
        if self.key_file and not self.cert_file:
            yield ("cert_file",), "is required with key_file"


class NatsConnection(Model):
    """How to reach NATS and log in: with a credentials file, a user name and password, a token, or nothing."""

    url: str = ours(
        DEFAULT_NATS_URL,
        "Server, or several separated by commas. Default: the environment variable NATS_URL; without `nats`, the local server that `run` "
        "starts; else this.",
    )
    credentials_file: Text | None = ours(None, "Path of a `.creds` file (JWT and nkey).")
    username: Text | None = ours(None, "User name.")
    password: Secret | None = ours(None, "Password of the user.")
    token: Secret | None = ours(None, "Token.")
    tls: NatsTls | None = ours(None, "TLS settings; a `tls://` URL uses TLS without them.")

    unshown: ClassVar[frozenset[str]] = frozenset({"url"})
    """Fields whose value no message may show: a URL can hold a password."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The URLs, one per server, without credentials."""
        return tuple(self.url.split(","))

    @model_validator(mode="before")
    @classmethod
    def _credentials_out_of_url(cls, value: Any) -> Any:
        # nats://user:password@host is usual; kept in the URL the password would show in every log line that names the server.
        if not isinstance(value, dict) or not isinstance(value.get("url"), str) or "@" not in value["url"]:
            return value
        keep = type(value["url"])
        urls = [url.strip() for url in value["url"].split(",")]
        logins = {url.partition("://")[2].rpartition("@")[0] for url in urls}
        if len(logins) != 1 or value.keys() & {"username", "password", "token", "credentials_file"}:
            ways = "the same in every server's URL, or in username and password, token or credentials_file"
            report("nats", [(("url",), f"give the credentials once: {ways}")])
        bare = ",".join(f"{url.partition('://')[0]}://{url.rpartition('@')[2]}" for url in urls)
        name, colon, password = logins.pop().partition(":")
        login = {"username": unquote(name), "password": keep(unquote(password))} if colon else {"token": keep(unquote(name))}
        return value | {"url": bare} | login

    def faults(self) -> Faults:
        if not all(_is_nats_url(url) for url in self.servers):
            yield ("url",), "must be nats://host:port or tls://host:port, several separated by commas"
        if (self.username is None) != (self.password is None):
            yield ("password" if self.password is None else "username",), "username and password go together"
        ways = [name for name in ("credentials_file", "username", "token") if getattr(self, name) is not None]
        if len(ways) > 1:
            yield (ways[1],), f"choose one way to log in: {' or '.join(ways)}"


def _state_uri(uri: str) -> str:
    parts = urlsplit(uri)
    if uri and not (parts.scheme in _STATE_SCHEMES and bool(parts.netloc) == (parts.scheme != "file") and parts.path.strip("/")):
        raise ValueError(f"must be file:///path, or a URI of {', '.join(_STATE_SCHEMES[1:])} with a path")
    if "@" in parts.netloc and parts.scheme not in ("abfs", "abfss"):
        raise ValueError("must not hold credentials: they come from the environment, such as AWS_ACCESS_KEY_ID or AWS_PROFILE")
    return uri


def _is_nats_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        return False


class DeadLetterLimits(Model):
    """How dead letters are kept and redriven."""

    max_attempts: Annotated[int, Field(ge=1, le=1000), BeforeValidator(no_flag)] = ours(
        5,
        "A record that was rejected this many times is parked: its dead letter is redriven only when it is selected by position.",
        Effect.RELOAD,
    )
    max_age: Window | None = ours(
        None,
        "Dead letters older than this are discarded and counted; redriven ones are deleted. Default: dead letters are kept forever.",
        Effect.RELOAD,
    )
    max_bytes: Size = ours(
        0, "Largest size of the dead-letter stream, 0 is unlimited; a full stream blocks the pipeline and loses nothing."
    )


class PipelineConfig(Model):
    """One pipeline: from Kafka topics through transforms to ClickHouse tables."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["sink"]}, {"required": ["sinks"]}]})

    version: Annotated[Literal["v3"], BeforeValidator(_only_v3)] = theirs("v3", "Version of the format: `v3`.")
    pipeline_id: Annotated[
        str,
        AfterValidator(
            matching(PIPELINE_ID, "must be 5 to 40 lower-case letters, digits and hyphens, with a letter or digit at both ends")
        ),
        Field(json_schema_extra={"pattern": PIPELINE_ID}),
    ] = theirs(..., "Name of the pipeline in streams, tokens and directories; never changes.")
    name: str = theirs("", "Display name.", Effect.AT_ONCE)
    sources: Annotated[tuple[Source, ...], Field(min_length=1, max_length=16)] = theirs(
        ...,
        "Kafka topics, of one cluster or several. The records of all become rows side by side, unless a join combines two. Their ids and "
        "their order are fixed once the pipeline has run.",
    )
    transforms: tuple[Transform, ...] = theirs((), "Filters, dedup and computed fields, in order.")
    transforms_order: Literal["glassflow", "file"] | None = ours(
        None,
        "Order in which the transforms run: that of the file, or GlassFlow's, which is filter, dedup, stateless whatever the file says. "
        "Default: GlassFlow's if the file has at most one of each and nothing else, so that its files give the same rows here.",
    )
    join: Join | None = theirs(None, "Joins two sources.")
    tables: Annotated[dict[TableName, LookupTable], Field(max_length=32)] = Field(
        default_factory=dict,
        description="Tables for look-ups, by name. A snapshot of each is fetched at the start, and again every `refresh`.",
        json_schema_extra={"x-ours": True},
    )
    only_sink: Sink | None = theirs(None, "The ClickHouse table to write; `sinks` for several.", alias="sink")
    sinks: Annotated[tuple[Sink, ...], Field(max_length=16)] = ours(
        (),
        "Several tables instead of `sink`, each with an `id`, the records that it takes (`when`) and a mapping. Their ids and their order "
        "are fixed once the pipeline has run.",
    )
    metadata: Metadata = theirs(Metadata(), "Tags and owners of the pipeline.", Effect.AT_ONCE)
    resources: Resources = theirs(Resources(), "Retention of the streams; the rest is accepted and ignored.")
    nats: NatsConnection = ours(NatsConnection(), "How to reach NATS.")
    buckets: Annotated[int, Field(ge=1, le=1024), BeforeValidator(no_flag)] = ours(
        2, "Parts of the key store; fixed once the pipeline has run (`tallyflow rebucket` changes them). Each costs a file per batch."
    )
    lanes: Annotated[int, Field(ge=1, le=16), BeforeValidator(no_flag)] = ours(
        1,
        "The most tasks that share the work of all legs: the legs' own, and while these cannot keep up further ones, each in a slot of "
        "Spark of its own. At most as many as `buckets`. It changes no result, and may be changed at every start. The table must "
        "remember 4 insert tokens for each.",
        Effect.RELOAD,
    )
    streams: Annotated[int, Field(ge=1, le=64), BeforeValidator(no_flag)] = ours(
        1,
        "Streams among which the bytes of raw, and those of out, are dealt, by Kafka partition and by bucket, so that no single JetStream "
        "leader writes them all. Each costs a second, small message per frame. Fixed once the pipeline has run.",
    )
    state_uri: Annotated[str, AfterValidator(_state_uri)] = ours(
        "",
        "URI of the key stores: `file:///path`, `s3://bucket/path`, `gs://`, `abfss://` or `hdfs://`, with PyArrow's options "
        "as a query; credentials come from the environment. Default: the pipeline's directory on this host.",
    )
    on_error: OnErrorField = ours(OnError(), "What stops the pipeline: a value of `rejected`, or an object. Default: `dead_letter`.")

    dead_letters: DeadLetterLimits = ours(DeadLetterLimits(), "Limits of dead letters.")
    checks: Checks = ours(Checks(), "The checks of the table, and which of them block its publication.", Effect.AT_ONCE)
    alerts: Alerts = ours(Alerts(), "When Dagster's sensors act on the pipeline and send alerts.", Effect.AT_ONCE)

    unshown: ClassVar[frozenset[str]] = frozenset({"state_uri"})
    """Fields whose value no message may show: like a URL, a URI may hold credentials by mistake."""

    unreached: ClassVar[Mapping[str, Any]] = {"nats": None, "state_uri": None}

    _sink_index: int = PrivateAttr(default=0)

    @property
    def all_sinks(self) -> tuple[Sink, ...]:
        """The sinks in their order: that of `sink`, or those of `sinks`; of records, then of dead letters."""
        in_file = (self.only_sink,) if self.only_sink is not None else self.sinks
        return tuple(sorted(in_file, key=lambda sink: sink.takes == DEAD_LETTERS))

    @property
    def record_sinks(self) -> tuple[Sink, ...]:
        """The sinks of records, in their order."""
        return tuple(sink for sink in self.all_sinks if sink.takes != DEAD_LETTERS)

    @property
    def sink(self) -> Sink:
        """The sink from which this config is seen: the first one, unless `seen_from` says otherwise."""
        return self.all_sinks[self._sink_index]

    @property
    def sink_leg(self) -> LegId:
        """The leg of `sink`."""
        return self.topology.tables[self._sink_index]

    @property
    def sink_at(self) -> Location:
        """The place of `sink` in the file."""
        return ("sink",) if self.only_sink is not None else ("sinks", self.sinks.index(self.sink))

    def seen_from(self, leg: LegId) -> "PipelineConfig":
        """Return the config whose `sink` is that of a sink leg; for any other leg it is the first sink."""
        tables, seen = self.topology.tables, self.model_copy()
        seen._sink_index = tables.index(leg) if leg in tables else 0
        return seen

    @property
    def by_sink(self) -> "tuple[PipelineConfig, ...]":
        """The config as seen from each sink of records, in their order."""
        return tuple(map(self.seen_from, self.topology.sinks))

    @property
    def by_table(self) -> "tuple[PipelineConfig, ...]":
        """The config as seen from each sink: those of records, then those of dead letters."""
        return tuple(map(self.seen_from, self.topology.tables))

    @property
    def topology(self) -> Topology:
        dead_letters = [str(sink.id) for sink in self.all_sinks if sink.takes == DEAD_LETTERS]
        records = [sink.id or "" for sink in self.record_sinks]
        return Topology.of([source.source_id for source in self.sources], records, self.fallbacks, dead_letters)

    @property
    def fallbacks(self) -> dict[str, str]:
        """The id of the fallback by the id of the sink whose refused rows it takes."""
        return {str(sink.id): sink.on_refused.sink for sink in self.sinks if sink.on_refused is not None}

    @property
    def fields_at_sink(self) -> Mapping[str, str]:
        """The types of the fields that the mapping of `sink`, one of records, may name."""
        return {**at_sink(self), **(FALLBACK_FIELDS if self.topology.refuser_of(self.sink_leg) else {})}

    def model_post_init(self, _: Any) -> None:
        first = self.all_sinks[0] if self.all_sinks else None
        for sink in self.all_sinks:
            sink.attach(self.pipeline_id)
        for table in self.tables.values():
            table.attach({first.type: first.connection_params} if first is not None else {})
        for transform in self.transforms:
            transform.config.attach(self.tables)

    def consumer_group(self, source: KafkaSource) -> str:
        return source.consumer_group or f"tallyflow-{self.pipeline_id}"

    def faults(self) -> Faults:
        yield from rules.faults(self)
