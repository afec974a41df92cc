"""Whether the rollups of a run's sinks hold all rows, for the runner: a run until caught up ends with whole rollups."""

from collections.abc import Collection, Mapping

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.protocol.topology import LegId
from pipelines.rollups.feeds import rollups_of
from pipelines.rollups.state import RollupState


class RollupFills:
    """The rollups of one sink, looked at through a client of its own."""

    def __init__(self, config: PipelineConfig, stream_id: str) -> None:
        self._clickhouse, self._stream_id = ClickHouse(config.sink), stream_id
        self._state = RollupState(config, self._clickhouse)
        self._were_whole = False

    def are_whole(self) -> bool:
        """Return whether they hold all rows of the table; once they do, every later row is counted by its insert."""
        self._were_whole = self._were_whole or self._state.is_filled(self._stream_id)
        return self._were_whole

    def close(self) -> None:
        self._clickhouse.close()


def fills_of(config: PipelineConfig, stream_ids: Mapping[str, str], legs: Collection[LegId]) -> list[RollupFills]:
    """Return the rollups of those sinks of the file that are among the legs of the run. `stream_ids`: by role."""
    sinks = (seen for seen in config.by_sink if seen.sink_leg in legs and rollups_of(seen))
    return [RollupFills(seen, stream_ids[seen.sink_leg.input_role]) for seen in sinks]
