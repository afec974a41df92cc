"""Confirmed rows that the table has lost come back from raw, with the same values, each once; nothing else is touched."""

from pathlib import Path
from typing import Any

import pytest
from support.dedup_case import keyed_by
from support.pipeline_case import PipelineCase

from pipelines.config import load
from pipelines.errors import FencedError, HaltError
from pipelines.proof.checks.run import Look
from pipelines.proof.put_back import PutBack, put_back
from pipelines.proof.verification.run import Request
from pipelines.protocol.failpoints import VARIABLE
from pipelines.protocol.lease import Lease
from pipelines.protocol.naming import PUT_BACK

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]


@pytest.fixture
def done(case: PipelineCase) -> PipelineCase:
    """With dedup: 90 events, three of them sent again, three broken."""
    case.write_file(keyed_by("id", window="1h"))
    case.create_topic()
    case.send_events(90, bad_every=30)
    case.send([b'{"id": 5, "name": "again"}', b'{"id": 7, "name": "again"}'])
    case.warm_run()
    return case


def repaired(case: PipelineCase, **options: Any) -> PutBack:
    config, log = load(case.file, case.environment()), case.log()
    try:
        return put_back(config, log, Request(case.names.directory(case.home)), **options)
    finally:
        log.close()


def everything(case: PipelineCase) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in case.client().query(f"SELECT * FROM {case.table} ORDER BY id").result_rows]


def delete(case: PipelineCase, where: str) -> None:
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE {where} SETTINGS mutations_sync = 2")


def gaps(case: PipelineCase) -> str:
    with Look(load(case.file, case.environment())) as look:
        return look.check("gaps").message


def test_lost_rows_come_back_with_their_values_once(done: PipelineCase) -> None:
    before = everything(done)
    delete(done, "id IN (3, 5, 17, 80)")
    assert gaps(done) == "4 of 87 confirmed rows are missing"
    found = repaired(done)
    assert (found.missing, found.rows, found.before.is_clean, found.after.is_clean) == (4, 4, False, True)
    assert everything(done) == before, "copies and broken records have no row, as before"
    assert gaps(done) == "87 positions, as confirmed"
    again = repaired(done)
    assert (again.missing, again.rows) == (0, 0)
    assert everything(done) == before


def test_rows_that_are_lost_again_come_back_again(done: PipelineCase) -> None:
    """The table remembers the insert that brought them back; the next one must not look like it."""
    before = everything(done)
    for _ in range(2):
        delete(done, "id = 17")
        assert repaired(done).rows == 1
    assert everything(done) == before


def test_rows_that_the_sink_has_not_confirmed_are_left_to_it(done: PipelineCase) -> None:
    done.send_events(30)
    killed = done.run_plain(**{VARIABLE: "sink.before-insert:1"})
    assert (killed.returncode, done.count()) == (-9, 87), "a chunk is planned, and not in the table"
    delete(done, "id = 17")
    assert repaired(done).rows == 1
    assert done.count() == 87
    done.warm_run()
    assert (done.count(), gaps(done)) == (117, "117 positions, as confirmed")


def test_what_came_back_meanwhile_is_not_inserted_again(done: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """An insert of a command that was killed lands while the next one begins."""
    before = everything(done)
    rescued = done.client().query(f"SELECT * FROM {done.table} WHERE id = 17").result_rows[0]
    names = [column for column, *_ in done.client().query(f"DESCRIBE TABLE {done.table}").result_rows]
    delete(done, "id IN (17, 18)")
    acquire = Lease.acquire

    def landed(self: Lease) -> int:
        done.client().insert(done.table, [rescued], column_names=names)
        return acquire(self)

    monkeypatch.setattr(Lease, "acquire", landed)
    found = repaired(done)
    assert (found.missing, found.rows, found.after.is_clean) == (2, 1, True)
    assert everything(done) == before


def test_two_commands_at_once_are_one(done: PipelineCase, tmp_path: Path) -> None:
    delete(done, "id = 17")
    log = done.log()
    lease = Lease(log, done.names, done.names.directory(done.home), PUT_BACK)
    lease.acquire()
    with pytest.raises(FencedError):
        repaired(done)
    lease.release()
    log.close()
    assert repaired(done).rows == 1


def test_a_table_that_removes_or_feeds_views_is_refused(done: PipelineCase) -> None:
    client = done.client()
    client.command(f"CREATE TABLE {done.table}_copy (id Int64) ENGINE = MergeTree ORDER BY id")
    client.command(f"CREATE MATERIALIZED VIEW {done.table}_view TO {done.table}_copy AS SELECT id FROM {done.table}")
    delete(done, "id = 17")
    with pytest.raises(HaltError, match="would get the rows again; nothing was inserted"):
        repaired(done)
    assert repaired(done, feed_views=True).rows == 1
    assert client.query(f"SELECT id FROM {done.table}_copy").result_rows == [(17,)]
    client.command(f"DROP VIEW {done.table}_view")
    delete(done, "id = 18")
    client.command(f"ALTER TABLE {done.table} MODIFY TTL toDateTime(_tf_arrival) + INTERVAL 1 YEAR")
    with pytest.raises(HaltError, match="its TTL removes rows"):
        repaired(done)


def test_rows_of_several_configurations_come_back_as_made(case: PipelineCase) -> None:
    """Each by the configuration that its range was done with: the mapping was changed in between."""
    case.create_topic()
    case.send_events(30)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN title String")

    def with_title(document: dict[str, Any]) -> None:
        document["sink"]["mapping"].append({"name": "name", "column_name": "title", "column_type": "String"})

    case.write_file(with_title)
    case.send_events(30)
    case.warm_run()
    before = everything(case)
    delete(case, "id IN (3, 40)")
    assert repaired(case).rows == 2
    assert everything(case) == before


def test_rows_from_before_a_rename_need_a_table_with_positions(done: PipelineCase) -> None:
    def with_title(document: dict[str, Any]) -> None:
        keyed_by("id", window="1h")(document)
        document["sink"]["mapping"][1]["column_name"] = "title"

    delete(done, "id = 17")
    done.client().command(f"ALTER TABLE {done.table} RENAME COLUMN name TO title")
    done.write_file(with_title)
    before = everything(done)
    with pytest.raises(
        HaltError, match="its columns differ from those that the rows were made for: the table has no column 'name', the rows hold String"
    ):
        repaired(done)
    assert everything(done) == before
