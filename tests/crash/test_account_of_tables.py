"""Five tables on two ClickHouse servers, one server away, one table refusing into another, runners killed: each by an outside account.

`account_of_tables.py` is a program of its own that imports nothing of ours.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pipeline_case import PipelineCase, wait_until

from pipelines.errors import HaltError
from pipelines.protocol.failpoints import VARIABLE
from resources.local.clickhouse.service import ClickHouse
from resources.local.stack import Addresses, LocalStack

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]
KILLS = int(os.environ.get("TALLYFLOW_SINK_KILLS", "4"))
AWAY_SECONDS = float(os.environ.get("TALLYFLOW_SINK_AWAY", "15"))
"""How long a server is away."""
MOST_RECORDS = int(os.environ.get("TALLYFLOW_SINK_RECORDS", "1500"))
"""Limit of the records before a kill; `strict` refuses about one of 22."""
PROGRAM = Path(__file__).with_name("account_of_tables.py")
POINTS = ("process.after-publish:1", "sink.before-insert:2", "sink.after-insert:3", "sink.after-amend:2", "sink.after-divert:1")


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Another ClickHouse server."""
    stack = LocalStack(tmp_path_factory.mktemp("second"), kinds=[ClickHouse()])
    stack.up()
    yield stack
    stack.down()


class Tables:
    """The pipeline of a case, and its tables: `cheap` and `rejected` are on the second server."""

    def __init__(self, case: PipelineCase, second: LocalStack) -> None:
        self.case, self.second, self.sent = case, second, 0
        case.write_file(self._with_sinks)
        case.create_topic()
        case.warm_run()
        case.client().command(f"ALTER TABLE {case.table}_strict ADD CONSTRAINT odd CHECK id % 13 != 0")

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
        of_letters = {name: value for name, value in sink.items() if name != "mapping"}

        def table(name: str, of: dict[str, Any] = sink, **more: Any) -> dict[str, Any]:
            return {**of, "id": name, "table": f"{self.case.table}_{name}", **more}

        document["sinks"] = [
            table("every"),
            table("cheap", when="amount < 10", connection_params=connection),
            table("strict", when="amount >= 5", on_refused={"sink": "rest"}),
            table("rest", mapping=[*sink["mapping"], reason]),
            table("rejected", of_letters, **{"from": "dead_letters"}, connection_params=connection),
        ]

    def send(self, count: int) -> None:
        """Records of which every fifth is a copy of the one before, and every 50th is broken."""
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        self.case.send(b"{" if n % 50 == 48 else _record(n - (n % 5 == 4)) for n in numbers)

    def counted(self) -> int:
        """Rows of the first table."""
        return int(self.case.client().query(f"SELECT count() FROM {self.case.table}_every").result_rows[0][0])

    def ids_sent(self) -> int:
        return len({n - (n % 5 == 4) for n in range(self.sent) if n % 50 != 48})

    def catch_up(self) -> int:
        """Run until all is confirmed; return the number of starts. Each takes at most 1,000 refused rows of one chunk, then it halts."""
        for start in range(1, 20):
            try:
                self.case.warm_run()
            except HaltError as halt:
                assert "more than 1000 of its rows are refused" in str(halt)
            else:
                return start
        raise AssertionError("the pipeline does not catch up")

    def account(self) -> dict[str, Any]:
        """What the program from outside finds. Raise AssertionError if a table is uneven."""
        case, there = self.case, self.second.addresses()
        places = dict.fromkeys(("every", "strict", "rest"), case.addresses) | dict.fromkeys(("cheap", "rejected"), there)
        asked = {
            "kafka": case.addresses.kafka_client,
            "topic": case.topic,
            "tables": {name: _place(at, f"{case.table}_{name}") for name, at in places.items()},
            "dead_letters": {"url": case.addresses.nats_url, "stream": case.names.stream("dlq"), "subject": case.names.subjects("dlq")},
        }
        # Alone in its directory, without a path to our code.
        script = shutil.copy(PROGRAM, case.directory)
        found = subprocess.run(
            [sys.executable, "-P", script], input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=600
        )
        assert found.returncode == 0, found.stdout + found.stderr
        counts: dict[str, Any] = json.loads(found.stdout)
        return counts


def _place(at: Addresses, table: str) -> dict[str, str]:
    url = f"http://{at.clickhouse_host}:{at.clickhouse_port}/"
    return {"url": url, "user": at.clickhouse_user, "password": at.clickhouse_password, "table": table}


def _record(number: int) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}", "amount": number % 20}).encode()


@pytest.fixture
def tables(case: PipelineCase, second: LocalStack) -> Tables:
    return Tables(case, second)


def test_each_table_is_even_after_an_absence_refusals_and_kills(tables: Tables) -> None:
    seed = random.randrange(2**32)
    chance, case, began = random.Random(seed), tables.case, time.monotonic()
    runner = case.start_plain()
    case.wait_ready(runner)
    server = tables.second.server("clickhouse")
    server.kill()
    end = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < end:
        tables.send(50)
        wait_until(lambda: tables.counted() == tables.ids_sent(), "the rows of the table that nothing holds back")
    legs = (case.ask() or {"legs": {}})["legs"]
    assert (legs["sink"]["state"], legs["sink:cheap"]["state"], legs["dead_letters:rejected"]["state"]) == ("running", "waiting", "waiting")
    runner.kill()
    runner.wait()
    server.start()
    for number in range(KILLS):
        # At a step every third time, else at some moment.
        point = {VARIABLE: chance.choice(POINTS)} if number % 3 == 2 else {}
        runner = case.start_plain(**point)
        tables.send(chance.randrange(100, MOST_RECORDS))
        time.sleep(chance.uniform(0, 2.5))
        runner.kill()
        runner.wait()
    caught_up = time.monotonic()
    starts = tables.catch_up()
    counts = tables.account()
    assert counts["tables"]["rest"]["rows"] > 0
    print(f"seed {seed}: {KILLS} kills, away {AWAY_SECONDS:.0f} s")
    print(f"caught up in {starts} starts and {time.monotonic() - caught_up:.0f} s, of {time.monotonic() - began:.0f} s in all")
    print(json.dumps(counts))
    for command in ("audit", "verify"):
        report = json.loads(case.invoke(command, str(case.file), "--json").stdout)
        assert (report["verdict"], report["findings"], report["not_proven"]) == ("clean", [], []), report


@pytest.mark.parametrize(
    ("change", "uneven"),
    [
        ("ALTER TABLE {}_every DELETE WHERE id = 2", '"lost": 1'),
        ("INSERT INTO {0}_rest SELECT * FROM {0}_rest LIMIT 1", '"too many": 1'),
        ("ALTER TABLE {}_strict UPDATE name = 'other' WHERE id = 6", '"some too many"'),
        ("ALTER TABLE {}_rest UPDATE why = '' WHERE true", '"refused without a reason": 3'),
    ],
)
def test_the_account_names_a_table_that_is_uneven(tables: Tables, change: str, uneven: str) -> None:
    tables.send(60)
    tables.case.warm_run()
    assert tables.account()["tables"]["rest"] == {"rows": 3, "lost": 0, "too many": 0}
    tables.case.client().command(change.format(tables.case.table), settings={"mutations_sync": 1})
    with pytest.raises(AssertionError) as found:
        tables.account()
    assert uneven in str(found.value)
