"""The step that looks up: what becomes of records with a row and without, what a program stores of it, and the reference in SQL."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pipelines.config import PipelineConfig, notes, parse, shape_of, unsupported, version_of
from pipelines.errors import ConfigurationError, HaltError
from pipelines.preview.declared import declared_program
from pipelines.preview.given import Given, frames_of
from pipelines.preview.run import Seen, preview
from pipelines.preview.tables import with_tables
from pipelines.process.arrivals import Arrived
from pipelines.process.program import Program
from pipelines.process.steps.lookup import Lookup
from pipelines.proof.readers.frames import batch_of
from pipelines.proof.verification.record_columns import parts_read
from pipelines.proof.verification.reference import Bounds, Reference, compared_columns
from pipelines.protocol.records import HEADER_PARTITION, HEADER_TOPIC, Message, encode_frame
from pipelines.testing import FIRST_INSTANT, records
from pipelines.types.duckdb import open_database

FILE = """
version: v3
pipeline_id: orders
sources:
  - type: kafka
    topic: orders
    connection_params: {brokers: ["kafka:9092"]}
    schema_fields: [{name: id, type: int}, {name: code, type: string}, {name: size, type: int32}, {name: ip, type: uint32}]
tables:
  countries: {type: csv, uri: countries.csv, key: code}
  sizes: {type: parquet, uri: "s3://bucket/sizes.parquet", key: [code, size]}
  networks: {type: clickhouse, query: SELECT 1, key: {between: [first, last]}}
transforms: TRANSFORMS
sink:
  type: clickhouse
  connection_params: {host: clickhouse, port: 8123}
  table: orders
  mapping: MAPPING
