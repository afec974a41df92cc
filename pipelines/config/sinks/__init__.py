"""A sink of the pipeline file: the ClickHouse table, its connection, batching, the column mapping, and which records it takes."""

import pkgutil
from collections.abc import Mapping
from datetime import timedelta
from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr, SecretStr

from pipelines.config.base import (
    UNSET_HOST,
    Effect,
    Expression,
    Faults,
    FieldPath,
    Host,
    Identifier,
    Model,
    Port,
    Positive,
    Secret,
    Text,
    Window,
    matching,
    ours,
    repeated,
    theirs,
)
from pipelines.config.rollups import Rollup, column_faults
from pipelines.config.transform_model import Asked, Language

_SHORTEST_INSERT, _LONGEST_INSERT = timedelta(seconds=1), timedelta(minutes=10)


def _column_type(text: str) -> str:
    # Inside the function: the grammar needs pyarrow, and the JSON Schema and the docs do without.
    from pipelines.types.columns import parse_type

    parse_type(text)
    return text


def _not_reserved(name: str) -> str:
    if name.startswith("_tf_"):
        raise ValueError("names that start with _tf_ are reserved")
    return name


PIPELINE_COLUMN = "_tf_pipeline"
"""The column of a shared table that names the pipeline of a row."""
SinkColumn = Annotated[Identifier, AfterValidator(_not_reserved)]
SINK_ID = r"^[a-z][a-z0-9_]{0,39}$"
SinkId = Annotated[
    str,
    AfterValidator(matching(SINK_ID, "must be at most 40 of a-z, 0-9 and _, beginning with a-z")),
    Field(json_schema_extra={"pattern": SINK_ID}),
]


class ClickHouseConnection(Model):
    """Connection to ClickHouse, over HTTP."""

    unreached: ClassVar[Mapping[str, Any]] = {
        "host": UNSET_HOST,
        "port": 8123,
        **dict.fromkeys(("http_port", "username", "password", "secure", "skip_certificate_verification")),
    }

    host: Host = theirs(..., "Host name or address.")
    port: Port = theirs(..., "Native port in GlassFlow's files; used for HTTP if `http_port` is not given.")
    http_port: Port | None = theirs(None, "HTTP(S) port, usually 8123 or 8443. Default: `port`.")
    database: Identifier = theirs("default", "Database of the table.")
    username: Text = theirs("default", "User.")
    password: Secret = theirs(SecretStr(""), "Password; may be empty.")
    secure: bool = theirs(False, "Use TLS.")
    skip_certificate_verification: bool = theirs(False, "Do not check the server's certificate. Only for tests.")

    @property
    def http_port_effective(self) -> int:
        return self.http_port or self.port


class ColumnMapping(Model):
    """One field and its column."""

    name: FieldPath = theirs(..., "Field that reaches the sink: of the source, or of the last stateless transform or join.")
    column_name: SinkColumn = theirs(..., "Column of the table; letters, digits, underscores; `_tf_` is reserved.")
    column_type: Annotated[str, AfterValidator(_column_type)] = theirs(..., "ClickHouse type of the column, such as `Nullable(String)`.")


DEAD_LETTERS = "dead_letters"
_NOT_OF_DEAD_LETTERS = {
    "when": "is for records, and this sink takes every dead letter: filter where the table is read, or in a view",
    "default": "is for records, and this sink takes dead letters",
    "on_refused": "is for records: a dead letter that its table refuses stays in the dead-letter stream, and halts this sink",
}
ERROR_FIELD, REFUSING_SINK_FIELD = "_tf_error", "_tf_sink"
FALLBACK_FIELDS = {ERROR_FIELD: "string", REFUSING_SINK_FIELD: "string"}
"""The fields that a fallback may map besides those of the record, and their types: why the row was refused, and by which sink leg."""


def _default_mapping(sound: Mapping[str, Any]) -> "tuple[ColumnMapping, ...]":
    """Return the mapping of a sink that names none: every field of a dead letter in a column of its name; none for a sink of rows."""
    if sound["takes"] != DEAD_LETTERS:
        return ()
    # Inside of the function, as in `_column_type`.
    from pipelines.types.dead_letter_fields import DEAD_LETTER_FIELDS

    return tuple(
        ColumnMapping(name=field.name, column_name=field.name, column_type=field.column_type) for field in DEAD_LETTER_FIELDS.values()
    )


