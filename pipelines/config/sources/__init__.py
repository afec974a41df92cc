"""The `sources` of the pipeline file: one Kafka topic each, its connection, and the fields to read from its records."""

import pkgutil
import re
from collections.abc import Mapping
from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pipelines.config.base import UNSET_HOST, Faults, FieldPath, Location, Model, Secret, Text, matching, ours, repeated, report, theirs
from pipelines.types.record_columns import ColumnOrigin, ColumnType
from pipelines.types.time_formats import check_format

FieldType = Literal[
    "string", "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64",
    "float", "float32", "float64", "bool", "bytes", "array", "object", "map", "any",
]  # fmt: skip
Unit = Literal["s", "ms", "us", "ns"]
TimeFormat = Annotated[str, AfterValidator(check_format)]

_ORIGIN_TYPES: dict[str, tuple[ColumnType, ...]] = {
    "key": ("string", "bytes"),
    "headers": ("map",),
    "header": ("string", "bytes"),
    "offset": ("int64",),
    "partition": ("int32",),
    "timestamp": ("timestamp",),
    "topic": ("string",),
    "arrival": ("timestamp",),
    "value": ("string", "bytes"),
}
"""Types that a column from each part of the Kafka record may have, the default first; "header" is one header of `headers`."""

_OTLP = ("otlp.logs", "otlp.traces", "otlp.metrics")
_BROKER = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):([0-9]{1,5})")


def _broker(text: str) -> str:
    match = _BROKER.fullmatch(text)
    if not match or not 1 <= int(match[1]) <= 65535:
        raise ValueError("must be host:port")
    return text


def _split_at_commas(value: Any) -> Any:
    """Split entries at commas: `["${BROKERS}"]` often holds the usual comma-separated bootstrap list."""
    if not isinstance(value, list | tuple):
        return value
    parts: list[Any] = []
    for item in value:
        if isinstance(item, str) and "," in item:
            parts.extend(type(item)(part.strip()) for part in item.split(","))
        else:
            parts.append(item)
    return parts


def _type_of_origin(fields: dict[str, Any]) -> ColumnType:
    return _ORIGIN_TYPES["header" if fields["header"] else fields["origin"]][0]


def _json_only(value: Any) -> Any:
    if isinstance(value, str) and value in ("avro", "protobuf"):
        raise ValueError(f"{value} is not supported: Tallyflow reads JSON")
    return value


Broker = Annotated[str, AfterValidator(_broker)]
Topic = Annotated[
    str,
    AfterValidator(
        matching(r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}$", "must be a Kafka topic name: at most 249 letters, digits, '.', '_' or '-'")
    ),
]
Partition = Annotated[str, AfterValidator(matching(r"0|[1-9][0-9]{0,8}", "must be the number of a partition"))]


