"""The dead letters of a pipeline as a table: each is a row once, whoever rejected the record, and whatever becomes of it later."""

import base64
import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from support.dead_letter_case import LEG, with_dead_letters
from support.pipeline_case import PipelineCase
from support.producer import make_producer

from dagster_project.numbers import numbers, read_account
from pipelines.config import PipelineConfig, parse
from pipelines.dead_letters.reprocess import expire_dead_letters
from pipelines.errors import HaltError
from pipelines.proof.checks.run import Look
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.tally import tally

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]


def order(number: int) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}", "amount": number % 20}).encode()


def stored(case: PipelineCase, columns: str = "position") -> list[Any]:
    """What the table of dead letters holds, in the order of the stream."""
    return list(case.client().query(f"SELECT {columns} FROM {case.table}_rejected ORDER BY _tf_sequence, _tf_ordinal").result_rows)


def with_tables(case: PipelineCase) -> None:
    """Makes the topic, and the tables as the file says."""
    case.write_file(with_dead_letters())
    case.create_topic(1)
    for statement in case.invoke("ddl", str(case.file)).stdout.split(";\n"):
        if statement.strip():
            case.client().command(statement)


def proof(case: PipelineCase, command: str) -> dict[str, Any]:
    found = case.invoke(command, str(case.file), "--json")
    assert found.stdout, found.output
    report: dict[str, Any] = json.loads(found.stdout)
    assert (found.exit_code, report["verdict"], report["findings"]) == (0, "clean", []), report
    return report


def config_of(case: PipelineCase) -> PipelineConfig:
    return parse(case.file.read_text(), name="case", environment=case.environment())


def exported(case: PipelineCase) -> list[dict[str, Any]]:
    """Every dead letter as `dlq export` writes it."""
    path = case.directory / f"letters-{len([*case.directory.glob('letters-*')])}.jsonl"
    assert case.invoke("dlq", "export", str(case.file), str(path), "--state", "all").exit_code == 0
    return [json.loads(line) for line in path.read_text().splitlines()]


def send_with_headers(case: PipelineCase, value: bytes, headers: Sequence[tuple[str, bytes | None]], key: bytes = b"k") -> None:
    producer = make_producer(case.addresses.kafka_client)
    producer.produce(case.topic, value, key=key, partition=0, headers=[*headers])
    assert producer.flush(60) == 0


@pytest.mark.parametrize("way", ["in tasks"], indirect=True)
def test_each_dead_letter_is_a_row_as_it_is_exported(case: PipelineCase, way: None) -> None:
    case.write_file(with_dead_letters())
    case.create_topic(1)
    case.send([order(1), b"{broken", order(2), b'{"id": "no number"}', b"\xff\xfe'"], partitions=1)
    send_with_headers(case, b"{", [("h", b"1"), ("h", b"\xff"), ("none", None)], key=b"\xfe")
    case.send([None, b"x" * 1_010_000], partitions=1)
    case.warm_run()
    found = stored(
        case,
        "position, stage, code, field, message, fingerprint, source, topic, partition, offset, attempts, hex(key), hex(value), "
        "value_bytes, value_sha256, arrayMap(pair -> (pair.1, hex(pair.2)), headers)",
    )
    expected = []
    for letter in exported(case):
        names = ("position", "stage", "code", "field", "message", "fingerprint", "source", "topic", "partition", "offset", "attempts")
        content = [raw.hex().upper() if (raw := content_of(letter[name])) is not None else None for name in ("key", "value")]
        headers = [(name, raw.hex().upper() if (raw := content_of(written)) is not None else None) for name, written in letter["headers"]]
        sizes = [letter.get("value_bytes"), letter.get("value_sha256")]
        expected.append((*(letter[name] for name in names), *content, *sizes, headers))
    assert sorted(found, key=lambda row: row[9]) == sorted(expected, key=lambda row: row[9])
    assert [row[2] for row in found] == ["invalid_json", "wrong_type", "invalid_json", "invalid_json", "tombstone", "oversize"]
    assert found[3][-1] == [("h", "31"), ("h", "FF"), ("none", None)]
    with closing(case.log()) as log:
        account = tally(log, case.names, config_of(case).topology)
    (letters,) = account.of_kind("dead_letters")
    assert (letters.rows_in, letters.waiting, letters.outcomes, account.residue) == (6, 0, {"confirmed by ClickHouse": 6}, 0)
    audited, verified = proof(case, "audit"), proof(case, "verify")
    assert audited["counts"]["table (rejected)"] == 6
    assert (verified["counts"]["dead letters (rejected)"], verified["counts"]["found (rejected)"]) == (6, 6)


