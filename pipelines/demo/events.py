"""The events of an example, made from a seed: good ones, copies of them, and ones that are broken on purpose. Pure.

Returns blocks of `Events` in order. Event number i depends on the recipe and i alone, however many events are requested, so a test can
repeat the stream and compare. The kind of every event is known, so good, bad and duplicate events are counted, not estimated.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import ConfigurationError, Fault

GOOD, DUPLICATE = "good", "duplicate"

MAX_BLOCK_EVENTS = 8192
_BLOCK_BYTES = 4 * 1024 * 1024
_MAX_SIZE = 1_000_000
_PADDING = ',"padding":""'
_TEXT_BYTES = 1 << 20

Codes = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Recipe:
    """Which events to make.

    `size`: bytes of a value; a shorter one is padded to it exactly, one whose fields alone are longer stays as it is.
    `duplicate_share`: share of copies (same key, same bytes) of an earlier good event, at most two blocks back. `bad_share`: share of
    records that do not fit the example's pipeline file, of each of its kinds alike. Shares are 0..1 and at most 1 together.
    Raises ConfigurationError for numbers outside of that.
    """

    seed: int = 1
    size: int = 200
    duplicate_share: float = 0.0
    bad_share: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.duplicate_share <= 1 and 0 <= self.bad_share <= 1 and self.duplicate_share + self.bad_share <= 1):
            shares = f"duplicate_share {self.duplicate_share} and bad_share {self.bad_share} must be 0..1 and at most 1 together"
            raise ConfigurationError("recipe", [Fault("", shares)])
        if self.seed < 0 or not 1 <= self.size <= _MAX_SIZE:
            numbers = f"seed {self.seed} must be 0 or more, size {self.size} must be 1 to {_MAX_SIZE}"
            raise ConfigurationError("recipe", [Fault("", numbers)])

    @property
    def block_events(self) -> int:
        return max(1, min(MAX_BLOCK_EVENTS, _BLOCK_BYTES // self.size))

    def random(self, block: int, purpose: int) -> np.random.Generator:
        """Return the random numbers of a block for one purpose; 0, 1 and 3 are taken here, 2 and others are the example's."""
        return np.random.default_rng((self.seed, block, purpose))


@dataclass(frozen=True)
class Events:
    """Some events in order: `keys` and `values` (binary; a value may be null), and per event the index of its kind in `names`."""

    keys: pa.Array
    values: pa.Array
    kinds: Codes
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None, str]]:
        """Yield the key, the value and the kind of each event."""
        kinds = (self.names[kind] for kind in self.kinds)
        return zip(self.keys.to_pylist(), self.values.to_pylist(), kinds, strict=True)

    def slice(self, start: int, count: int) -> "Events":
        return Events(self.keys.slice(start, count), self.values.slice(start, count), self.kinds[start : start + count], self.names)

    def count_kinds(self) -> Counter[str]:
        """Count the events of each kind; kinds that do not occur are absent."""
        present, counts = np.unique(self.kinds, return_counts=True)
        return Counter({self.names[kind]: int(count) for kind, count in zip(present, counts, strict=True)})