class KafkaConnection(Model):
    """Connection to the Kafka brokers."""

    brokers: Annotated[tuple[Broker, ...], Field(min_length=1), BeforeValidator(_split_at_commas)] = theirs(
        ..., "Bootstrap servers, `host:port` each; one entry may hold several, separated by commas."
    )
    protocol: Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"] = theirs(
        "PLAINTEXT", "Security protocol: `SSL` encrypts, `SASL` authenticates."
    )
    mechanism: Literal["NO_AUTH", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"] = theirs(
        "NO_AUTH", "Authentication mechanism; used with the SASL protocols only. `OAUTHBEARER` is Tallyflow's own."
    )
    username: str = theirs("", "User name for PLAIN and SCRAM; the client principal for GSSAPI.")
    password: Secret | None = theirs(None, "Password for PLAIN and SCRAM.")
    root_ca: str | None = theirs(None, "Certificates to trust: PEM text, base64 of it, or the path of a PEM file. Default: the system's.")
    skip_tls_verification: bool = theirs(False, "Do not check the brokers' certificates. Only for tests.")
    kerberos_service_name: str | None = theirs(None, "Service name of the brokers, usually `kafka`; for GSSAPI.")
    kerberos_keytab: Secret | None = theirs(None, "Path of the keytab, or base64 of its content; for GSSAPI.")
    kerberos_realm: str | None = theirs(None, "Kerberos realm. Default: the one in the Kerberos configuration.")
    kerberos_config: str | None = theirs(None, "Text of a krb5.conf, or its path. Default: the system's.")
    skip_auth: bool = theirs(False, "Do not authenticate; the same as mechanism `NO_AUTH`.")
    client_cert: str | None = theirs(None, "Client certificate for mutual TLS: PEM text or the path of a PEM file.")
    client_key: Secret | None = theirs(None, "Private key of `client_cert`: PEM text or the path of a PEM file.")
    oauth_token_endpoint_url: str | None = ours(None, "Token endpoint for OAUTHBEARER (OIDC client credentials).")
    oauth_client_id: str | None = ours(None, "Client id for OAUTHBEARER.")
    oauth_client_secret: Secret | None = ours(None, "Client secret for OAUTHBEARER.")
    oauth_scope: str | None = ours(None, "Scope to ask for with OAUTHBEARER.")
    oauth_extensions: str | None = ours(None, "SASL extensions for OAUTHBEARER, `key=value` separated by commas.")

    @property
    def logs_in(self) -> bool:
        return self.protocol.startswith("SASL_") and not self.skip_auth and self.mechanism != "NO_AUTH"

    def faults(self) -> Faults:
        if self.protocol.startswith("SASL_") and not self.logs_in:
            yield ("mechanism",), f"protocol {self.protocol} authenticates: give a mechanism, or use a protocol without SASL"
        if self.logs_in:
            for name in self._needed():
                value = getattr(self, name)
                if not (value if isinstance(value, str | None) else value.get_secret_value()):
                    yield (name,), f"is required with mechanism {self.mechanism}"
        for name, other in (("client_cert", "client_key"), ("client_key", "client_cert")):
            if getattr(self, name) and not getattr(self, other):
                yield (other,), f"is required with {name}"
        if self.client_cert and not self.protocol.endswith("SSL"):
            yield ("client_cert",), f"needs protocol SSL or SASL_SSL, not {self.protocol}"

    def _needed(self) -> tuple[str, ...]:
        if self.mechanism == "GSSAPI":
            return ("username", "kerberos_service_name", "kerberos_keytab")
        if self.mechanism == "OAUTHBEARER":
            return ("oauth_token_endpoint_url", "oauth_client_id", "oauth_client_secret")
        return ("username", "password")


class SchemaField(Model):
    """One field to read from the JSON value of a record."""

    name: FieldPath = theirs(..., "Field name; a dotted path reads a nested object, unless the object has that key with its dots.")
    type: FieldType = theirs(
        ..., "Type; a value of another type rejects the record. `int` is int64, `float` is float64, `any` is every JSON value."
    )
    unit: Unit | None = ours(
        None,
        "Unit since 1970 of a number, or of a string with a decimal number, that becomes a DateTime or DateTime64 or is dedup's "
        "`time_field`, also in arrays and objects. Default: `s` for a number; a string is an instant such as `2026-01-31T23:59:59Z`.",
    )
    format: TimeFormat | None = ours(
        None,
        "Format of a string that becomes a DateTime or DateTime64, or is dedup's `time_field`, such as `%d/%m/%Y %H:%M:%S` "
        "([directives](types.md#directives-of-a-format)), also in arrays and objects; without a time of day it may become a Date, "
        "too. Not with `unit`.",
    )

    @property
    def time_notation(self) -> str:
        """The unit or the format; empty without either."""
        return self.unit or self.format or ""

    def faults(self) -> Faults:
        if self.unit is not None and self.type in ("bool", "bytes"):
            yield ("unit",), f"is only for numbers and strings, and for those in arrays and objects, not {self.type}"
        if self.format is not None and self.type not in ("string", "array", "object", "map"):
            yield ("format",), f"is only for strings, and for those in arrays and objects, not {self.type}"
        elif self.format is not None and self.unit is not None:
            yield ("format",), "does not go with `unit`: a text has one of them"