def content_of(written: Any) -> bytes | None:
    """The bytes of a key, a value or a header as `dlq export` writes them."""
    if isinstance(written, dict):
        return base64.b64decode(written["base64"])
    return None if written is None else str(written).encode()


def test_a_redriven_dead_letter_stays_and_its_successor_names_it(case: PipelineCase) -> None:
    with_tables(case)
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT odd CHECK id % 7 != 0")
    case.client().command(f"ALTER TABLE {case.table}_cheap ADD CONSTRAINT odd CHECK id % 7 != 0")
    case.send([order(n) for n in (6, 7, 8)], partitions=1)
    case.warm_run()
    # One record, and a dead letter of each table that refuses it.
    first = stored(case, "position, code, sink, attempts, past_dedup, origin")
    assert sorted(row[1:] for row in first) == [("refused", "sink", 1, True, None), ("refused", "sink:cheap", 1, True, None)]
    assert len({row[0] for row in first}) == 1
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    again = stored(case, "position, code, sink, attempts, origin")
    assert [row[:3] for row in again[:2]] == [row[:3] for row in first]
    assert sorted((row[2], row[3], row[4]) for row in again[2:]) == [("sink", 2, first[0][0]), ("sink:cheap", 2, first[0][0])]
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT odd")
    case.client().command(f"ALTER TABLE {case.table}_cheap DROP CONSTRAINT odd")
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert stored(case, "position, code, sink, attempts, origin") == again
    proof(case, "audit")
    proof(case, "verify")