def spoiled_by(changes: Mapping[str, Mapping[str, object]]) -> Callable[[bytes, str], bytes]:
    """Return a `spoil` of a Generator: a kind has other values for some members, and `invalid_json` is cut off in the middle."""

    def spoil(value: bytes, kind: str) -> bytes:
        if kind == "invalid_json":
            return value[: len(value) // 2]
        return json.dumps({**json.loads(value), **changes[kind]}).encode()

    return spoil


@dataclass(frozen=True)
class Generator:
    """How an example makes its events.

    `render` returns (keys, values) of the good events of a block as strings; values are JSON objects without the closing brace.
    `spoil` returns a good value spoiled as one of `bad_kinds` requires; None is a record without a value.
    """

    render: Callable[[Recipe, int], tuple[pa.Array, pa.Array]]
    spoil: Callable[[bytes, str], bytes | None]
    bad_kinds: tuple[str, ...]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return (GOOD, DUPLICATE, *self.bad_kinds)

    def events(self, recipe: Recipe, count: int) -> Iterator[Events]:
        """Yield the first `count` events of the recipe's endless stream, in blocks."""
        sources = Events(pa.array([], pa.binary()), pa.array([], pa.binary()), np.zeros(0, dtype=np.int8), self.kinds)
        for block in range(-(-count // recipe.block_events)):
            keys, values = self.render(recipe, block)
            whole = pc.binary_join_element_wise(values, _padding(recipe, block, values), "}", "").cast(pa.binary())
            kinds = self._draw_kinds(recipe, block, has_sources=len(sources) > 0)
            events, sources = _with_copies(recipe, block, Events(keys.cast(pa.binary()), whole, kinds, self.kinds), sources)
            yield self._with_bad(events.slice(0, count - block * recipe.block_events))

    def _draw_kinds(self, recipe: Recipe, block: int, has_sources: bool) -> Codes:
        """Draw the kind of each event of a block.

        If there is nothing to copy yet, the first event that is not bad is a good one.
        """
        good = max(0.0, 1 - recipe.duplicate_share - recipe.bad_share)
        shares = [good, recipe.duplicate_share, *[recipe.bad_share / len(self.bad_kinds)] * len(self.bad_kinds)]
        kinds = recipe.random(block, 0).choice(len(self.kinds), recipe.block_events, p=shares).astype(np.int8)
        is_bad = kinds > self.kinds.index(DUPLICATE)
        if not has_sources and not is_bad.all():
            kinds[np.argmin(is_bad)] = self.kinds.index(GOOD)
        return kinds

    def _with_bad(self, events: Events) -> Events:
        """Spoil the value of each bad event, as its kind requires."""
        rows = np.flatnonzero(events.kinds > self.kinds.index(DUPLICATE))
        if not len(rows):
            return events
        values = events.values.take(pa.array(rows)).to_pylist()
        spoiled = [self.spoil(value, self.kinds[kind]) for value, kind in zip(values, events.kinds[rows], strict=True)]
        mask = np.zeros(len(events), dtype=bool)
        mask[rows] = True
        replaced = pc.replace_with_mask(events.values, pa.array(mask), pa.array(spoiled, pa.binary()))
        return Events(events.keys, replaced, events.kinds, events.names)


def _with_copies(recipe: Recipe, block: int, events: Events, sources: Events) -> tuple[Events, Events]:
    """Replace each duplicate by a copy of an earlier good event; return (events, good events that the next block may copy).

    `sources` are the good events of the last block that had any.
    """
    is_good, is_copy = events.kinds == events.names.index(GOOD), events.kinds == events.names.index(DUPLICATE)
    good = np.flatnonzero(is_good)
    if is_copy.any():
        candidates = np.concatenate([np.arange(len(sources)), len(sources) + good])
        good_before = len(sources) + np.cumsum(is_good)[is_copy]
        indices = np.arange(len(events)) + len(sources)
        indices[is_copy] = candidates[(recipe.random(block, 1).random(len(good_before)) * good_before).astype(np.int64)]
        keys, values = (
            pa.concat_arrays([before, now]).take(pa.array(indices))
            for before, now in ((sources.keys, events.keys), (sources.values, events.values))
        )
        events = Events(keys, values, events.kinds, events.names)
    if not len(good):
        return events, sources
    rows = pa.array(good)
    return events, Events(events.keys.take(rows), events.values.take(rows), events.kinds[good], events.names)


def _padding(recipe: Recipe, block: int, values: pa.Array) -> pa.Array:
    """Build the padding field per value, empty if the value is long enough; `values` lack the closing brace."""
    room = recipe.size - len(_PADDING) - 1 - pc.binary_length(values).to_numpy()
    lengths = np.maximum(room, 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    start = int(recipe.random(block, 3).integers(0, _TEXT_BYTES))
    text = np.resize(np.roll(_text(), -start), int(offsets[-1]))
    texts = pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(text))
    fields = pc.binary_join_element_wise(_PADDING[:-1], texts, '"', "")
    return pc.if_else(pa.array(room >= 0), fields, "")


@cache
def _text() -> npt.NDArray[np.uint8]:
    """Build a text of letters and blanks that compresses about as badly as such text can."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", dtype=np.uint8)
    return letters[np.random.default_rng(0).integers(0, len(letters), _TEXT_BYTES)]