class KafkaColumn(Model):
    """One field to read from the Kafka record beside the fields of its JSON; usable wherever a schema field is."""

    name: FieldPath = theirs(..., "Name of the field; must not be a name of `schema_fields`.")
    origin: ColumnOrigin = Field(
        alias="from",
        description="Part of the record; `headers` is a map of all headers, unless `header` names one. `arrival` is the time at which the "
        "record reached NATS, `value` the whole JSON as it was sent.",
    )
    header: Text | None = theirs(None, "With `from: headers`: one header; its last value, null if absent.")
    type: ColumnType = Field(
        default_factory=_type_of_origin,
        description=(
            "Type. Default: by part: key, topic, value and one header are `string` (all but topic may be `bytes`), headers `map`, offset "
            "`int64`, partition `int32`, timestamp and arrival `timestamp` (UTC). A `string` or `map` that is not UTF-8 rejects the record."
        ),
    )
    unit: Unit | None = ours(
        None,
        "Unit since 1970 of a key or of one header with a decimal number that becomes a DateTime or DateTime64 or is dedup's `time_field`. "
        "Default: the text is an instant such as `2026-01-31T23:59:59Z`.",
    )
    format: TimeFormat | None = ours(None, "Format of a key or of one header that is a time, as in `schema_fields`. Not with `unit`.")

    @property
    def time_notation(self) -> str:
        """The unit or the format; empty without either."""
        return self.unit or self.format or ""

    @property
    def definition(self) -> dict[str, Any]:
        """How the column is read, as JSON values in the vocabulary of the file."""
        given = {"header": self.header, "unit": self.unit, "format": self.format}
        return {"from": self.origin, "type": self.type, **{name: value for name, value in given.items() if value}}

    def faults(self) -> Faults:
        if self.header and self.origin != "headers":
            yield ("header",), f"is only for 'from: headers', not {self.origin}"
            return
        types = _ORIGIN_TYPES["header" if self.header else self.origin]
        if self.type not in types:
            yield ("type",), f"a column from {'one header' if self.header else self.origin} is {' or '.join(types)}, not {self.type}"
        for name in ("unit", "format"):
            if getattr(self, name) is not None and not (self.type == "string" and (self.origin == "key" or self.header)):
                yield (name,), "is only for a key or one header of type string"
        if self.unit is not None and self.format is not None:
            yield ("format",), "does not go with `unit`: a text has one of them"


class SchemaRegistry(Model):
    """GlassFlow's schema registry; accepted and ignored: `schema_fields` describe the JSON."""

    url: Text = theirs(..., "Accepted and ignored.")
    api_key: Secret | None = theirs(None, "Accepted and ignored.")
    api_secret: Secret | None = theirs(None, "Accepted and ignored.")

    unshown: ClassVar[frozenset[str]] = frozenset({"url"})
    """A URL can hold a password."""


