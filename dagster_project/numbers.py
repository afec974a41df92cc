"""The numbers that Dagster plots: few, with stable names, each from the ledger or the stream itself. Imports no Dagster.

At most 12 per asset. Numbers that change per batch belong to the status port and its metrics, not to Dagster's event log.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from dagster_project.assets.stream_names import DEAD_LETTERS, DEDUP, JOIN, OUT, RAW, TABLE, table_name
from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import STREAM_ID_KEY, Names
from pipelines.protocol.outcomes import CONFIRMED, DUPLICATE, RAW_ROWS, WAITING, WRITTEN
from pipelines.protocol.run_lists import live_lists
from pipelines.protocol.tally import Tally, tally
from pipelines.protocol.topology import KINDS, LegId

ROW_COUNT = "dagster/row_count"
"""Dagster shows this number on an asset's page."""
PLOTTED: Mapping[str, tuple[str, ...]] = {
    RAW: ("rows", "waiting_rows", "stream_bytes", "lag_offsets"),
    DEDUP: ("keys", "runs", "duplicates_dropped", "duplicates_percent"),
    JOIN: ("entries", "runs", "waiting_records", "duplicates_dropped"),
    OUT: ("rows", "waiting_rows", "stream_bytes"),
    TABLE: (ROW_COUNT, "waiting_rows", "lag_offsets", "residue"),
    DEAD_LETTERS: ("dead_letters", "still_there", "entered_again", "discarded", "dead_letters_percent", "stream_bytes"),
}
"""Keys by asset. A key never changes its meaning: a plot would mix two."""


@dataclass(frozen=True)
class Account:
    """A pipeline at one moment. `stream_bytes` by asset; `keys` and `runs`: entries and segments of the key stores, 0 without.

    `confirmed_to`: by the sink leg, the last sequence of its stream that ClickHouse has confirmed. `lag`: offsets in Kafka
    that ingest has not confirmed, None if unknown. `stream_id`: the id of the raw stream; it changes if the pipeline is deleted and created
    again.
    """

    tally: Tally
    stream_bytes: Mapping[str, int]
    keys: int
    runs: int
    confirmed_to: Mapping[LegId, int]
    stream_id: str
    lag: int | None = None


def read_account(config: PipelineConfig, lag: int | None) -> Account:
    """Read the account from NATS in a dozen small reads.

    Raises HaltError for a pipeline that was never started, RetryableError while NATS is away.
    """
    names = Names(config.pipeline_id)
    with closing(JetStream.of(config).connect()) as log:
        account = tally(log, names, config.topology)
        roles = {RAW: ("raw",), OUT: config.topology.outs, DEAD_LETTERS: ("dlq",)}
        states = {name: [log.state(names.stream(role)) for role in of_asset] for name, of_asset in roles.items()}
        _, listed = live_lists(log, names)
        confirmed_to = {leg: read_chain(log, names, leg.chain).to or 0 for leg in config.topology.tables}
    rows = [facts[1] for runs in listed.values() for facts in runs]
    stream_bytes = {name: sum(state.bytes for state in found if state) for name, found in states.items() if any(found)}
    (raw,) = states[RAW]
    stream_id = raw.metadata.get(STREAM_ID_KEY, "") if raw else ""
    return Account(account, stream_bytes, sum(rows), len(rows), confirmed_to, stream_id, lag)


def numbers(account: Account, name: str) -> dict[str, int | float]:
    """Return the numbers of one asset: keys of `PLOTTED`, without those that are unknown now.

    Of the tables of further sinks, and of dead letters: their rows, and those that wait for them.
    """
    ingests, (process,), sinks, of_dead_letters = map(account.tally.of_kind, KINDS)
    dead_letters = account.tally.dead_letters
    waiting_rows = sum(sink.waiting for sink in sinks)
    by_asset: dict[str, dict[str, int | float]] = {
        RAW: {"rows": sum(ingest.outcomes[RAW_ROWS.label] for ingest in ingests), "waiting_rows": process.waiting},
        DEDUP: {"keys": account.keys, "runs": account.runs, **_duplicates(process.outcomes[DUPLICATE.label], process.rows_in)},
        JOIN: {
            "entries": account.keys,
            "runs": account.runs,
            "waiting_records": process.outcomes.get(WAITING.label, 0),
            "duplicates_dropped": process.outcomes[DUPLICATE.label],
        },
        OUT: {"rows": process.outcomes[WRITTEN.label], "waiting_rows": waiting_rows},
        TABLE: {
            ROW_COUNT: sinks[0].outcomes[CONFIRMED.label],
            "waiting_rows": process.waiting + waiting_rows,
            "residue": account.tally.residue,
        },
        **{
            table_name(LegId.parse(sink.leg)): {ROW_COUNT: sink.outcomes[CONFIRMED.label], "waiting_rows": sink.waiting}
            for sink in (*sinks[1:], *of_dead_letters)
        },
        DEAD_LETTERS: {
            "dead_letters": dead_letters.rows_in,
            "still_there": dead_letters.waiting,
            "entered_again": dead_letters.outcomes["entered again"],
            "discarded": dead_letters.outcomes["discarded"],
            "dead_letters_percent": _percent(dead_letters.rows_in, process.rows_in),
        },
    }
    numbers = by_asset[name]
    if name in account.stream_bytes:
        numbers["stream_bytes"] = account.stream_bytes[name]
    if account.lag is not None and "lag_offsets" in PLOTTED.get(name, ()):
        numbers["lag_offsets"] = account.lag
    return numbers


def without_row_count(found: Mapping[str, int | float]) -> dict[str, int | float]:
    """Return the numbers of an asset without the row count, for a materialization.

    The page of an asset prefers the row count of its newest materialization, however old, to that of any observation, so only observations
    carry it.
    """
    return {name: number for name, number in found.items() if name != ROW_COUNT}


def _duplicates(dropped: int, read: int) -> dict[str, int | float]:
    return {"duplicates_dropped": dropped, "duplicates_percent": _percent(dropped, read)}


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 4) if whole else 0.0


def nothing_waits(account: Account) -> bool:
    """Return True if every record that Kafka is known to hold is confirmed or a dead letter."""
    return account.lag == 0 and all(leg.waiting == 0 for leg in account.tally.legs)
