"""A pipeline case whose events are joined with the records of a second topic, `names`, and what its table must hold.

What the table must hold is computed by a module that imports nothing of ours (outside_join.py).
"""

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import timedelta
from typing import Any

from pipelines.config import parse
from pipelines.config.durations import parse_duration
from pipelines.protocol.bodies import PROCESS_CHAIN
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.tally import LegTally, tally
from resources.local.stack import Addresses
from support import outside_join
from support.pipeline_case import PipelineCase, admin_of, create_topic, wait_until
from support.producer import make_producer, produce

MISSING = b"{broken"


class JoinPipeline:
    """The sources `events`, of the case, on the left, and `names`, on the brokers of `there`, on the right, joined by `id`."""

    def __init__(
        self,
        case: PipelineCase,
        there: Addresses,
        *transforms: dict[str, Any],
        windows: tuple[str, str] = ("1h", "1h"),
        unmatched: str = "drop",
        copies: tuple[str, str] | None = None,
        by_time: tuple[str, str] | None = None,
        partitions: int = 2,
    ) -> None:
        """`copies`: the windows of a dedup of each side; a copy is a record with the same fields.

        `by_time`: records meet by their own `at`, in milliseconds; the allowed lateness, and when a partition is idle.
        """
        self.case, self.there, self.partitions = case, there, partitions
        self.topics = {"events": case.topic, "names": f"{case.topic}-names"}
        self.windows, self.unmatched, self.copies, self.by_time = windows, unmatched, copies, by_time
        keys = {"events": "id", "names": ["who.id", "name"]}
        dedups = [
            {"type": "dedup", "source_id": source, "config": {"key": key, "time_window": window}}
            for (source, key), window in zip(keys.items(), copies or (), strict=False)
        ]
        self.transforms = [*dedups, *transforms]
        case.write_file(self._joined)
        case.create_topic(self.partitions)
        create_topic(admin_of(there), self.topics["names"], self.partitions)

    def _joined(self, document: dict[str, Any]) -> None:
        (events,) = document["sources"]
        there = self.there.environment()
        login = {name.lower(): there[f"KAFKA_SASL_{name}"] for name in ("USERNAME", "PASSWORD")}
        connection = {**events["connection_params"], **login, "brokers": [there["KAFKA_BOOTSTRAP"]]}
        own_time = [{"name": "at", "type": "int", "unit": "ms"}] if self.by_time else []
        events["schema_fields"] = [{"name": "id", "type": "int"}, {"name": "amount", "type": "float"}, *own_time]
        fields = [{"name": "who.id", "type": "int"}, {"name": "name", "type": "string"}, *own_time]
        names = {**events, "source_id": "names", "topic": self.topics["names"], "connection_params": connection, "schema_fields": fields}
        document["sources"] = [events, names]
        document["transforms"] = self.transforms
        left, right = self.windows
        document["join"] = {
            "enabled": True,
            "left_source": {"source_id": "events", "key": "id", "time_window": left},
            "right_source": {"source_id": "names", "key": "who.id", "time_window": right},
            "output_fields": [
                {"source_id": "events", "name": "id"},
                {"source_id": "events", "name": "amount"},
                {"source_id": "names", "name": "name"},
            ],
            "unmatched": self.unmatched,
        }
        if self.by_time:
            lateness, idle_after = self.by_time
            document["join"] |= {"time": "event", "allowed_lateness": lateness, "idle_after": idle_after, "max_ahead": "876000h"}
            for side in ("left_source", "right_source"):
                document["join"][side]["time_field"] = "at"
        for entry in document["sink"]["mapping"]:
            if entry["name"] == "name":
                entry["column_type"] = "Nullable(String)"

    def send(self, source: str, ids: Iterable[int], text: str = "n", at_ms: Callable[[int], int] | None = None) -> None:
        """Send a record for each id; a negative one is broken. A name is `text` and its id. `at_ms`: the time of the record of a number."""
        addresses = self.there if source == "names" else self.case.addresses
        producer = make_producer(addresses.kafka_client)
        for number, one in enumerate(ids):
            record = {"who": {"id": one}, "name": f"{text}{one}"} if source == "names" else {"id": one, "amount": one + 0.5}
            if at_ms is not None:
                record["at"] = at_ms(number)
            value = MISSING if one < 0 else json.dumps(record).encode()
            produce(producer, self.topics[source], value, key=str(one).encode(), partition=number % self.partitions)
        assert producer.flush(60) == 0

    def rows(self) -> list[tuple[int, str | None, float]]:
        """(id, name, amount) of the table, by id and name."""
        return list(self.case.client().query(f"SELECT id, name, amount FROM {self.case.table} ORDER BY id, name, amount").result_rows)

    def account(self) -> dict[str, Any]:
        """The account that outside_join.py makes, which knows nothing of ours; an uneven one is a failure."""
        case, a = self.case, self.case.addresses
        left, right = (int(parse_duration(window) / timedelta(microseconds=1)) for window in self.windows)
        clickhouse = {
            "url": f"http://{a.clickhouse_host}:{a.clickhouse_port}",
            "user": a.clickhouse_user,
            "password": a.clickhouse_password,
            "table": case.table,
        }
        asked = {
            "left_us": left,
            "right_us": right,
            "copies_us": [int(parse_duration(window) / timedelta(microseconds=1)) for window in self.copies or ()],
            "emits": self.unmatched == "emit",
            "lateness_us": int(parse_duration(self.by_time[0]) / timedelta(microseconds=1)) if self.by_time else None,
            "raw": {"url": a.nats_url, "stream": case.names.stream("raw"), "subject": case.names.subjects("raw")},
            "topics": [
                {"kafka": where.kafka_client, "source": source, "topic": self.topics[source]}
                for source, where in (("events", a), ("names", self.there))
            ],
            "clickhouse": clickhouse,
        }
        with closing(case.log()) as log:
            asked["read"] = read_chain(log, case.names, PROCESS_CHAIN).to or 0
        counts = outside_join.account(asked)
        assert not any(counts[name] for name in outside_join.DIFFERENCES), counts
        return counts


