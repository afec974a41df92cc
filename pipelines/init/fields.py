"""The fields of sampled records: objects are taken apart into dotted names, each with the kinds of its values and how often it is null."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_MAX_DEPTH = 6
_MAX_KEYS = 32
"""An object with more keys, most of them in few records, is a map: its keys are values."""
_RARE_SHARE = 0.5
_READABLE = re.compile(r'[^.\x00-\x1f"\\*]+(\.[^.\x00-\x1f"\\*]+)*')
_MAX_NAME = 512


@dataclass
class FieldFacts:
    """One field of the sample. `path`: the keys that lead to it. `values`: those that are not null.

    `records`: how many records the sample has; those without the field count as null.
    """

    path: tuple[str, ...]
    records: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    values: list[Any] = field(default_factory=list)
    children: "dict[str, FieldFacts]" = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def null_share(self) -> float:
        return 1 - len(self.values) / self.records

    @property
    def distinct(self) -> int:
        return len({repr(value) for value in self.values})

    @property
    def unique_share(self) -> float:
        """The share of distinct values among those that are not null."""
        return self.distinct / len(self.values) if self.values else 0.0

    @property
    def is_readable(self) -> bool:
        """Whether a file can name the field: it then finds the key with the dots, or the nested one."""
        nested = len(self.path) == 1 or not any("." in key for key in self.path)
        return nested and len(self.name) <= _MAX_NAME and bool(_READABLE.fullmatch(self.name)) and not self.name.startswith("_tf_")

    def add(self, value: Any) -> None:
        if value is None:
            return
        self.kinds[kind_of(value)] += 1
        self.values.append(value)
        if isinstance(value, dict) and len(self.path) < _MAX_DEPTH:
            for key, inner in value.items():
                if key not in self.children:
                    self.children[key] = FieldFacts((*self.path, key), self.records)
                self.children[key].add(inner)

    @property
    def is_taken_apart(self) -> bool:
        if {*self.kinds} != {"object"} or not self.children or len(self.path) == _MAX_DEPTH:
            return False
        rare = sum(len(child.values) < _RARE_SHARE * len(self.values) for child in self.children.values())
        return not (len(self.children) > _MAX_KEYS and rare > len(self.children) / 2)

    def leaves(self) -> "Iterator[FieldFacts]":
        if not self.path or self.is_taken_apart:
            for child in self.children.values():
                yield from child.leaves()
        else:
            yield self


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value that is not null."""
    if isinstance(value, bool):
        return "bool"
    names = {int: "int", float: "float", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def fields_of(documents: Sequence[dict[str, Any]]) -> list[FieldFacts]:
    """Return the fields of the documents in the order in which they are met; of two with one dotted name the first."""
    root = FieldFacts((), len(documents))
    for document in documents:
        root.add(document)
    found: dict[str, FieldFacts] = {}
    for leaf in root.leaves():
        found.setdefault(leaf.name, leaf)
    return list(found.values())


def keys_of(fields: Sequence[FieldFacts], names: Sequence[str]) -> list[tuple[str, float]]:
    """Return the fields of `names` that may be keys, with their share of distinct values, the likeliest first.

    They are never null and nearly unique.
    """
    candidates = [one for one in fields if one.name in names and one.kinds.keys() <= {"string", "int"} and not one.null_share]
    unique = [(one.name, one.unique_share) for one in candidates if one.unique_share >= _KEY_SHARE]
    return sorted(unique, key=lambda found: (not NAMES_A_KEY.search(found[0]), -found[1]))


_KEY_SHARE = 0.9
NAMES_A_KEY = re.compile(r"(?:^|[._-])(?i:id|uuid|guid|key)$|[a-z](?:Id|ID|Uuid|UUID|Key)$")
NAMES_A_CODE = re.compile(
    r"(?:^|[._-])(?i:id|ids|uuid|key|code|zip|phone|number|no|nr|hash|token|sku|version|ean|iban)$|[a-z](?:Id|ID|Key|Code|Zip|No)$"
)
"""Names of texts that are no quantities, even if all of them are digits."""