"""
COUNTRY = {"table": "countries", "key": "code", "fields": [{"name": "name", "as": "country"}, {"name": "vat", "type": "float64"}]}
SIZE = {"table": "sizes", "key": ["code", "size"], "fields": [{"name": "label"}]}
NETWORK = {"table": "networks", "key": "ip", "fields": [{"name": "owner"}, {"name": "port", "type": "uint16"}]}
ROWS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "countries": [{"code": "DE", "name": "Germany", "vat": 0.19}, {"code": "FR", "name": None, "vat": 0.2}, {"code": None, "name": "?"}],
    "sizes": [{"code": "DE", "size": 1, "label": "small"}, {"code": "DE", "size": 2, "label": "large"}, {"code": "FR", "size": 1}],
    "networks": [
        {"first": None, "last": 9, "owner": "low", "port": 1},
        {"first": 10, "last": 19, "owner": "ten", "port": 2},
        {"first": 40, "last": None, "owner": "high", "port": 3},
    ],
}
MAPPING = "[{name: id, column_name: id, column_type: Int64}]"
TYPES = {"country": "String", "vat": "Float64", "label": "String", "owner": "String", "port": "UInt16", "code": "String", "size": "Int32"}


def config_of(*lookups: dict[str, Any], others: Sequence[dict[str, Any]] = (), columns: Sequence[str] = ()) -> PipelineConfig:
    made = [one.get("as") or one["name"] for lookup in lookups for one in lookup.get("fields", ())]
    names = dict.fromkeys(columns or ("code", *made))
    mapping = [{"name": "id", "column_name": "id", "column_type": "Int64"}]
    mapping += [{"name": name, "column_name": name, "column_type": f"Nullable({TYPES[name]})"} for name in names]
    transforms = [*({"type": "lookup", "config": lookup} for lookup in lookups), *others]
    text = FILE.replace("TRANSFORMS", json.dumps(transforms)).replace("MAPPING", json.dumps(mapping))
    return parse(text, name="file", environment={})


def program_of(config: PipelineConfig, rows: Mapping[str, Sequence[Mapping[str, Any]]] = ROWS) -> Program:
    program = declared_program(config)
    return with_tables(program, config, {name: rows[name] for name in program.lookups}, offline=True)


def record(number: int, code: Any = "DE", size: Any = 1, ip: Any = 12) -> dict[str, Any]:
    return {"id": number, "code": code, "size": size, "ip": ip}


RECORDS = [
    record(0),
    record(1, "FR", 1, 9),
    record(2, "IT", 2, 20),
    record(3, None, None, None),
    record(4, "DE", 2, 40),
    record(5, "DE", None, 2**32 - 1),
    record(6, "de", 7, 39),
]


SOURCES = config_of(COUNTRY).sources


def seen_of(program: Program) -> list[Seen]:
    """The end of each record."""
    given = [Given(json.dumps(one).encode(), FIRST_INSTANT) for one in RECORDS]
    return [one.last for one in preview(program, frames_of(given, SOURCES)).records]


def ends(program: Program) -> list[Any]:
    """For each record its row without id and code, or how it ended."""
    rows = [
        {name: value for name, value in (one.fields or {}).items() if not name.startswith(("id", "code", "_tf_"))}
        for one in seen_of(program)
    ]
    return [row if one.outcome == "row" else f"{one.outcome} by {one.step}" for one, row in zip(seen_of(program), rows, strict=True)]


def test_a_record_without_a_row_has_nulls() -> None:
    found = ends(program_of(config_of(COUNTRY)))
    germany, nothing = {"country": "Germany", "vat": 0.19}, {"country": None, "vat": None}
    assert found == [germany, {"country": None, "vat": 0.2}, nothing, nothing, germany, germany, nothing]


def test_a_record_without_a_row_is_rejected_with_its_key() -> None:
    found = seen_of(program_of(config_of({**SIZE, "missing": "reject"})))
    rejected = [(one.stage, one.code, one.reason) for one in found if one.outcome == "rejected"]
    assert rejected == [
        ("lookup", "lookup_missing", "table sizes has no row with code = 'IT', size = 2"),
        ("lookup", "lookup_missing", "table sizes has no row with code = null, size = null"),
        ("lookup", "lookup_missing", "table sizes has no row with code = 'DE', size = null"),
        ("lookup", "lookup_missing", "table sizes has no row with code = 'de', size = 7"),
    ]


def test_a_record_without_a_row_is_dropped() -> None:
    found = ends(program_of(config_of({**NETWORK, "missing": "drop"})))
    gone = "dropped by lookup"
    rows = [{"owner": owner, "port": port} for owner, port in (("ten", 2), ("low", 1), ("high", 3))]
    assert found == [rows[0], rows[1], gone, gone, rows[2], rows[2], gone]


def test_a_look_up_may_only_ask_whether_there_is_a_row() -> None:
    only = {"table": "countries", "key": "code", "missing": "drop"}
    gone = "dropped by lookup"
    assert ends(program_of(config_of(only))) == [{}, {}, gone, gone, {}, {}, gone]


def test_a_field_may_be_replaced_and_read_by_later_steps() -> None:
    renamed = {**COUNTRY, "fields": [{"name": "name", "as": "code"}]}
    condition = {"type": "filter", "config": {"expression": "code = 'Germany'"}}
    gone = "dropped by filter"
    assert ends(program_of(config_of(renamed, others=[condition], columns=["code"]))) == [{}, gone, gone, gone, {}, {}, gone]


LOOKUPS = [COUNTRY, SIZE, NETWORK]


@pytest.mark.parametrize("missing", ["null", "reject", "drop"])
@pytest.mark.parametrize("lookups", [[one] for one in LOOKUPS] + [LOOKUPS], ids=["one", "composite", "range", "all"])
def test_steps_give_what_the_join_in_sql_gives(lookups: list[dict[str, Any]], missing: str) -> None:
    program = program_of(config_of(*({**one, "missing": missing} for one in lookups)))
    assert reference_of(program) == dict(enumerate(map(as_reference, ends(program))))


def as_reference(end: Any) -> Any:
    if isinstance(end, dict):
        return tuple(end.values())
    return {"dropped by lookup": "dropped.lookup", "rejected by lookup": "lookup"}[end]


def text_of(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def reference_of(program: Program) -> dict[int, Any]:
    """By record, what the reference says: its values, or its end."""
    headers = {HEADER_TOPIC: "orders", HEADER_PARTITION: "0"}
    payload = encode_frame(records(0, [json.dumps(one).encode() for one in RECORDS]))
    frame = Arrived(Message("tf.p.raw.orders.0", 1, FIRST_INSTANT, payload, headers), 0)
    with open_database(":memory:", {}) as engine:
        columns = [column for column in compared_columns(program) if column.name not in ("id", "code")]
        reference = Reference(engine, columns)
        reference.load(iter([batch_of(frame, parts_read(()))]), program)
        reference.add_frames({1: 0})
        reference.evaluate(program, Bounds(0, 2**63))
        found: dict[int, Any] = dict(engine.execute('SELECT "offset", stage FROM parsed WHERE stage IS NOT NULL').fetchall())
        dropped = 'SELECT "offset", then_dropped FROM parsed WHERE then_dropped IS NOT NULL'
        labels = "".join(f", {column.label}" for column in columns)
        rows = {
            number: tuple(map(text_of, values)) for number, *values in engine.execute(f'SELECT "offset"{labels} FROM expected').fetchall()
        }
        return rows | found | dict(engine.execute(dropped).fetchall())


def test_a_program_stores_the_table_and_no_snapshot() -> None:
    config = config_of(COUNTRY, NETWORK)
    bare, planned = declared_program(config), program_of(config)
    assert planned.encode() == bare.encode()
    assert planned.version == bare.version
    assert Program.decode(json.loads(planned.encode())) == bare
    assert b"Germany" not in planned.encode()


def test_without_the_snapshot_of_a_plan_nothing_is_looked_up() -> None:
    with pytest.raises(HaltError, match="looking up in table countries: no snapshot was given"):
        seen_of(declared_program(config_of(COUNTRY)))


@pytest.mark.parametrize(
    "change",
    [
        {"table": 'x"; DROP TABLE y'},
        {"missing": "nothing"},
        {"key": []},
        {"key": [{"column": "code", "field": "code", "type": "array"}]},
        {"fields": [{"column": "name", "field": "_tf_sequence", "type": "string"}]},
        {"fields": [{"column": "name", "field": "n", "type": "text"}]},
        {"snapshot": "x"},
        {"other": 1},
    ],
    ids=str,
)
def test_what_is_no_look_up_is_not_read_from_the_ledger(change: dict[str, Any]) -> None:
    (step,) = [one for one in declared_program(config_of(COUNTRY)).shared if isinstance(one, Lookup)]
    assert Lookup.decode(step.encode()) == step
    with pytest.raises(ValueError, match=r"."):
        Lookup.decode({**step.encode(), **change})


def test_rows_of_a_case_that_fit_no_look_up_are_refused() -> None:
    config = config_of(COUNTRY)
    for rows, message in (
        ([{"code": "DE", "nam": "x", "vat": 1}], "no row has the column 'name', which a look-up reads; the rows have code, nam, vat"),
        ([{"code": "DE", "name": "x", "vat": 1}] * 2, "1 row repeats a key"),
        ([{"code": "DE", "name": "x", "vat": "x"}], "cannot be read as double"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            program_of(config, {"countries": rows})
    with pytest.raises(ConfigurationError, match=r"tables.networks: no server is asked here: give the rows of the table under `tables`"):
        with_tables(declared_program(config_of(NETWORK)), config_of(NETWORK), offline=True)


@pytest.mark.parametrize(
    ("change", "at", "message"),
    [
        ({"table": "country"}, "transforms[0].config.table", "there is no table 'country'; did you mean 'countries'?"),
        ({"key": ["code", "size"]}, "transforms[0].config.key", "names 2, the key of table 'countries' has 1"),
        ({"key": "cod"}, "transforms[0].config.key", "there is no field 'cod' here; did you mean 'code'?"),
        ({"fields": []}, "transforms[0].config.fields", "is required, unless `missing` rejects or drops"),
        ({"fields": [{"name": "a", "as": "x"}, {"name": "x"}]}, "transforms[0].config.fields[1]", "the field 'x' is made twice"),
        ({"missing": "skip"}, "transforms[0].config.missing", "must be one of null, reject, drop"),
        ({"table": "networks"}, "transforms[0].config", "'code' is string: a range is looked up by an integer or a timestamp"),
    ],
)
def test_a_faulty_look_up_is_refused_with_its_path(change: dict[str, Any], at: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        config_of({**COUNTRY, **change}, columns=["code"])
    assert any(fault.path == at and message in fault.message for fault in raised.value.faults), raised.value.faults


def test_a_look_up_behind_a_join_reads_its_fields() -> None:
    side = {"source_id": "orders", "key": "id", "time_window": "1h"}
    config = config_of(COUNTRY)
    join = {"enabled": True, "left_source": side, "right_source": {**side, "source_id": "people"}, "output_fields": []}
    outputs = [{"source_id": source, "name": name} for source, name in (("orders", "id"), ("people", "code"))]
    text = FILE.replace("TRANSFORMS", json.dumps([{"type": "lookup", "config": COUNTRY}])).replace("MAPPING", MAPPING)
    people = """  - {type: kafka, source_id: people, topic: people, connection_params: {brokers: ["kafka:9092"]},
     schema_fields: [{name: id, type: int}, {name: code, type: string}]}