class KafkaSource(Model):
    """One Kafka topic with JSON values."""

    not_supported: ClassVar[dict[str, str]] = {
        "schema": "Avro and Protobuf schemas are not supported: Tallyflow reads JSON, described by schema_fields",
    }
    unreached: ClassVar[Mapping[str, Any]] = {
        "connection_params": {"brokers": [f"{UNSET_HOST}:9092"], "protocol": "PLAINTEXT"},
        "consumer_group": None,
        "schema_registry": None,
    }

    type: Literal["kafka"] = theirs(..., "Kind of source; GlassFlow's `otlp.*` sources are not supported.")
    topic: Topic = theirs(..., "Topic to read, all partitions.")
    source_id: Text = Field(
        default_factory=lambda fields: str(fields["topic"]),
        description="Name of the source in transforms and join. Default: the topic.",
    )
    connection_params: KafkaConnection = theirs(..., "Connection to the Kafka brokers.")
    consumer_group_initial_offset: Literal["earliest", "latest"] = theirs(
        "latest", "Where the first start begins; later starts resume where the pipeline stopped."
    )
    start_offsets: dict[Partition, Annotated[int, Field(ge=0)]] = ours(
        {},
        "Where the first start begins instead: by partition, in quotes, the offset of the first record to read. "
        "A partition that is not named begins at `consumer_group_initial_offset`.",
    )
    start_group: Text | None = ours(
        None,
        "Consumer group behind whose committed offsets the first start begins, to go on where another program has stopped. "
        "A partition without one begins at `consumer_group_initial_offset`.",
    )
    consumer_group: Text | None = ours(
        None, "Kafka consumer group that shows the progress to lag tools. Default: `tallyflow-<pipeline_id>`."
    )
    format: Annotated[Literal["json"], BeforeValidator(_json_only)] = theirs("json", "Format of the values.")
    schema_fields: Annotated[tuple[SchemaField, ...], Field(min_length=1)] = theirs(
        ..., "Fields to read from the values; others are ignored."
    )
    schema_registry: SchemaRegistry | None = theirs(None, "Accepted and ignored: `schema_fields` describe the JSON.", exclude=True)
    schema_version: str | int | None = theirs(None, "Accepted and ignored.", exclude=True)
    columns: tuple[KafkaColumn, ...] = ours(
        (), "Fields to read from the key, headers, offset, partition, timestamp, topic, time of arrival or the whole value."
    )
    on_data_loss: Literal["halt", "skip"] = ours(
        "halt", "What to do if offsets expired before they were read: `halt`, or `skip` and count them."
    )

    @property
    def fields(self) -> dict[str, str]:
        """Type by name of every field of the source: schema fields, then columns."""
        fields: tuple[SchemaField | KafkaColumn, ...] = (*self.schema_fields, *self.columns)
        return {field.name: field.type for field in fields}

    @property
    def field_names(self) -> list[str]:
        return [field.name for field in self.schema_fields] + [column.name for column in self.columns]

    def place(self) -> tuple[object, ...]:
        """Return what two sources must not share: where their records are. Also called over a `Partial`."""
        return frozenset(self.connection_params.brokers), self.topic

    def _location(self, index: int) -> Location:
        """Return the location of the name at this index of `field_names`."""
        column = index - len(self.schema_fields)
        return ("columns", column, "name") if column >= 0 else ("schema_fields", index, "name")

    @model_validator(mode="before")
    @classmethod
    def _refuse_otlp(cls, value: Any) -> Any:
        # Before the fields: an OTLP source has none of Kafka's, and ten "is required" would hide the reason.
        if isinstance(value, dict) and value.get("type") in _OTLP:
            report("source", [(("type",), f"{value['type']} is not supported: Tallyflow reads Kafka topics only")])
        return value

    def faults(self) -> Faults:
        for index, name in repeated(self.field_names):
            yield self._location(index), f"the name {name!r} is used twice in this source"
        for index, name in enumerate(self.field_names):
            if name.startswith("_tf_"):
                yield self._location(index), "names that start with _tf_ are reserved"
        if self.start_group is not None and self.start_offsets:
            yield ("start_group",), "does not go with start_offsets: the first start begins at one of them"


if TYPE_CHECKING:
    Source = KafkaSource
else:
    # Kafka's, and that of each module of this package.
    _models = [KafkaSource, *(import_module(f"{__name__}.{module.name}").SOURCE for module in pkgutil.iter_modules(__path__))]
    Source = Annotated[reduce(or_, _models), Field(discriminator="type")] if len(_models) > 1 else KafkaSource
