"""The lines of a pipeline file: where a location stands, and the comments that ignore a finding there."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from pipelines.config.base import Location

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
IGNORE = re.compile(r"(?:^|\s)#\s*tallyflow:\s*ignore\b(.*)")
_CODE = re.compile(r"[A-Za-z0-9]+")


@dataclass
class Lines:
    """The lines of one file. `ignored`: the codes that the comment of a line names, by line number."""

    ignored: dict[int, list[str]] = field(default_factory=dict)
    root: yaml.Node | None = None

    @classmethod
    def of(cls, text: str) -> "Lines":
        """Read the lines of a file that `config.text.read_tree` has accepted."""
        matches = ((number, IGNORE.search(line)) for number, line in enumerate(text.splitlines(), 1))
        ignored = {number: _CODE.findall(match[1]) for number, match in matches if match}
        # JSON may be indented with tabs.
        return cls(ignored, yaml.compose(text.replace("\t", " "), Loader=_LOADER))

    def of_location(self, at: Location) -> int:
        """Return the line of a location, or of the innermost part of it that the file has."""
        return self.place_of(at)[0]

    def place_of(self, at: Location) -> tuple[int, int]:
        """Return the line and the column of a location, from 1 on, or of the innermost part of it that the file has."""
        node, place = self.root, (1, 1)
        for key in at:
            found = _inner(node, key)
            if found is None:
                break
            mark, node = found
            place = mark.line + 1, mark.column + 1
        return place


def _inner(node: yaml.Node | None, key: str | int) -> tuple[Any, yaml.Node] | None:
    """Return (mark of the beginning, node) of a member of a mapping or a list."""
    if isinstance(node, yaml.MappingNode):
        pair = next((pair for pair in node.value if getattr(pair[0], "value", None) == key), None)
        return (pair[0].start_mark, pair[1]) if pair else None
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key].start_mark, node.value[key]
    return None