class OnRefused(Model):
    """What becomes of a row that the sink's system refuses."""

    sink: SinkId = ours(..., "Id of the fallback: a later sink, with neither `when` nor `default`, that takes these rows and no others.")


class SinkModel(Model):
    """What the models of all sinks have: a name, and the records that they take."""

    takes: Literal["records", "dead_letters"] = ours(
        "records",
        "What the sink takes: the `records` that pass the transforms, or the pipeline's `dead_letters`, all of them. Only in `sinks`, and "
        "fixed as the ids are.",
        alias="from",
    )
    id: SinkId | None = ours(None, "Name of the sink in streams, legs and reports; required in `sinks`, and never changes.")
    when: Expression | None = ours(
        None, "Condition over the fields that reach the sink; it takes the records for which it is true. Default: all. Only in `sinks`."
    )
    default: bool = ours(False, "Take the records that no other sink's `when` takes. One sink at most; not together with `when`.")
    language: Language | None = ours(None, "Language of `when`: `sql` or `expr`. Default: as in transforms.")

    on_refused: OnRefused | None = ours(
        None, "The fallback for rows that ClickHouse refuses. Default: they become dead letters. Only in `sinks`, and fixed as the ids are."
    )

    _pipeline: str = PrivateAttr(default="")

    def attach(self, pipeline: str) -> None:
        """Say which pipeline the sink is part of."""
        self._pipeline = pipeline

    @property
    def names_pipeline(self) -> bool:
        """Whether each row names the pipeline that it is of, so that several pipelines may write one table."""
        return False

    def expressions(self) -> tuple[Asked, ...]:
        """Return the condition, if there is one. Also called over a `Partial`."""
        return (Asked(("when",), self.when, type="bool"),) if self.when is not None else ()

    def place(self) -> tuple[object, ...]:
        """Return what two sinks must not share: where their rows are. Also called over a `Partial`."""
        return (self.id,)

    def faults(self) -> Faults:
        if self.language is not None and self.when is None:
            yield ("language",), "is the language of `when`, which is not given"
        if self.default and self.when is not None:
            yield ("default",), "takes what no `when` takes, and this sink has a `when`: remove one of them"
        if self.takes == DEAD_LETTERS:
            for name in ("when", "default", "on_refused"):
                if getattr(self, name) not in (None, False):
                    yield (name,), _NOT_OF_DEAD_LETTERS[name]


