"""The ledger as a ClickHouse table: whole, in order, once, and never in the way of the pipeline."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.pipeline_case import PipelineCase, wait_until

import pipelines.sink.ledger_copier
from pipelines.config import parse
from pipelines.protocol.naming import STREAM_ID_KEY
from pipelines.protocol.records import Message
from pipelines.runner.status import snapshot
from pipelines.sink.ledger_copier import LedgerCopier
from pipelines.testing import LEGS

PAGE = Path(__file__).parents[2] / "docs" / "ledger-table.md"

pytestmark = pytest.mark.integration


def with_ledger(case: PipelineCase) -> str:
    """The name of the ledger's table, which the file now has."""
    name = f"ledger_{case.table}"
    case.write_file(lambda document: document["sink"].update(ledger_table=name))
    return name


def entries(case: PipelineCase) -> list[Message]:
    """The chain entries, from the stream."""
    log = case.log()
    state = log.state(case.names.stream("ledger"))
    assert state is not None
    found = log.fetch(case.names.stream("ledger"), case.names.subjects("ledger"), 0, state.last_sequence)
    chains = {case.names.chain(leg) for leg in LEGS}
    kept = [message for message in found if message.subject in chains]
    log.close()
    return kept


def in_table(case: PipelineCase, table: str, columns: str = "sequence, body") -> list[tuple[Any, ...]]:
    """The rows as they lie there: without FINAL, so what a merge would drop shows."""
    return [tuple(row) for row in case.client().query(f"SELECT {columns} FROM {table} ORDER BY sequence").result_rows]


@contextmanager
def copier(case: PipelineCase) -> Iterator[LedgerCopier]:
    """One that is not the runner's own."""
    config = parse(case.file.read_text(), name="case", environment=case.environment())
    log = case.log()
    state = log.state(case.names.stream("ledger"))
    assert state is not None
    lease: Any = SimpleNamespace(remaining_seconds=60.0, holder=SimpleNamespace(epoch=1))
    yield LedgerCopier(config.sink, case.names, log, state.metadata[STREAM_ID_KEY], lease)
    log.close()


def test_the_table_holds_every_entry_once_after_each_run(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second run waits so long for what the first may still be inserting, which has ended.
    monkeypatch.setattr(pipelines.sink.ledger_copier, "INSERT_MAX_EXECUTION_SECONDS", 2)
    table = with_ledger(case)
    case.create_topic()
    for _ in range(2):
        case.send_events(300, bad_every=100)
        case.warm_run()
        assert in_table(case, table) == [(message.sequence, message.payload.decode()) for message in entries(case)]
    (row,) = in_table(case, table, "leg, kind, range_to, counts['rows_out'], pipeline, epoch")[-1:]
    done = json.loads(entries(case)[-1].payload)
    assert row == ("sink", "done", str(done["to"]), done["counts"]["rows_out"], case.pipeline, 2)
    queries = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    per_hour, lag, reasons = (documented(case, table, query) for query in queries)
    counted = Counter[str]()
    for _, leg, rows_in, _ in per_hour:
        counted[leg] += rows_in
    assert counted == {"ingest": 600, "process": 600, "sink": 594}
    assert lag[0][:2] == (0, 0)
    assert reasons == [("parse", "invalid_json", 6)]
    case.check()


def documented(case: PipelineCase, table: str, query: str) -> list[tuple[Any, ...]]:
    """The answer to a query of the documents."""
    own = query.replace("FROM ledger", f"FROM {table}").replace("'orders'", f"'{case.pipeline}'")
    return [tuple(row) for row in case.client().query(own).result_rows]


def test_a_retry_and_a_second_copier_double_nothing(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(300)
    case.warm_run()
    table = with_ledger(case)
    with copier(case) as first, copier(case) as second:
        # Both have looked at the empty table before either wrote.
        for one in (first, second):
            one._copied_to = one._prepare()
        assert first.copy() == second.copy() == len(entries(case))
        assert first.copy() == 0
        assert len(in_table(case, table)) == len(entries(case))
        first._copied_to = 0
        assert first.copy() == len(entries(case))
    assert [sequence for sequence, _ in in_table(case, table)] == [message.sequence for message in entries(case)]


@pytest.mark.crash
@pytest.mark.parametrize("trouble", ["a table of other columns", "a table that is dropped"])
def test_its_trouble_is_in_the_status_and_the_pipeline_goes_on(case: PipelineCase, trouble: str) -> None:
    table = with_ledger(case)
    case.create_topic()
    if trouble == "a table of other columns":
        case.client().command(f"CREATE TABLE {table} (x Int64) ENGINE = MergeTree ORDER BY x")
    runner = case.warm_runner(until_caught_up=False)
    case.in_background(runner)
    assert [*runner.copiers] == ["sink"]
    case.send_events(30)
    case.wait_count(30)
    if trouble == "a table of other columns":
        found = wait_until(lambda: snapshot(runner)["ledger_tables"]["sink"]["message"], "the copier's trouble")
        assert f"reading table default.{table}" in found
        assert snapshot(runner)["healthy"]
    case.client().command(f"DROP TABLE IF EXISTS {table} SYNC")
    case.send_events(30)
    wait_until(lambda: _exists(case, table) and in_table(case, table) == _rows(case), "a new table with all entries")
    assert snapshot(runner)["ledger_tables"]["sink"] | {"copied_to": 0} == {
        "table": f"default.{table}",
        "copied_to": 0,
        "state": "running",
        "message": "",
    }
    case.wait_count(60)
    case.check()


def _exists(case: PipelineCase, table: str) -> bool:
    return bool(case.client().query("SELECT count() FROM system.tables WHERE name = {t:String}", {"t": table}).result_rows[0][0])


def _rows(case: PipelineCase) -> list[tuple[Any, ...]]:
    return [(message.sequence, message.payload.decode()) for message in entries(case)]
