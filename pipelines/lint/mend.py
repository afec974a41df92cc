"""The mends that are certain, as edits of the file's text: all other text, comments and order stay.

A mend is taken only if the file then says what it said, without what was removed; where an anchor, a merge key or a comment in between
forbids that, the finding stays.
"""

import re
from collections.abc import Sequence

import yaml

from pipelines.config.base import Location
from pipelines.config.spans import end_of, line_end, line_start
from pipelines.config.text import read_tree
from pipelines.errors import ConfigurationError
from pipelines.lint.lines import IGNORE
from pipelines.lint.run import Finding, Mend

Members = list[tuple[yaml.Node, yaml.Node]]


def mended(text: str, found: Sequence[Finding]) -> tuple[str, list[Finding]]:
    """Return the text with the mends of its findings, and the findings that are mended."""
    done: list[Finding] = []
    # Comments first, from the last line on: their findings are known by the numbers of the lines.
    for one in sorted(found, key=lambda one: (one.path != "", -one.line)):
        if one.mend is None:
            continue
        edited, tree = _edited(text, one.line, one.mend)
        if edited != text and _tree(edited) == tree:
            text, done = edited, [*done, one]
    return text, sorted(done, key=lambda one: one.line)


def _edited(text: str, line: int, mend: Mend) -> tuple[str, object]:
    """Return the text with one mend, or as it is, and the tree that the text then has to have."""
    tree = _tree(text)
    if not mend.at:
        return _without_code(text, line, mend.ignored), tree
    at = _alone(tree, mend.at)
    return _without_member(text, at), _without(tree, at)


def _tree(text: str) -> object:
    try:
        tree, faults = read_tree(text, "")
    except ConfigurationError:
        return None
    return None if faults else tree


def _without_code(text: str, line: int, code: str) -> str:
    """Return the text without a code in the comment of a line; without the comment if it names no other word."""
    lines = text.splitlines(keepends=True)
    whole = lines[line - 1]
    match = IGNORE.search(whole.rstrip("\r\n"))
    if match is None:
        return text
    left = re.sub(rf"[,\s]*\b{code}\b", "", match[1]).strip(", \t")
    kept = f"{whole[: match.start(1)]} {left}" if left else whole[: match.start()].rstrip()
    lines[line - 1] = f"{kept}{whole[match.end() :]}" if kept else ""
    return "".join(lines)


def _alone(tree: object, at: Location) -> Location:
    """Return the outermost location of which nothing is left without `at`: an object whose only member it is goes with it."""
    while len(at) > 1 and isinstance(at[-2], str) and len(_inner(tree, at[:-1])) == 1:
        at = at[:-1]
    return at


def _inner(tree: object, at: Location) -> dict[str, object]:
    for key in at:
        tree = tree.get(key, {}) if isinstance(tree, dict) else tree[key] if isinstance(tree, list) and isinstance(key, int) else {}
    return tree if isinstance(tree, dict) else {}


def _without(tree: object, at: Location) -> object:
    key, *inner = at
    if isinstance(tree, dict):
        return {name: _without(value, tuple(inner)) if name == key else value for name, value in tree.items() if inner or name != key}
    assert isinstance(tree, list)
    return [_without(value, tuple(inner)) if index == key else value for index, value in enumerate(tree)]


def _without_member(text: str, at: Location) -> str:
    """Return the text without the member of a mapping; as it is if the member is not there, or a comment is in the way."""
    # JSON may be indented with tabs.
    node: yaml.Node | None = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    for key in at[:-1]:
        node = _value(node, key)
    if not isinstance(node, yaml.MappingNode):
        return text
    members: Members = node.value
    index = next((index for index, (name, _) in enumerate(members) if name.value == at[-1]), None)
    if index is None:
        return text
    start, end = members[index][0].start_mark.index, end_of(members[index][1])
    if not node.flow_style and not text[line_start(text, start) : start].strip():
        return text[: line_start(text, start)] + text[line_end(text, end) :]
    if index + 1 < len(members):
        end = members[index + 1][0].start_mark.index
    elif index:
        start = end_of(members[index - 1][1])
    return text if "#" in text[start:end] else text[:start] + text[end:]


def _value(node: yaml.Node | None, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    return node.value[key] if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value) else None
