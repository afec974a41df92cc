"""Rows that were made anew after an edit: the ranges of raw sequences, and the configuration under which their rows are now.

In: the chain `reprocess` of the ledger. Out: stretches of raw sequences by the configuration of the rows that the table has.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from pipelines.connectors.nats.client import JetStream, fetch_whole
from pipelines.protocol.bodies import REPROCESS_CHAIN, ReprocessDone
from pipelines.protocol.naming import REPROCESS, Names

Part = tuple[int, int, str]
"""The first and the last of some raw sequences, both inclusive, and the version of a configuration."""


@dataclass(frozen=True)
class Remade:
    """Raw sequences, both inclusive, whose rows were made anew under the configuration `version`."""

    first: int
    last: int
    version: str


def read_remade(log: JetStream, names: Names) -> list[Remade]:
    """Return what was made anew, in the order of the ledger; neighbours of one configuration together."""
    ledger, subject = names.stream("ledger"), names.chain(REPROCESS)
    newest = log.last(ledger, subject)
    found: list[Remade] = []
    for message in fetch_whole(log, ledger, subject, 0, newest.sequence) if newest else ():
        body = REPROCESS_CHAIN.decode(message).body
        if not isinstance(body, ReprocessDone):
            continue
        if found and (found[-1].last + 1, found[-1].version) == (body.first, body.config):
            found[-1] = Remade(found[-1].first, body.last, body.config)
        else:
            found.append(Remade(body.first, body.last, body.config))
    return found


def overlaid(parts: Iterable[Part], remade: Sequence[Remade]) -> list[Part]:
    """Return ascending parts with the versions of what was made anew, the last one counting; neighbours of one version together."""
    found = list(parts)
    for one in remade:
        found = [piece for part in found for piece in _pieces(part, one)]
    together = (list(group) for _, group in groupby(found, key=lambda part: part[2]))
    return [(group[0][0], group[-1][1], group[0][2]) for group in together]


def _pieces(part: Part, over: Remade) -> list[Part]:
    first, last, version = part
    low, high = max(first, over.first), min(last, over.last)
    if low > high:
        return [part]
    pieces = ((first, low - 1, version), (low, high, over.version), (high + 1, last, version))
    return [piece for piece in pieces if piece[0] <= piece[1]]
