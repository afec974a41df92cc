"""Tables on two ClickHouse servers, one of them away, one refusing into another, kills at failpoints and at random: each by its account.

The account is this file's alone: Kafka's records by a plain consumer, the tables by SQL.
"""

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from support.pipeline_case import PipelineCase, wait_until

from pipelines.protocol.failpoints import VARIABLE
from resources.local.clickhouse.service import ClickHouse
from resources.local.stack import LocalStack

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]
KILLS = int(os.environ.get("TALLYFLOW_SINK_KILLS", "4"))
AWAY_SECONDS = float(os.environ.get("TALLYFLOW_SINK_AWAY", "15"))
"""How long a server is away."""
ODD = 13
"""The table `strict` refuses the ids that it divides."""


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Another ClickHouse server."""
    stack = LocalStack(tmp_path_factory.mktemp("second"), kinds=[ClickHouse()])
    stack.up()
    yield stack
    stack.down()


class Tables:
    """The tables of a case, and what they must hold."""

    def __init__(self, case: PipelineCase, second: LocalStack) -> None:
        self.case, self.second, self.sent = case, second, 0
        case.write_file(self._with_sinks)
        case.create_topic()
        case.warm_run()
        case.client().command(f"ALTER TABLE {case.table}_strict ADD CONSTRAINT odd CHECK id % {ODD} != 0")

    def _with_sinks(self, document: dict[str, Any]) -> None:
        sink, there = document.pop("sink"), self.second.addresses()
        connection = {
            "host": there.clickhouse_host,
            "port": there.clickhouse_port,
            "username": there.clickhouse_user,
            "password": there.clickhouse_password,
        }
        document["transforms"] = [{"type": "dedup", "config": {"key": "id", "time_window": "1h"}}]
        document["on_error"] = {"max_rejected_percent": 100}
        reason = {"name": "_tf_error", "column_name": "why", "column_type": "String"}
        document["sinks"] = [
            {**sink, "id": "every"},
            {**sink, "id": "cheap", "when": "amount < 10", "table": f"{self.case.table}_cheap", "connection_params": connection},
            {**sink, "id": "strict", "when": "amount >= 5", "table": f"{self.case.table}_strict", "on_refused": {"sink": "rest"}},
            {**sink, "id": "rest", "table": f"{self.case.table}_rest", "mapping": [*sink["mapping"], reason]},
        ]

    def send(self, count: int) -> None:
        """Records of which every fifth is a copy of the one before, and every 50th is broken."""
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        self.case.send(
            b"{" if n % 50 == 49 else json.dumps({"id": n - (n % 5 == 4), "name": "n", "amount": n % 20}).encode() for n in numbers
        )

    @property
    def distinct(self) -> int:
        """The number of ids in what was sent."""
        return len({n - (n % 5 == 4) for n in range(self.sent) if n % 50 != 49})

    @property
    def clients(self) -> dict[str, Client]:
        there = self.second.addresses()
        login = {"username": there.clickhouse_user, "password": there.clickhouse_password}
        other = clickhouse_connect.get_client(host=there.clickhouse_host, port=there.clickhouse_port, **login)
        return {"": self.case.client(), "_cheap": other, "_strict": self.case.client(), "_rest": self.case.client()}

    def found(self) -> dict[str, list[int]]:
        return {
            suffix: [number for (number,) in client.query(f"SELECT id FROM {self.case.table}{suffix} ORDER BY id").result_rows]
            for suffix, client in self.clients.items()
        }

    def ids(self) -> list[int]:
        """The ids that Kafka holds; which of two records with one id came first, the table `every` says."""
        return sorted({json.loads(value or b"")["id"] for value in self.case.records().values() if value != b"{"})

    def check(self) -> None:
        """Each table holds what its condition takes of the rows of the first; `rest` what `strict` refuses. Letters are broken records."""
        case = self.case
        rows = dict(case.client().query(f"SELECT id, amount FROM {case.table}").result_rows)
        found = self.found()
        assert found[""] == self.ids()
        assert found["_cheap"] == sorted(number for number, amount in rows.items() if amount < 10)
        taken = [number for number, amount in rows.items() if amount >= 5]
        assert found["_strict"] == sorted(number for number in taken if number % ODD)
        assert found["_rest"] == sorted(number for number in taken if number % ODD == 0)
        assert {letter["stage"] for letter in case.dead_letters()} == {"parse"}
        assert len(case.dead_letters()) == sum(value == b"{" for value in case.records().values())
        for command in ("audit", "verify"):
            report = json.loads(case.invoke(command, str(case.file), "--json").stdout)
            assert (report["verdict"], report["findings"], report["not_proven"]) == ("clean", [], []), report


@pytest.fixture
def tables(case: PipelineCase, second: LocalStack, tmp_path: Path) -> Tables:
    return Tables(case, second)


@pytest.mark.parametrize(
    "points",
    [
        ("process.between-frames:1", "sink.after-insert:2", "sink.after-amend:1"),
        ("process.after-state:1", "process.after-publish:1", "sink.before-insert:3"),
        ("leg.before-commit:2", "leg.after-plan:2", "sink.after-insert:1"),
        ("sink.after-divert:1", "sink.after-insert:4", "sink.after-divert:2"),
    ],
)
def test_each_table_is_exact_after_kills_at_failpoints(tables: Tables, points: tuple[str, ...]) -> None:
    for point in points:
        tables.send(400)
        killed = tables.case.run_plain(**{VARIABLE: point})
        assert killed.returncode == -9, (point, killed.stderr)
    tables.case.warm_run()
    tables.check()


def test_each_table_is_exact_after_kills_at_random(tables: Tables) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(KILLS):
        process = tables.case.start_plain()
        tables.send(chance.randrange(100, 600))
        time.sleep(chance.uniform(0, 1.5))
        process.kill()
        process.wait()
    tables.case.warm_run()
    tables.check()


def test_a_server_that_is_away_holds_back_its_own_table_only(tables: Tables) -> None:
    runner = tables.case.warm_runner(until_caught_up=False)
    thread = tables.case.in_background(runner)
    server = tables.second.server("clickhouse")
    server.kill()
    case, end = tables.case, time.monotonic() + AWAY_SECONDS
    while time.monotonic() < end:
        tables.send(50)
        wait_until(lambda: case.count() == tables.distinct, "the rows of the first table")
    wait_until(lambda: runner.legs[runner.topology.sinks[1]].status.state == "waiting", "a sink that waits")
    server.start()
    wait_until(lambda: len(tables.found()["_cheap"]) > 0, "rows in the table that was away")
    runner.request_stop()
    thread.join()
    case.warm_run()
    tables.check()
