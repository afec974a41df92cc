"""The model of a look-up table in ClickHouse."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from pipelines.config.base import Effect, Window, ours
from pipelines.config.sinks import ClickHouseConnection
from pipelines.config.table_model import TableModel

Query = Annotated[str, Field(min_length=1, max_length=20_000)]


class ClickHouseTable(TableModel):
    """The rows of a query of ClickHouse."""

    type: Literal["clickhouse"] = ours(..., "Kind of table.")
    query: Query = ours(
        ..., "One SELECT, run read-only. Its columns are found by their names: `SELECT code, iso_name FROM geo.countries FINAL`."
    )
    connection_params: ClickHouseConnection | None = ours(None, "Connection to ClickHouse. Default: that of the first sink.")
    timeout: Window = ours(timedelta(minutes=1), "Longest time of the query.", Effect.RELOAD)
    _of_sink: Any = PrivateAttr(None)

    def attach(self, connections: Mapping[str, Any]) -> None:
        self._of_sink = connections.get("clickhouse")

    @property
    def connection(self) -> ClickHouseConnection:
        """The connection to use. Raise ValueError if neither the table nor the first sink gives one."""
        found = self.connection_params or self._of_sink
        if not isinstance(found, ClickHouseConnection):
            raise ValueError("the table has no connection_params, and the first sink is not in ClickHouse")
        return found


TABLE = ClickHouseTable
