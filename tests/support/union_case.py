"""A pipeline case with a second source, `crm`, whose records have other fields, and what its table must hold.

The account is this module's alone: Kafka's records by a plain consumer, the table by SQL.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from resources.local.stack import Addresses
from support.pipeline_case import PipelineCase, admin_of, create_topic
from support.producer import make_producer, produce

DEDUP = {"type": "dedup", "config": {"key": "id", "time_window": "1h"}}
OF_CRM = {
    "type": "compute",
    "source_id": "crm",
    "config": {
        "fields": [
            {"name": "id", "expression": '"customer.id"'},
            {"name": "name", "expression": "'crm ' || title"},
            {"name": "amount", "expression": "CAST(cents AS DOUBLE) / 100"},
        ]
    },
}
BROKEN = b"{broken"


class Union:
    """The sources `events`, of the case, and `crm`, on the brokers of `there`."""

    def __init__(self, case: PipelineCase, there: Addresses, *transforms: dict[str, Any], partitions: int = 2) -> None:
        self.case, self.there, self.partitions = case, there, partitions
        self.topics = {"events": case.topic, "crm": f"{case.topic}-crm"}
        self.transforms = [OF_CRM, *transforms]
        case.write_file(self._with_crm)
        case.create_topic(partitions)
        create_topic(admin_of(there), self.topics["crm"], partitions)

    def _with_crm(self, document: dict[str, Any]) -> None:
        (events,) = document["sources"]
        events["columns"] = [{"name": "topic", "from": "topic"}]
        there = self.there.environment()
        login = {name.lower(): there[f"KAFKA_SASL_{name}"] for name in ("USERNAME", "PASSWORD")}
        connection = {**events["connection_params"], **login, "brokers": [there["KAFKA_BOOTSTRAP"]]}
        fields = [{"name": "customer.id", "type": "int"}, {"name": "title", "type": "string"}, {"name": "cents", "type": "int"}]
        crm = {**events, "source_id": "crm", "topic": self.topics["crm"], "connection_params": connection, "schema_fields": fields}
        document["sources"] = [events, crm]
        document["transforms"] = self.transforms
        document["sink"]["mapping"].append({"name": "topic", "column_name": "topic", "column_type": "String"})

    def send(self, source: str, ids: Iterable[int]) -> None:
        """Send a record for each id, in the form of its source; a negative one is a broken record."""
        addresses = self.there if source == "crm" else self.case.addresses
        producer = make_producer(addresses.kafka_client)
        for number, one in enumerate(ids):
            value = BROKEN if one < 0 else json.dumps(_record(source, one)).encode()
            produce(producer, self.topics[source], value, key=str(one).encode(), partition=number % self.partitions)
        assert producer.flush(60) == 0

    def rows(self) -> list[tuple[int, str, float, str]]:
        """(id, name, amount, topic) of the table, by id and topic."""
        return list(self.case.client().query(f"SELECT id, name, amount, topic FROM {self.case.table} ORDER BY id, topic").result_rows)

    def row(self, source: str, one: int) -> tuple[int, str, float, str]:
        """The row that a record must become."""
        return one, f"crm n{one}" if source == "crm" else f"n{one}", one + 0.5, self.topics[source]

    def check(self, sent: Mapping[str, Iterable[int]]) -> None:
        """With dedup: each id has one row, in the form of one of its sources; each broken record is a dead letter of its source."""
        by_source = {source: [one for one in ids if one >= 0] for source, ids in sent.items()}
        found = self.rows()
        assert [row[0] for row in found] == sorted({one for ids in by_source.values() for one in ids})
        possible = {self.row(source, one) for source, ids in by_source.items() for one in ids}
        assert [row for row in found if row not in possible] == []
        letters = [(letter["source"], letter["_tf_topic"]) for letter in self.case.dead_letters()]
        broken = [source for source, ids in sent.items() for one in ids if one < 0]
        assert sorted(letters) == sorted((source, self.topics[source]) for source in broken)
        for command in ("audit", "verify"):
            report = json.loads(self.case.invoke(command, str(self.case.file), "--json").stdout)
            assert (report["verdict"], report["findings"], report["not_proven"]) == ("clean", [], []), report


def _record(source: str, one: int) -> dict[str, Any]:
    if source == "crm":
        return {"customer": {"id": one}, "title": f"n{one}", "cents": 100 * one + 50}
    return {"id": one, "name": f"n{one}", "amount": one + 0.5}
