"""The environment variables to which a pipeline file refers, and which of them hold no secret."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.config.faults import hidden_names
from pipelines.config.interpolate import names_in, required_names_in
from pipelines.config.text import read_tree


def variables_of(text: str) -> list[str]:
    """Return the names of all variables in the text of a pipeline file, sorted."""
    return sorted({*names_in(text)})


def open_variables(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that no field with a secret refers to, with their values; a variable that is not set is empty.

    A file reads an empty variable as one that is not set, so the two mean the same elsewhere.
    """
    tree, _ = read_tree(text, "the pipeline file")
    references = [*_references(tree, is_hidden=False)]
    secret = {name for name, is_hidden in references if is_hidden}
    return {name: environment.get(name, "") for name, _ in sorted(references) if name not in secret}


def unset_variables(text: str, environment: Mapping[str, str]) -> frozenset[str]:
    """Return the variables that the fields of a file refer to without a default, and that are not set."""
    if environment.keys() >= {*required_names_in(text)}:
        return frozenset()
    tree, _ = read_tree(text, "the pipeline file")
    return frozenset(name for part in _texts(tree) for name in required_names_in(part) if name not in environment)


def names_no_nats(text: str) -> bool:
    """Return whether a file says nothing of its NATS server: neither the address nor how to log in."""
    tree, _ = read_tree(text, "the pipeline file")
    return isinstance(tree, dict) and not tree.get("nats")


def _texts(tree: Any) -> Iterator[str]:
    """Yield every text of a tree."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        for value in tree:
            yield from _texts(value)
    elif isinstance(tree, str):
        yield tree


def _references(tree: Any, is_hidden: bool) -> Iterator[tuple[str, bool]]:
    """Yield each reference as (name of the variable, whether a secret refers to it)."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _references(value, is_hidden or key in hidden_names())
    elif isinstance(tree, list):
        for value in tree:
            yield from _references(value, is_hidden)
    elif isinstance(tree, str):
        yield from ((name, is_hidden) for name in names_in(tree))
