"""All rules over a sound pipeline file, without the findings that a comment of their line ignores."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.config import PipelineConfig
from pipelines.config.base import Location
from pipelines.config.text import path_text
from pipelines.lint.lines import Lines
from pipelines.lint.rules import RULES

IDLE_IGNORE = "TF000"
"""Code of a comment that ignores nothing."""
CODE = re.compile(r"TF\d{3}")
"""A code, and no other word of a comment."""


@dataclass(frozen=True)
class Mend:
    """What can be removed with certainty: the setting at a location, or, if it is empty, `ignored` from the comment of the line."""

    at: Location = ()
    ignored: str = ""


@dataclass(frozen=True)
class Finding:
    """One finding. `path` is empty for a comment. `mend` is None where only the author knows what was meant."""

    line: int
    code: str
    path: str
    message: str
    fix: str
    mend: Mend | None = None


def findings(config: PipelineConfig, text: str, has_connections: bool = True) -> list[Finding]:
    """Return the findings of a file in the order of its lines. `has_connections`: the values of the connections are the real ones."""
    lines = Lines.of(text)
    found: list[Finding] = []
    used: set[tuple[int, str]] = set()
    for rule in RULES:
        if rule.of_connections and not has_connections:
            used |= {(line, rule.code) for line, codes in lines.ignored.items() if rule.code in codes}
            continue
        for at, message in rule.find(config):
            line = lines.of_location(at)
            if rule.code in lines.ignored.get(line, ()):
                used.add((line, rule.code))
            else:
                found.append(Finding(line, rule.code, path_text(at), message, rule.fix, Mend(at) if rule.is_idle(at) else None))
    return sorted([*found, *_idle(lines, used)], key=lambda one: (one.line, one.code, one.path))


def _idle(lines: Lines, used: set[tuple[int, str]]) -> Iterator[Finding]:
    for line, codes in lines.ignored.items():
        for code in codes:
            if (line, code) not in used:
                mend = Mend(ignored=code) if CODE.fullmatch(code) else None
                yield Finding(line, IDLE_IGNORE, "", f"the comment ignores {code}, which this line has not", "Remove it.", mend)
        if not codes:
            yield Finding(line, IDLE_IGNORE, "", "the comment names no code to ignore", "Name the code, such as TF001.")