def test_a_mapping_of_its_own_and_a_time_that_no_column_reaches(case: PipelineCase) -> None:
    mapping = [
        {"name": "code", "column_name": "why", "column_type": "LowCardinality(String)"},
        {"name": "value", "column_name": "record", "column_type": "Nullable(String)"},
        {"name": "timestamp", "column_name": "at", "column_type": "Nullable(DateTime64(6, 'UTC'))"},
    ]
    case.write_file(with_dead_letters(mapping=mapping, order_by=["why"]))
    case.create_topic(1, **{"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)})
    producer = make_producer(case.addresses.kafka_client)
    for milliseconds in (1, 253_402_300_799_000):
        producer.produce(case.topic, b"{", partition=0, timestamp=milliseconds)
    assert producer.flush(60) == 0
    case.warm_run()
    assert stored(case, "why, record, toString(at)") == [
        ("invalid_json", "{", "1970-01-01 00:00:00.001000"),
        ("invalid_json", "{", "2299-12-31 23:59:59.999999"),
    ]
    proof(case, "verify")


def test_a_refused_dead_letter_halts_its_leg(case: PipelineCase) -> None:
    with_tables(case)
    client = case.client()
    client.command(f"ALTER TABLE {case.table}_rejected ADD CONSTRAINT known CHECK code != 'tombstone'")
    case.send([order(1), b"{", None, b"[", order(2)], partitions=1)
    for _ in range(2):
        with pytest.raises(HaltError, match=r"the table refuses row 1 of sequence 1 of the dead-letter stream.*mend the table"):
            case.warm_run()
        assert (len(case.dead_letters()), [row[0] for row in stored(case, "code")]) == (3, ["invalid_json"])
    found = case.invoke("plan", "abandon", str(case.file), "--leg", "dead_letters", "--reason", "r", "--yes")
    assert found.exit_code != 0 and "would become dead letters again" in found.output
    client.command(f"ALTER TABLE {case.table}_rejected DROP CONSTRAINT known")
    case.warm_run()
    assert (len(case.dead_letters()), [row[0] for row in stored(case, "code")]) == (3, ["invalid_json", "tombstone", "invalid_json"])
    assert case.count() == 2
    proof(case, "audit")
    proof(case, "verify")


def test_a_dead_letter_is_not_purged_before_its_table_has_it(case: PipelineCase) -> None:
    def change(document: dict[str, Any]) -> None:
        with_dead_letters()(document)
        document["dead_letters"] = {"max_age": "1ms"}

    case.write_file(change)
    case.create_topic(1)
    case.send([b"{1", b"{2"], partitions=1)
    rows = ("ingest", "process", "sink")
    case.warm_run(legs=rows)
    case.send([b"{3"], partitions=1)
    case.warm_run(legs=rows)
    case.send([b"{4"], partitions=1)
    for _ in range(2):
        case.warm_run(legs=rows)
    assert expired(case) == 3
    assert [letter["value"] for letter in case.dead_letters()] == [b"{1", b"{2", b"{3", b"{4"]
    case.warm_run()
    assert [row[0] for row in stored(case, "value")] == ["{1", "{2", "{3", "{4"]
    expired(case)
    assert [letter["value"] for letter in case.dead_letters()] == [b"{4"]
    case.send([b"{5"], partitions=1)
    case.warm_run()
    assert [row[0] for row in stored(case, "value")] == ["{1", "{2", "{3", "{4", "{5"]
    expired(case)
    # The records are on raw still, their dead letters are not: said for each table of rows.
    assert by_number(case) == {"audit": [], "verify": ["records that must be dead letters"] * 2}
    place = f"{case.table}_rejected"
    case.client().command(f"INSERT INTO {place} SELECT * FROM {place} WHERE value = '{{1'")
    assert {command: said[-1] for command, said in by_number(case).items()} == dict.fromkeys(
        ("audit", "verify"), "rows of the table beyond those that the ledger counts"
    )
    case.client().command(f"ALTER TABLE {place} DELETE WHERE value IN ('{{1', '{{2') SETTINGS mutations_sync = 1")
    assert {command: said[-1] for command, said in by_number(case).items()} == dict.fromkeys(
        ("audit", "verify"), "rows that the ledger counts and the table does not hold"
    )


def by_number(case: PipelineCase) -> dict[str, list[str]]:
    """What each proof cannot prove; neither has a finding, and both say how many rows of purged dead letters there are."""
    found = {}
    for command in ("audit", "verify"):
        report = json.loads(case.invoke(command, str(case.file), "--json").stdout)
        assert report["findings"] == [], report
        (purged,) = (gap["count"] for gap in report["not_compared"] if "dead letters that are purged" in gap["what"])
        rows = case.client().query(f"SELECT count() FROM {case.table}_rejected WHERE value != '{{5'").result_rows[0][0]
        assert purged == rows
        found[command] = [gap["what"].partition(":")[0] for gap in report["not_proven"]]
    return found


def expired(case: PipelineCase) -> int:
    """Expire the dead letters as the runner's retention does; return how many are discarded by now."""
    config = config_of(case)
    with closing(case.log()) as log:
        expire_dead_letters(config, case.names.directory(case.home), log)
        return tally(log, case.names, config.topology).dead_letters.outcomes["discarded"]


CHANGES = {
    "offset = 2": ("DELETE", "missing", None),
    "offset = 3": ("UPDATE message = 'other'", "different", "message"),
    "offset = 4": ("UPDATE fingerprint = ''", "different", "fingerprint"),
    "offset = 5": ("UPDATE headers = [('a', 'b')]", "different", "headers"),
}
"""What is done to a row, and what verification finds."""
FOREIGN = ("* REPLACE (9 AS _tf_sequence)", "* REPLACE (7 AS _tf_ordinal)", "*")
"""Rows made of another: two of no dead letter, and a copy."""


def test_checks_and_proofs_know_the_table_and_its_faults(case: PipelineCase) -> None:
    case.write_file(with_dead_letters())
    case.create_topic(1)
    case.send([order(1), b"{", None, None, None, None], partitions=1)
    case.warm_run(legs=("ingest",))
    case.warm_run()
    config, table = config_of(case), f"{case.table}_rejected"
    with Look(config) as look:
        for name in ("conservation", "duplicates", "gaps", "schema_drift", "insert_window", "views"):
            assert look.check(name).passed, look.check(name)
    account = read_account(config, 0)
    assert numbers(account, "clickhouse_table_rejected") == {"dagster/row_count": 5, "waiting_rows": 0}
    assert account.confirmed_to[LEG] == 1
    case.client().command(f"CREATE TABLE {table}_kept ENGINE = Memory AS SELECT * FROM {table} WHERE offset = 2")
    for place, (change, _, _) in CHANGES.items():
        case.client().command(f"ALTER TABLE {table} {change} WHERE {place} SETTINGS mutations_sync = 2")
    audited, verified = findings(case, "audit"), findings(case, "verify")
    assert [(one["place"], one["kind"], one["count"]) for one in audited] == [("dead letters -> table (rejected)", "missing", 1)]
    assert {(one["place"], one["count"]) for one in verified} == {("rows of dead letters (rejected)", 1)}
    kinds = [(kind, column) for _, kind, column in CHANGES.values()]
    assert sorted((one["kind"], one["column"] or "") for one in verified) == sorted((kind, column or "") for kind, column in kinds)
    row = f"(SELECT * FROM {table} WHERE (_tf_sequence, _tf_ordinal) = (1, 1) LIMIT 1)"
    for rows in (f"* FROM {table}_kept", *(f"{columns} FROM {row}" for columns in FOREIGN)):
        case.client().command(f"INSERT INTO {table} SELECT {rows}")
    with Look(config) as look:
        assert not look.check("duplicates").passed
        assert not look.check("gaps").passed
    for found in (findings(case, "audit"), findings(case, "verify")):
        assert sum(one["count"] for one in found if one["kind"] == "extra") == 2, found
        assert sum(one["count"] for one in found if one["kind"] == "doubled") == 1, found


def findings(case: PipelineCase, command: str) -> list[dict[str, Any]]:
    return list(json.loads(case.invoke(command, str(case.file), "--json").stdout)["findings"])


def test_a_table_without_positions_is_refused_at_the_start(case: PipelineCase) -> None:
    mapping = [{"name": "code", "column_name": "code", "column_type": "String"}]
    case.write_file(with_dead_letters(mapping=mapping, create_table=False))
    case.create_topic(1)
    case.client().command(
        f"CREATE TABLE {case.table}_rejected (code String) ENGINE = MergeTree ORDER BY () SETTINGS non_replicated_deduplication_window = 99"
    )
    found = case.invoke("run", str(case.file), "--until-caught-up")
    assert found.exit_code == 2 and "sinks[1].table: the table lacks _tf_sequence" in found.output, found.output


def test_the_leg_runs_alone_and_is_then_fixed(case: PipelineCase) -> None:
    case.write_file(with_dead_letters())
    case.create_topic(1)
    case.send([order(1), b"{"], partitions=1)
    case.warm_run(legs=("ingest", "process", "sink"))
    assert stored(case) == []
    with closing(case.log()) as log:
        assert tally(log, case.names, config_of(case).topology).of_kind("dead_letters")[0].waiting == 1
    for command in ("audit", "verify"):
        report = json.loads(case.invoke(command, str(case.file), "--json").stdout)
        assert report["verdict"] == "not proven", report
    case.warm_run(legs=("dead_letters:rejected",))
    assert len(stored(case)) == 1
    with closing(case.log()) as log:
        assert read_chain(log, case.names, LEG.chain).to == 1
    case.write_file(lambda document: (with_dead_letters()(document), document["sinks"].pop(1)))
    with pytest.raises(HaltError, match="sinks of dead letters"):
        case.warm_run()
