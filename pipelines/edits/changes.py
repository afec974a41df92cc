"""The differences of two files of one pipeline, and what each needs of the pipeline that runs. Pure."""

import json
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pipelines.config import PipelineConfig, codes_of, shape_of
from pipelines.config.base import Effect
from pipelines.config.differences import MISSING, Difference, differences
from pipelines.config.text import leaves


class Need(IntEnum):
    """What a change needs, the least first."""

    NOTHING = 0
    RELOAD = 1
    FIRST_START = 2
    RESTART = 3
    DRAIN = 4
    REBUCKET = 5
    NEW_PIPELINE = 6

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Need.NOTHING: "holds at once",
    Need.RELOAD: "without a restart",
    Need.FIRST_START: "read by a first start only, so nothing changes for records",
    Need.RESTART: "from the next start on",
    Need.DRAIN: "after a drain",
    Need.REBUCKET: "rebucket",
    Need.NEW_PIPELINE: "a new pipeline",
}


@dataclass(frozen=True)
class Change:
    """One difference: its place in the file, both values as text, and what it needs. An item that came or went has an empty value."""

    path: str
    before: str
    after: str
    need: Need

    def __str__(self) -> str:
        if not self.before:
            return f"added: {self.after}"
        return f"was {self.before}, now {self.after}" if self.after else f"removed: {self.before}"


_NEEDS: tuple[tuple[re.Pattern[str], Need], ...] = (
    (re.compile(r"sources\[[^]]*\]\.(consumer_group_initial_offset|start_offsets|start_group)\b"), Need.FIRST_START),
    (re.compile(r"buckets$"), Need.REBUCKET),
    (re.compile(r"sinks?(\[[^]]*\])?\.(table|connection_params\.(host|port|http_port|database|secure))$"), Need.DRAIN),
)
"""What a change below a path needs where the field does not tell."""
_BY_EFFECT = {Effect.AT_ONCE: Need.NOTHING, Effect.RELOAD: Need.RELOAD, Effect.RESTART: Need.RESTART}
_UNSHOWN = re.compile(r"(^nats|^state_uri|connection_params|password|token|secret)\b")
"""Places whose values no message shows: they may hold credentials."""
_LONGEST = 60


def changes(before: PipelineConfig, after: PipelineConfig) -> list[Change]:
    """Return all differences, in the order of the file, behind them the functions whose code was edited.

    What decides where state is stored comes first, and needs a new pipeline.
    """
    old, new = dict(leaves(shape_of(before))), dict(leaves(shape_of(after)))
    fixed = [key for key in {**old, **new} if key != "buckets" and old.get(key) != new.get(key)]
    found = [Change(key, _text(key, old.get(key, MISSING)), _text(key, new.get(key, MISSING)), Need.NEW_PIPELINE) for key in fixed]
    found += [Change(one.path, _text(one.path, one.before), _text(one.path, one.after), _need(one)) for one in differences(before, after)]
    was, now = codes_of(before), codes_of(after)
    edited = [name for name in was.keys() & now.keys() if was[name] != now[name]]
    return found + [Change(f"the code of {name}", was[name][:16], now[name][:16], Need.RESTART) for name in sorted(edited)]


def _need(difference: Difference) -> Need:
    return next((need for pattern, need in _NEEDS if pattern.match(difference.path)), _BY_EFFECT[difference.effect])


def _text(path: str, value: Any) -> str:
    if value is MISSING:
        return ""
    if _UNSHOWN.search(path):
        return "another value"
    if isinstance(value, dict) and not any(isinstance(one, dict | list) for one in value.values()):
        text = ", ".join(map(str, value.values()))
    else:
        text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
