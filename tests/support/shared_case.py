"""The legs of a case beside lanes, each with connections of its own, and what a case has written."""

import copy
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.lanes import Ask, Lane, Lanes, lane_subject
from pipelines.errors import RetryableError
from pipelines.process.exchange import BUCKETS_PART
from pipelines.process.program import Program
from pipelines.process.steps import Step
from pipelines.protocol.codec import from_text
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.records import decode_frame
from pipelines.protocol.topology import LegId
from pipelines.runner.share import LANE_WORKS
from support.leg_case import NAMES, LegCase

BUCKETS = 12
"""More than ten: their order is not that of their names."""


class Network:
    """Carries requests to the processes of a run; `lost`: the subjects that answer no more, `mute`: that of a lane
    whose answers about its buckets are lost.
    """

    mute = ""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.lost: set[str] = set()
        self.asked = Counter[str]()

    def request(self, subject: str, payload: bytes, seconds: float) -> bytes:
        self.asked[subject] += 1
        if subject in self.lost:
            raise RetryableError("no answer")
        answer = self.lanes[subject].answer(payload)
        if subject == self.mute and from_text(Ask, payload).work == BUCKETS_PART:
            # It has done its part by now: a leg that goes on takes away what the part is made of.
            self.lanes[subject]._threads[BUCKETS_PART].submit(int).result()
            raise RetryableError("no answer")
        return answer


class Shared(LegCase):
    """The legs of a case beside two lanes, which see the same log and the same disk."""

    def __init__(self, directory: Path, between: Sequence[Step], monkeypatch: pytest.MonkeyPatch, stages: Program | None = None) -> None:
        monkeypatch.setattr("pipelines.engine.lanes.LEAST_RECORDS", 2)
        super().__init__(directory, BUCKETS, between=between, stages=stages)
        self.network = Network()
        self.lanes = Lanes(self.network, "run", 2, self.clock.seconds)
        self.network.lanes[lane_subject("run", 0)] = Lane({}, print, self.lanes.shelf)
        for number in (1, 2):
            seen_there: Any = copy.copy(self)
            seen_there._kept, seen_there.engine = {}, self.means.open_engine()
            seen_there.lanes = Lanes(self.network, "run", 2, own=number)
            works = {name: partial(work, seen_there) for name, work in LANE_WORKS.items()}
            self.network.lanes[lane_subject("run", number)] = Lane(works, print, seen_there.lanes.shelf)


def outcome(case: LegCase) -> dict[str, Any]:
    """What a case has written: rows, dead letters and duplicates by position, in the order of each subject; totals; keys."""
    found: dict[str, Any] = {}
    for role in ("out", "dlq", "duplicates"):
        by_subject: dict[str, list[Any]] = {}
        for message in case.log.messages(NAMES.stream(role)):
            rows = decode_frame(message.payload).to_pylist()
            by_subject.setdefault(message.subject, []).extend((row["_tf_sequence"], row["_tf_ordinal"], row.get("code")) for row in rows)
        found[role] = by_subject
    chain = read_chain(case.log, NAMES, LegId("process").chain)
    assert chain.done is not None
    body = chain.done.body
    found["totals"], found["watermarks"], found["clock"] = body.totals, body.watermarks, body.clock_us
    found["keys"] = {bucket: sum(run[1] for run in listing) for bucket, listing in case.lists().items()}
    return found
