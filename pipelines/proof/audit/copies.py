"""Which raw records are copies that dedup was right to drop, where dropped copies are kept nowhere: their keys are computed again.

In: raw frames in order, read again and through the stages before dedup. A record is a copy when the last record of its key before it, by
position, that stands on out covers it, by the rule in `dedup`. Keys, positions and times lie in an engine that spills to disk: about 50
bytes for each record that is on out or is asked about.
"""

from collections.abc import Callable, Iterable, Sequence

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.key_store.index import Words
from pipelines.process.dedup import KEY_COLUMNS, PAST_COLUMN
from pipelines.process.stage_config import StageConfig
from pipelines.process.watermarks import TIME_COLUMN, FrameTimes, Times
from pipelines.protocol.bodies import NEVER, NOTHING
from pipelines.protocol.positions import position_keys
from pipelines.protocol.records import Message
from pipelines.types.vectors import to_mask

_SEEN = """
    CREATE TABLE seen (code UBIGINT, hi UBIGINT, lo UBIGINT, at_us BIGINT, watermark_us BIGINT, window_us BIGINT, is_accepted BOOLEAN)
"""
_UNCOVERED = """
    SELECT code, at_us - window_us AS covered_from_us
    FROM (
        SELECT *, last_value(CASE WHEN is_accepted THEN at_us END IGNORE NULLS)
                  OVER (PARTITION BY hi, lo ORDER BY code ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS accepted_us
        FROM seen SEMI JOIN (SELECT DISTINCT hi, lo FROM seen WHERE NOT is_accepted) USING (hi, lo)
    )
    WHERE NOT is_accepted
      AND (accepted_us IS NULL OR abs(at_us - accepted_us) >= window_us OR accepted_us + window_us <= watermark_us)
    ORDER BY code
"""


class Copies:
    """The records of a raw stream by key. `unexplained`: sorted positions that are asked about."""

    def __init__(self, spilling: duckdb.DuckDBPyConnection, unexplained: Words) -> None:
        self._engine, self._unexplained = spilling, unexplained
        self._watermarks = NOTHING
        self._engine.execute(_SEEN)

    def add(
        self, rows: pa.Table, frames: Iterable[Message], config: StageConfig, is_accepted: Callable[[Words], npt.NDArray[np.bool_]]
    ) -> None:
        """What the stages before dedup let through of some raw `frames`, in position order, all done under `config`.

        Only that can be a copy: what they reject is a dead letter, whatever its key; nor is it one under a `config` that keeps copies.
        """
        times, marks = self._times(rows, frames, config)
        if PAST_COLUMN in rows.column_names:
            # Dedup did not ask about these, and remembers nothing of them.
            is_judged = ~to_mask(rows.column(PAST_COLUMN))
            rows, times, marks = rows.filter(pa.array(is_judged)), times[is_judged], marks[is_judged]
        codes = position_keys(rows)
        accepted = is_accepted(codes)
        wanted = np.flatnonzero(accepted | (_among(codes, self._unexplained) & (not config.dedup_keeps)))
        if not len(wanted):
            return
        hi, lo = (rows.column(name).to_numpy()[wanted] for name in KEY_COLUMNS)
        window = np.full(len(wanted), config.dedup_window_us)
        columns = [codes[wanted], hi, lo, times[wanted], marks[wanted], window, accepted[wanted]]
        names = ["code", "hi", "lo", "at_us", "watermark_us", "window_us", "is_accepted"]
        self._engine.register("_tf_seen", pa.table(columns, names=names))
        self._engine.execute("INSERT INTO seen FROM _tf_seen")
        self._engine.unregister("_tf_seen")

    def _times(self, rows: pa.Table, frames: Iterable[Message], config: StageConfig) -> tuple[Times, Times]:
        """(the time that the window is measured on, the watermark) of each row."""
        if not config.dedup_time_field:
            return rows.column("_tf_arrival").cast(pa.int64()).to_numpy(), np.full(rows.num_rows, NEVER)
        times = FrameTimes.of(rows, frames, self._watermarks, config.dedup_window_us)
        self._watermarks = times.last
        return rows.column(TIME_COLUMN).to_numpy(), times.watermarks(rows, config.dedup_lateness_us)

    def verdict(self, purged_us: int | None) -> tuple[Words, Words]:
        """(positions that are no copy, positions that may be one of a record that is gone), both sorted.

        `purged_us`: the last arrival at which a record that may be purged was accepted; None where none is.
        """
        found = self._engine.sql(_UNCOVERED).to_arrow_table()
        codes, covered_from = (found.column(name).to_numpy() for name in ("code", "covered_from_us"))
        rejected = np.setdiff1d(self._unexplained, self._asked())
        may_be = covered_from < purged_us if purged_us is not None else np.zeros(len(codes), dtype=bool)
        return np.union1d(codes[~may_be], rejected), codes[may_be]

    def _asked(self) -> Words:
        asked: Words = self._engine.sql("SELECT code FROM seen WHERE NOT is_accepted").to_arrow_table().column("code").to_numpy()
        return asked


def _among(codes: Words, wanted: Words) -> npt.NDArray[np.bool_]:
    """Which of `codes` are in the sorted `wanted`."""
    if not len(wanted):
        return np.zeros(len(codes), dtype=bool)
    places = np.minimum(np.searchsorted(wanted, codes), len(wanted) - 1)
    found: npt.NDArray[np.bool_] = wanted[places] == codes
    return found


def config_at(ranges: Sequence[tuple[int, str]], sequence: int) -> str:
    """The version that a raw sequence was done under; `ranges` are (last sequence, version), ascending."""
    return next((version for to, version in ranges if sequence <= to), ranges[-1][1])
