"""Records with copies, and the oracle that knows which of them go on: a dictionary over the raw log."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pipeline_case import PipelineCase, Position

from pipelines.connectors.jetstream import JetStream
from pipelines.records import decode_frame
from pipelines.tally import tally


def keyed_by(*fields: str, window: str = "1h", **options: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        config = {"key": list(fields), "time_window": window, **options}
        document["transforms"] = [{"type": "dedup", "source_id": "events", "config": config}]

    return change


def event(number: int, key: int) -> bytes:
    return json.dumps({"id": key, "name": f"record {number}", "amount": None}).encode()


def copies(count: int, first: int = 0, keys: int = 701) -> list[bytes | None]:
    """Records over so many keys in an order that mixes them; every hundredth is no JSON."""
    return [b"{" if number % 100 == 99 else event(number, number * 7919 % keys) for number in range(first, first + count)]


def check_first_of_keys(case: PipelineCase, keeps_duplicates: bool = False) -> Counter[str]:
    """The table holds exactly the first record of each key by raw position, the dead letters the bad ones, and the stream of duplicates
    the others, if they are kept; what became of each record.
    """
    log = case.log()
    seen: set[int] = set()
    fate: dict[Position, str] = {}
    for record in _frames_of(case, log, "raw"):
        position = (record["partition"], record["offset"])
        if record["value"] == b"{":
            fate[position] = "letter"
            continue
        key = json.loads(record["value"])["id"]
        fate[position] = "duplicate" if key in seen else "row"
        seen.add(key)
    assert set(fate) == set(case.records())
    rows = Counter(position for position, *_ in case.rows())
    assert rows == Counter(position for position, found in fate.items() if found == "row")
    letters = Counter((letter["_tf_partition"], letter["_tf_offset"]) for letter in case.letters())
    assert letters == Counter(position for position, found in fate.items() if found == "letter")
    kept = Counter((row["_tf_partition"], row["_tf_offset"]) for row in _frames_of(case, log, "duplicates"))
    assert kept == Counter(position for position, found in fate.items() if found == "duplicate" and keeps_duplicates)
    account = tally(log, case.names)
    log.close()
    counts = Counter(fate.values())
    assert (account.residue, [leg.waiting for leg in account.legs]) == (0, [0, 0, 0])
    assert account.legs[1].outcomes == {
        "written to out": counts["row"],
        "duplicates dropped": counts["duplicate"],
        "dead letters": counts["letter"],
    }
    return counts


def _frames_of(case: PipelineCase, log: JetStream, role: str) -> Iterator[dict[str, Any]]:
    """The rows of all frames of a stream, in order."""
    state = log.state(case.names.stream(role))
    assert state is not None
    for message in log.fetch(case.names.stream(role), case.names.subjects(role), 0, state.last_sequence):
        yield from decode_frame(message.payload).to_pylist()