tables:"""
    text = text.replace("tables:", people, 1).replace("topic: orders", "topic: orders\n    source_id: orders", 1)
    both = parse(f"{text}join: {json.dumps({**join, 'output_fields': outputs})}\n", name="file", environment={})
    assert not unsupported(both)
    assert not unsupported(config)


def test_look_ups_of_one_table_agree_on_its_types() -> None:
    with pytest.raises(ConfigurationError, match="table 'countries': its column 'vat' is read as float64 here and as string in another"):
        config_of(COUNTRY, {**COUNTRY, "fields": [{"name": "vat", "as": "label"}]})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("uri: countries.csv", "uri: ../countries.csv", "tables.countries.uri: a path without file:// lies below the directory"),
        ("uri: countries.csv", "uri: /etc/passwd", "lies below the directory of the pipeline file"),
        ("s3://bucket/", "s3://key:secret@bucket/", "must not hold credentials"),
        ("s3://bucket/", "ftp://bucket/", "must be a path beside the pipeline file"),
        ("key: code}", "key: [{between: [a, b]}, code]}", "tables.countries.key: a range must be the last part of the key"),
        ("key: code}", "key: [code, code]}", "tables.countries.key: names a column twice"),
        ("key: code}", "key: code, refresh: 10ms}", "tables.countries.refresh: must be at least 1s"),
        ("key: code}", "key: code, max_age: 1m}", "tables.countries.max_age: must be longer than `refresh`"),
        ("key: code}", "key: code, min_rows: 5, max_rows: 4}", "tables.countries.min_rows: must be between 0 and max_rows"),
        ("countries: {type", "Countries: {type", "tables.Countries: must be at most 40 of a-z"),
        ("type: csv", "type: cvs", "tables.countries.type: must be one of clickhouse, csv, parquet, postgres"),
        ("uri: countries.csv", "url: countries.csv", "tables.countries.url: unknown field; did you mean 'uri'?"),
    ],
)
def test_a_faulty_table_is_refused_with_its_path(old: str, new: str, message: str) -> None:
    text = FILE.replace("TRANSFORMS", "[]").replace("MAPPING", MAPPING)
    assert old in text
    with pytest.raises(ConfigurationError) as raised:
        parse(text.replace(old, new, 1), name="file", environment={})
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_version_is_of_tables_without_their_connections() -> None:
    connection = "connection_params: {host: one, port: 8123, password: '${P}'}, query"
    text = FILE.replace("TRANSFORMS", "[]").replace("MAPPING", MAPPING)
    one, other = (
        parse(text.replace("query", connection.replace("one", host)), name="f", environment={"P": "x"}) for host in ("one", "two")
    )
    assert version_of(one) == version_of(other) != version_of(parse(text.replace("countries.csv", "c.csv"), name="f", environment={}))
    assert shape_of(one) == shape_of(parse(text, name="f", environment={}))


def test_notes_name_unread_tables_and_weak_connections() -> None:
    text = FILE.replace("TRANSFORMS", "[]").replace("MAPPING", MAPPING)
    text = text.replace("query:", "connection_params: {host: far, port: 9000, password: secret}, query:")
    found = notes(parse(text, name="file", environment={}))
    assert "tables.countries: no look-up reads it, so it is never fetched" in found
    assert "tables.networks.connection_params.secure: the password and the rows are sent unencrypted" in found
    assert "tables.networks.connection_params.password: the secret is written into the file: use ${NAME} or {file: PATH}" in found
    assert not [note for note in notes(config_of(*LOOKUPS)) if note.startswith("tables")]
