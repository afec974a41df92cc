"""The account with which a run closes: what each of its legs took and where it went, and whether the ledger is even. Pure."""

import re
from collections.abc import Collection, Iterator, Mapping

from pipelines.counts import count_of
from pipelines.protocol.tally import LegTally, Tally
from pipelines.runner.events import Event

_PLURAL = re.compile(r"^(dead letter|duplicate|offset)s\b")
"""The nouns with which the label of an outcome begins."""


def summary(before: Tally, now: Tally, legs: Collection[str], seconds: float) -> Event:
    """Return the tally of a run: its own part, the tally `now` less the one `before` it, for its `legs`, and the balance of the whole."""
    ours = [leg for leg in now.legs if leg.leg in legs]
    earlier = {leg.leg: leg for leg in before.legs}
    new = {leg.leg: _less(leg.outcomes, earlier[leg.leg].outcomes) for leg in ours}
    taken = {leg.leg: leg.rows_in - earlier[leg.leg].rows_in for leg in ours}
    lines = [f"ended after {duration(seconds)}; in this run:"]
    lines += (f"  {leg}: {count_of(taken[leg], 'record')} in{_outcomes(new[leg])}" for leg in new)
    lines += _left(ours, now.dead_letters)
    lines.append(_balance(now.residue))
    facts = {
        "seconds": round(seconds, 1),
        "legs": {leg: {"rows_in": taken[leg], "outcomes": new[leg]} for leg in new},
        "waiting": {leg.leg: leg.waiting for leg in ours if leg.upstream},
        "dead_letters": now.dead_letters.waiting,
        "residue": now.residue,
    }
    return Event("tally", "\n".join(lines), facts)


def duration(seconds: float) -> str:
    """Return a duration in words, such as "8.1 s", "3 min 12 s" or "2 h 5 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def _less(outcomes: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: rows - before.get(name, 0) for name, rows in outcomes.items()}


def _outcomes(outcomes: Mapping[str, int]) -> str:
    named = ", ".join(f"{rows:,} {_label(name, rows)}" for name, rows in outcomes.items() if rows)
    return f"; {named}" if named else ""


def _label(outcome: str, rows: int) -> str:
    return _PLURAL.sub(r"\1", outcome) if rows == 1 else outcome


def _left(legs: list[LegTally], dead_letters: LegTally) -> Iterator[str]:
    waiting = ", ".join(f"{leg.waiting:,} before {leg.leg}" for leg in legs if leg.upstream and leg.waiting > 0)
    if waiting:
        yield f"  still waiting: {waiting}"
    if dead_letters.waiting:
        yield f"  {count_of(dead_letters.waiting, 'dead letter')} to look at: `tallyflow dlq groups`"


def _balance(residue: int) -> str:
    if residue:
        return f"{count_of(residue, 'event')} NOT accounted for, by the ledger; `tallyflow tally` shows where"
    return "every event is accounted for, by the ledger; `tallyflow audit` proves it"