class ClickHouseSink(SinkModel):
    """The ClickHouse table that the pipeline writes."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["mapping"]}, {"required": ["from"], "properties": {"from": {"const": DEAD_LETTERS}}}]}
    )

    type: Literal["clickhouse"] = theirs(..., "Kind of sink.")
    connection_params: ClickHouseConnection = theirs(..., "Connection to ClickHouse.")
    table: Identifier = theirs(..., "Table name, without the database.")
    max_batch_size: Positive = theirs(1000, "Rows that fill a batch; a full batch is inserted at once.", Effect.RELOAD)
    max_delay_time: Window = theirs(
        timedelta(seconds=60),
        "Longest time a row waits for its batch to fill, and least interval between two batches that are not full; "
        "at least 1 s while a backlog is read.",
        Effect.RELOAD,
    )
    mapping: Annotated[tuple[ColumnMapping, ...], Field(min_length=1)] = Field(
        default_factory=_default_mapping,
        description="The fields and their columns. Required for records; for dead letters the default is each field in a column so named.",
    )
    create_table: bool = ours(
        False, "Create the table from the mapping if it does not exist, with the deduplication window that exactly-once needs."
    )
    order_by: tuple[SinkColumn, ...] = ours((), "Sorting key of a created table, columns of the mapping. Default: the position columns.")
    delivery: Literal["exactly_once", "at_least_once"] = ours(
        "exactly_once",
        "`exactly_once` refuses to start on a table that cannot drop a repeated insert; `at_least_once` may repeat rows after a crash.",
    )
    existing_rows: Literal["refuse", "keep"] = ours(
        "refuse",
        "What the first start of a pipeline does if the table already holds rows that may be another pipeline's: "
        "`refuse` to start, or `keep` them. In a table with position columns these are the rows with a position, else all rows.",
    )

    shared_table: bool = ours(
        False,
        "Let several pipelines write this table: each row names its pipeline in the column `_tf_pipeline`, and all proofs and checks of a "
        "pipeline look at its own rows. Every pipeline of the table must say so.",
    )

    max_insert_time: Window = ours(
        timedelta(seconds=60),
        "How long ClickHouse may take for one insert, 1 s to 10 min. A chunk that takes longer three times is split.",
    )
    max_outage: Window | None = ours(
        None,
        "Longest time that the pipeline may be down between an insert and its retry. Replicated tables forget insert tokens "
        "by age, and must remember them at least this long. Default: 7 days.",
    )
    ledger_table: Identifier | None = ours(
        None, "Table in the same database that the ledger is copied to, for dashboards and backups; created if it does not exist."
    )

    rollups: Annotated[tuple[Rollup, ...], Field(max_length=16)] = ours(
        (), "Figures per group and bucket of time that ClickHouse keeps up with every insert, and windows over them."
    )
    create_rollups: bool = ours(
        False, "Create the tables and views of `rollups`; without it the statements of `tallyflow ddl` must have been run."
    )

    @property
    def names_pipeline(self) -> bool:
        return self.shared_table

    @property
    def read_settings(self) -> dict[str, str]:
        """ClickHouse's settings under which a SELECT sees the rows of this pipeline alone, where it shares its table."""
        if not self.shared_table:
            return {}
        # Identifiers, and a pipeline's id, hold no quotes.
        owned = f"{PIPELINE_COLUMN} = \\'{self._pipeline}\\'"
        return {"additional_table_filters": f"{{'{self.connection_params.database}.{self.table}': '{owned}'}}"}

    def place(self) -> tuple[object, ...]:
        connection = self.connection_params
        return connection.host.lower(), connection.http_port_effective, connection.database, self.table

    def faults(self) -> Faults:
        yield from SinkModel.faults(self)
        if self.ledger_table == self.table:
            yield ("ledger_table",), "is the table that the pipeline writes; name another table for the ledger"
        if not _SHORTEST_INSERT <= self.max_insert_time <= _LONGEST_INSERT:
            yield ("max_insert_time",), "must be between 1s and 10m"
        if not self.mapping:
            yield ("mapping",), "is required"
        for index, name in repeated(column.column_name for column in self.mapping):
            yield ("mapping", index, "column_name"), f"the column {name!r} is mapped twice"
        types = {column.column_name: column.column_type for column in self.mapping}
        for index, name in enumerate(self.order_by):
            if name not in types:
                yield ("order_by", index), f"the column {name!r} is not in the mapping"
            elif types[name].startswith("Nullable("):
                yield ("order_by", index), f"the column {name!r} is Nullable, which ClickHouse refuses in a sorting key"
        for index, name in repeated(self.order_by):
            yield ("order_by", index), f"the column {name!r} is named twice"
        yield from column_faults(self.rollups, types)
        if self.shared_table and self.takes == DEAD_LETTERS:
            yield ("shared_table",), "is for rows of records: give the dead letters of each pipeline a table of their own"
        if self.shared_table and self.rollups:
            yield ("shared_table",), "does not go with rollups: their views would count the rows of all pipelines"
        if self.rollups and self.delivery == "at_least_once":
            yield ("rollups",), "a row that is repeated would be counted twice: they need `delivery: exactly_once`"
        if self.rollups and self.existing_rows == "keep":
            yield (
                ("rollups",),
                "rows of an earlier pipeline may share positions with ours: they do not go with `existing_rows: keep`",
            )


if TYPE_CHECKING:
    Sink = ClickHouseSink
else:
    # ClickHouse's, and that of each module of this package.
    _models = [ClickHouseSink, *(import_module(f"{__name__}.{module.name}").SINK for module in pkgutil.iter_modules(__path__))]
    Sink = Annotated[reduce(or_, _models), Field(discriminator="type")] if len(_models) > 1 else ClickHouseSink
