"""The one look-up of which rows a table holds, for the sink and for rows that are put back: on a replica, of all that was inserted."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.sinks import Table


class Client:
    """What was asked of the server, in order."""

    def __init__(self) -> None:
        self.server_settings: dict[str, Any] = {}
        self.asked: list[str] = []
        self.settings: dict[str, Any] = {}

    def command(self, text: str, **_: Any) -> None:
        self.asked.append(text)

    def query(self, text: str, **_: Any) -> None:
        self.asked.append(text)

    def query_arrow(self, text: str, parameters: dict[str, Any], settings: dict[str, Any]) -> pa.Table:
        self.asked.append(text)
        self.settings = settings
        assert ("{since:Int64}" in text) == ("since" in parameters)
        return pa.table({})


def asked(engine: str, arrivals_us: tuple[int, int] | None) -> Client:
    client, clickhouse = Client(), ClickHouse(SimpleNamespace(read_settings={}))  # type: ignore[arg-type]
    clickhouse._client = client  # type: ignore[assignment]
    clickhouse.stored_positions(Table("db", "t", engine, "", (), 10_000), (1, 2), arrivals_us)
    return client


@pytest.mark.parametrize("arrivals_us", [None, (5, 6)])
def test_a_replica_is_synced_before_it_is_asked(arrivals_us: tuple[int, int] | None) -> None:
    client = asked("ReplicatedMergeTree", arrivals_us)
    assert ["SYNC REPLICA" in text for text in client.asked] == [True, False]
    assert client.settings["select_sequential_consistency"] == 1
    assert ("_tf_emit" in client.asked[1]) == (arrivals_us is not None), "a table need not have more than sequence and ordinal"


def test_a_table_without_replicas_is_asked_at_once() -> None:
    client = asked("MergeTree", None)
    assert len(client.asked) == 1
    assert "select_sequential_consistency" not in client.settings
