"""Where the parts of a YAML text begin and end, for edits that leave the rest of it as it is. Pure."""

import yaml


def end_of(node: yaml.Node) -> int:
    """Return where a node ends; the mark of a block is behind the comments and empty lines that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return end_of(last[1] if isinstance(node, yaml.MappingNode) else last)
    return int(node.end_mark.index)


def line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def line_end(text: str, index: int) -> int:
    """Return the start of the line after the one in which a node ends; a block of text ends with its line."""
    if text[index - 1 : index] == "\n":
        return index
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1
