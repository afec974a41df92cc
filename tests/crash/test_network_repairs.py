"""The network fails under what repairs: settling an insert, giving rows up, putting rows back, reading the lists of runs.

The rows are counted by a client that goes to the servers themselves.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.dedup_case import check_first_of_keys, copies, keyed_by
from support.network_case import Proxied, stop, through, waits
from support.pipeline_case import PipelineCase, wait_until
from support.put_back_case import repaired
from support.refused_case import positions

import pipelines.maintenance.plans
from pipelines.config import load
from pipelines.connectors.clickhouse import client as clickhouse_connector
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.nats import streams as jetstream_connector
from pipelines.errors import RetryableError
from pipelines.proof import put_back as repair
from pipelines.protocol.failpoints import VARIABLE
from pipelines.runner.runner import Runner

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]

LOOK_UP = b"fromUnixTimestamp64Micro"
"""Of the statements that a sink sends, only the look-up of stored rows has it."""


def refuse_sevens(case: PipelineCase) -> None:
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT seven CHECK id % 100 != 7")


def stored_without_an_answer(proxied: Proxied, lose_answers: Callable[[], None]) -> Runner:
    """A runner whose 300 rows are stored while their answers are lost; the table refuses three of them when they are sent again."""
    case, nats, clickhouse = proxied

    def impatient(document: dict[str, Any]) -> None:
        through(case, nats, clickhouse)(document)
        document["sink"]["max_insert_time"] = "1s"

    case.write_file(impatient)
    case.create_topic()
    case.warm_run()
    case.send_events(300)
    lose_answers()
    runner = case.warm_runner()
    case.in_background(runner)
    case.wait_count(1)
    waits(runner, "sink", "did not answer")
    refuse_sevens(case)
    return runner


def check_settled(case: PipelineCase, runner: Runner) -> None:
    """Each of the 300 records is a row or a letter, once."""
    wait_until(lambda: runner.legs["sink"].status.totals.get("rows_in") == 300, "a settled chunk")
    stop(case, runner)
    rows, unique = positions(case)
    assert rows == unique
    assert rows + len(case.dead_letters()) == 300
    case.check()


def test_a_cut_answer_is_never_taken_for_an_empty_one(proxied: Proxied) -> None:
    """Among its headers, too: `http.client` takes the end of the connection for theirs."""
    case, _, clickhouse = proxied
    server = ClickHouse(load(case.file, case.environment()).sink).connect()
    outcomes = []
    for after_bytes in range(1, 600, 9):
        clickhouse.cut(10, b"'the answer'", after_bytes=after_bytes)
        try:
            assert server.rows("asking", "SELECT 'the answer'") == [("the answer",)]
            outcomes.append("answered")
        except RetryableError:
            outcomes.append("cut")
    server.close()
    assert set(outcomes) == {"answered", "cut"}


@pytest.mark.parametrize("fault", ["cut before the answer", "cut in the answer", "late"])
def test_a_failed_look_up_of_rows_is_repeated_before_deciding(proxied: Proxied, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """300 rows are stored, their answers lost, and the table refuses three of them when they are sent again."""
    monkeypatch.setattr(clickhouse_connector, "RESPONSE_TIMEOUT_SECONDS", 1)
    case, _, clickhouse = proxied
    runner = stored_without_an_answer(proxied, lambda: clickhouse.cut(1_000_000, b"INSERT"))
    # urllib3 asks three times at once where nothing was answered.
    before, cuts = clickhouse.cuts, 6 if fault == "cut before the answer" else 2
    if fault == "late":
        clickhouse.cut(0, b"")
        clickhouse.mute(LOOK_UP)
    else:
        clickhouse.cut(cuts, LOOK_UP, after_bytes=0 if fault == "cut before the answer" else 400)
    waits(runner, "sink", "reading which rows are in")
    assert runner.legs["sink"].status.totals.get("rows_in", 0) < 300
    if fault == "late":
        clickhouse.pass_on()
    else:
        wait_until(lambda: clickhouse.cuts >= before + cuts, "every cut")
    check_settled(case, runner)


def test_an_insert_answered_too_late_is_settled_not_doubled(proxied: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clickhouse_connector, "RESPONSE_TIMEOUT_SECONDS", 1)
    case, _, clickhouse = proxied
    runner = stored_without_an_answer(proxied, lambda: clickhouse.mute(b"INSERT"))
    clickhouse.pass_on()
    check_settled(case, runner)


@pytest.mark.parametrize("of", ["ledger.sink", "dlq.sink", "ledger.lease.sink"])
def test_rows_are_given_up_once_although_nats_is_cut(proxied: Proxied, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    monkeypatch.setattr(jetstream_connector, "REQUEST_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(pipelines.maintenance.plans, "INSERT_MAX_EXECUTION_SECONDS", 0)
    case, nats, _ = proxied
    case.create_topic()
    case.warm_run()
    case.send_events(100)
    case.run_in_turn("ingest", "process")
    assert case.run_plain(**{VARIABLE: "sink.before-insert:1"}).returncode == -9
    nats.cut(3, b"HPUB tf.%s.%s" % (case.pipeline.encode(), of.encode()))
    arguments = ["plan", "abandon", str(case.file), "--leg", "sink", "--reason", "the column is gone", "--yes", "--json"]

    def is_given_up() -> bool:
        return bool(case.invoke(*arguments).exit_code == 0)

    wait_until(is_given_up, "a command that comes through")
    assert nats.cuts == 3
    case.warm_run()
    assert (case.count(), len(case.dead_letters())) == (0, 100)
    assert {(dead_letter["code"], dead_letter["message"]) for dead_letter in case.dead_letters()} == {("abandoned", "the column is gone")}
    case.check()
    assert case.invoke("audit", str(case.file)).exit_code == 0


@pytest.mark.parametrize("fault", ["insert", "look-up", "half an insert"])
def test_rows_are_put_back_once_although_clickhouse_is_cut(proxied: Proxied, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(repair, "QUIET_SECONDS", 0)
    case, _, clickhouse = proxied
    case.create_topic()
    case.send_events(600, name_bytes=400)
    case.warm_run()
    asked = f"SELECT * FROM {case.table} ORDER BY id"
    before = case.client().query(asked).result_rows
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id % 3 = 0 SETTINGS mutations_sync = 2")
    if fault == "half an insert":
        clickhouse.half_close(2, b"INSERT", after_bytes=20_000)
    else:
        # The driver sends a request again once by itself.
        clickhouse.cut(4, b"INSERT" if fault == "insert" else b"_tf_ordinal AS ordinal\nFROM")

    def is_repaired() -> bool:
        try:
            return repaired(case).after.is_clean
        except RetryableError:
            return False

    wait_until(is_repaired, "rows that are back")
    assert clickhouse.cuts + clickhouse.half_closes >= 2
    assert case.client().query(asked).result_rows == before
    assert repaired(case).missing == 0
    case.check()


def test_lists_of_runs_survive_slow_and_broken_networks(proxied: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_connector, "REQUEST_TIMEOUT_SECONDS", 1)
    case, nats, clickhouse = proxied

    def deduplicated(document: dict[str, Any]) -> None:
        through(case, nats, clickhouse)(document)
        keyed_by("id")(document)

    case.write_file(deduplicated)
    case.create_topic()
    nats.latency_seconds = 0.02
    for number in range(2):
        case.send(copies(400, first=400 * number, keys=701))
        before = nats.cuts
        nats.cut(2 * bool(number), b"$JS.API.STREAM.MSG.GET.%s" % case.names.stream("runs").encode())
        case.warm_run()
        assert nats.cuts == before + 2 * bool(number), "lists were read"
    found = json.loads(case.invoke("state", str(case.file), "--json").stdout)
    assert sum(bucket["entries"] for bucket in found["buckets"]) == case.count()
    check_first_of_keys(case)