def processed(case: PipelineCase) -> LegTally:
    """The account of process, by the ledger; every record has one."""
    with closing(case.log()) as log:
        found = tally(log, case.names, parse(case.file.read_text(), name="case", environment=case.environment()).topology)
    assert found.residue == 0
    (process,) = found.of_kind("process")
    return process


def has_decided_all(account: LegTally, read: int) -> bool:
    return account.rows_in == read and "waiting in the join" not in account.outcomes


def run_until(case: PipelineCase, is_done: Callable[[], bool], what: str) -> None:
    """Run the pipeline, which ends windows by ticks, until something is so and all of it is in the table."""
    runner = case.warm_runner(until_caught_up=False)
    running = case.in_background(runner)
    try:
        wait_until(is_done, what)
    finally:
        runner.request_stop()
        running.join()
    case.warm_run()


def report(case: PipelineCase, command: str, *arguments: str) -> dict[str, Any]:
    """The report of a proof of the case."""
    found = case.invoke(command, str(case.file), "--json", *arguments)
    assert found.stdout.startswith("{"), found.output
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def clean(case: PipelineCase, command: str, *arguments: str) -> dict[str, int]:
    """The counts of a report that is clean."""
    answer = report(case, command, *arguments)
    assert (answer["verdict"], answer["findings"], answer["not_proven"]) == ("clean", [], []), answer
    counts: dict[str, int] = answer["counts"]
    return counts


def rehearsed(case: PipelineCase) -> dict[str, Any]:
    """What a dry run says would become of all dead letters."""
    found = case.invoke("dlq", "reprocess", str(case.file), "--all", "--dry-run", "--json")
    assert found.exit_code == 0, found.output
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer
