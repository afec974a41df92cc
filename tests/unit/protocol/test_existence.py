"""Whether a pipeline is there, asked while its first start makes its streams, and when its ledger was lost."""

from types import SimpleNamespace

import pytest

from pipelines.errors import DataLossError
from pipelines.protocol.existence import NeverStartedError, check_started
from pipelines.protocol.naming import Names

NAMES = Names("p")


class Streams:
    """Those of a server, with their last sequences; `later` are there from the second question on."""

    def __init__(self, now: dict[str, int], later: dict[str, int]) -> None:
        self._now, self._later = now, later

    def state(self, stream: str) -> SimpleNamespace | None:
        found = {NAMES.stream(role): last for role, last in self._now.items()}.get(stream)
        self._now = self._later
        return None if found is None else SimpleNamespace(last_sequence=found)


def test_a_pipeline_that_starts_while_it_is_looked_for_is_there() -> None:
    check_started(Streams({}, {"ledger": 7, "raw": 3}), NAMES)


def test_a_lost_ledger_is_told_from_one_never_started() -> None:
    with pytest.raises(DataLossError, match="tf-p-ledger does not exist, but tf-p-raw still hold messages"):
        check_started(Streams({"raw": 3}, {"raw": 3}), NAMES)
    with pytest.raises(NeverStartedError):
        check_started(Streams({"raw": 0}, {"raw": 0}), NAMES)
