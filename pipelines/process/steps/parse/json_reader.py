"""Reads JSON texts into typed columns, a whole batch at a time, with the strictness that DuckDB's own functions lack.

`json_transform` takes `"1"` for an integer, 1.5 for 2 and the first of two equal keys, so its answer is compared with the answers of
`json_type` and `json_keys` for the same text. Both are reduced to a signature; a stream has few distinct ones, and each is checked once.
`try()` is avoided on purpose: one error makes DuckDB evaluate the whole vector row by row (measured: 4.5 us per record, DuckDB 2.0).

Where our own library is built, `native_reader` reads first, and only the rows that it leaves are read here. The result of a record is the
same on both ways.
"""

import json
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.rejections import Rejections
from pipelines.process.steps.parse.native_reader import native_reader
from pipelines.types.engine import Engine
from pipelines.types.fields import ParsedField, SourceType, Tree, check_fields
from pipelines.types.vectors import Mask, to_mask

_KIND_NAMES = {"VARCHAR": "string", "UBIGINT": "integer", "BIGINT": "integer", "DOUBLE": "number", "BOOLEAN": "boolean"}
_NULLS = frozenset({"NULL", "'NULL'"})
"""Absent, and the kind of a JSON null, as the engine prints them in a list."""
_NOT_FINITE = r"(?i)(?:^|[:,\[])-?(nan|inf|[0-9.]+e\+?[0-9]{3,}|[0-9]{200}[0-9.]*(?:e[-+]?[0-9]+)?)"
"""A number of minified JSON that may be no finite float: with fewer than 200 digits it takes an exponent of three digits."""
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)
_MAX_MEMO = 10_000
_MAX_MEMO_TEXT = 1_000
Codes = npt.NDArray[np.int32]


@lru_cache(maxsize=64)
def reader_of(fields: tuple[ParsedField, ...]) -> "JsonReader":
    """Return the reader of `fields`, made once. Raise ValueError if `check_fields` finds a fault."""
    return JsonReader(fields)


@dataclass(frozen=True)
class _Leaf:
    """One path of one field: its struct column in the answer, and the child indices that lead to it there."""

    group: int
    indices: tuple[int, ...]


class JsonReader:
    """Reads one set of fields. It remembers signatures, which make it faster and change no answer."""

    def __init__(self, fields: tuple[ParsedField, ...]) -> None:
        faults = check_fields(fields)
        if faults:
            raise ValueError("; ".join(faults))
        self._fields = fields
        self._groups: list[Tree] = []
        self._leaves = [[self._leaf(path, field) for path in field.paths] for field in fields]
        self._parents = sorted({path[:depth] for field in fields for path in field.paths for depth in range(len(path))})
        self._twice: list[dict[str, bool]] = [{} for _ in self._parents]
        self._native = native_reader(fields)
        trees = [json.dumps(tree, ensure_ascii=False, default=attrgetter("engine")) for tree in self._groups]
        structs = [f"json_transform(v, {_literal(tree)})" for tree in trees]
        keys = [f"{_keys(parent)}::VARCHAR" for parent in self._parents]
        paths = ", ".join(_literal(_json_path(path)) for field in fields for path in field.paths)
        checked = ", ".join([f"json_type(v, [{paths}])::VARCHAR", *keys, *structs])
        self._checked_sql = f"SELECT v IS NOT NULL, {checked} FROM (SELECT CASE WHEN json_valid(v) THEN v END AS v FROM _tf_values)"  # noqa: S608

    def read(self, engine: Engine, texts: pa.Array, rejections: Rejections) -> list[pa.Array]:
        """Return one column per field, of the length of `texts` (strings; null = rejected before). Rejected rows hold any value."""
        if self._native is None:
            return self._checked(engine, texts, rejections)
        columns, is_read = self._native.read(texts)
        if is_read.all():
            return columns
        rest = ~is_read
        part = Rejections("parse", int(np.count_nonzero(rest)))
        others = self._checked(engine, texts.filter(pa.array(rest)), part)
        rejections.adopt(part, np.flatnonzero(rest))
        return [pc.replace_with_mask(column, pa.array(rest), other) for column, other in zip(columns, others, strict=True)]

    def _leaf(self, path: tuple[str, ...], field: ParsedField) -> _Leaf:
        for group in range(len(self._groups) + 1):
            if group == len(self._groups):
                self._groups.append({})
            indices = _insert(self._groups[group], path, field.source)
            if indices is not None:
                return _Leaf(group, indices)
        raise AssertionError("an empty tree takes every path")

    def _checked(self, engine: Engine, texts: pa.Array, rejections: Rejections) -> list[pa.Array]:
        """Read like `read`, by the engine alone."""
        valid, kinds, *others = engine.ask(self._checked_sql, texts)
        rejections.note(~to_mask(valid), "invalid_json", None, "the value is not JSON")
        for parent, memo, keys in zip(self._parents, self._twice, others[: len(self._parents)], strict=True):
            self._check_keys(engine, texts, keys, parent, memo, rejections)
        structs = others[len(self._parents) :]
        codes, patterns = _patterns(kinds, sum(len(leaves) for leaves in self._leaves))
        columns = []
        first = 0
        for field, leaves in zip(self._fields, self._leaves, strict=True):
            found = [_child(structs[leaf.group], leaf.indices) for leaf in leaves]
            kinds_found = [[pattern[first + index] for pattern in patterns] for index in range(len(leaves))]
            first += len(leaves)
            column, kind = _choose(found, kinds_found, codes)
            self._check_kind(engine, texts, field, (codes, kind), rejections)
            _check_range(field, column, (codes, kind), rejections)
            columns.append(column.cast(field.source.arrow))
        return columns

    def _check_keys(
        self,
        engine: Engine,
        texts: pa.Array,
        keys: pa.Array,
        parent: tuple[str, ...],
        memo: dict[str, bool],
        rejections: Rejections,
    ) -> None:
        """Reject a key twice in the object at `parent`, and, at the top, everything that is no object."""
        coded = keys.dictionary_encode()
        signatures = coded.dictionary.to_pylist()
        codes = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
        if len(memo) > _MAX_MEMO:
            memo.clear()
        is_repeated = {signature: memo[signature] for signature in signatures if signature in memo}
        unseen = [code for code, signature in enumerate(signatures) if signature not in is_repeated]
        if unseen:
            last_row = np.zeros(len(signatures), dtype=np.int64)
            present = codes >= 0
            last_row[codes[present]] = np.flatnonzero(present)
            sql = f"SELECT len(list_distinct({_keys(parent)})) < len({_keys(parent)}) FROM _tf_values"  # noqa: S608
            answers = engine.ask(sql, texts.take(pa.array(last_row[unseen])))[0].to_pylist()
            is_repeated.update(zip((signatures[code] for code in unseen), answers, strict=True))
            memo.update((signature, is_repeated[signature]) for signature in is_repeated if len(signature) <= _MAX_MEMO_TEXT)
        twice = np.array([*(bool(is_repeated[signature]) for signature in signatures), False])
        where = f" in {'.'.join(parent)!r}" if parent else ""
        rejections.note(twice[codes], "invalid_json", None, f"a key stands twice{where}")
        if not parent:
            empty = np.array([*(signature == "[]" for signature in signatures), False])[codes]
            if empty.any():
                rows = np.flatnonzero(empty)
                brace = pc.match_substring_regex(texts.take(pa.array(rows)), r"^[ \t\r\n]*\{")
                empty[rows[to_mask(brace)]] = False
                rejections.note(empty, "invalid_json", None, "the value is JSON but not an object")

    def _check_kind(
        self, engine: Engine, texts: pa.Array, field: ParsedField, kinds: tuple[Codes, list[str]], rejections: Rejections
    ) -> None:
        codes, kind_of = kinds
        for kind in sorted({kind for kind in kind_of if kind not in field.source.kinds and kind}):
            mask = np.array([candidate == kind for candidate in kind_of], dtype=bool)[codes] & rejections.open
            if kind == "DOUBLE" and field.source.is_integer:
                self._check_long_integers(engine, texts, field, mask, rejections)
            found = _KIND_NAMES.get(kind, kind.lower())
            rejections.note(mask, "wrong_type", field.name, f"expected {field.named_type}, found {_article(found)}")

    def _check_long_integers(self, engine: Engine, texts: pa.Array, field: ParsedField, mask: Mask, rejections: Rejections) -> None:
        """Reject integers beyond 64 bits by their text: json_type calls them DOUBLE."""
        rows = np.flatnonzero(mask)
        if not len(rows):
            return
        paths = ", ".join(f"json_extract_string(v, {_literal(_json_path(path))})" for path in field.paths)
        found = engine.ask(f"SELECT coalesce({paths}) FROM _tf_values", texts.take(pa.array(rows)))[0]  # noqa: S608
        integer = to_mask(pc.match_substring_regex(found, r"^-?[0-9]+$|(?i)nan|inf"))
        beyond = np.zeros(len(mask), dtype=bool)
        beyond[rows[integer]] = True
        rejections.note(beyond, "out_of_range", field.name, f"the number does not fit {field.named_type}")


def _check_range(field: ParsedField, column: pa.Array, kinds: tuple[Codes, list[str]], rejections: Rejections) -> None:
    codes, kind_of = kinds
    source = field.source
    bad: Mask | None = None
    if source.is_integer or source.is_float:
        expected_null = np.array([not kind for kind in kind_of], dtype=bool)
        absent = np.bincount(codes, minlength=len(kind_of))[expected_null].sum()
        if column.null_count != absent:
            bad = to_mask(pc.is_null(column)) & ~expected_null[codes]
        if source.is_float:
            infinite = to_mask(pc.invert(pc.is_finite(column)))
            bad = infinite if bad is None else bad | infinite
    elif source.is_json_text and field.type != "decimal":
        bad = _not_finite_inside(column)
    if bad is not None and bad.any():
        message = _INSIDE if source.is_json_text else f"the number does not fit {field.named_type}"
        rejections.note(bad, "out_of_range", field.name, message)


_INSIDE = "a number inside is not finite"


def _not_finite_inside(column: pa.Array) -> Mask:
    """Return the rows of JSON text that hold NaN, infinity or a number that becomes it (`1e400`) outside of strings.

    The reader accepts these.
    """
    suspect = to_mask(pc.match_substring_regex(column, _NOT_FINITE))
    for row in np.flatnonzero(suspect):
        numbers = re.findall(_NOT_FINITE, _STRINGS.sub("", column[int(row)].as_py()))
        suspect[row] = not all(math.isfinite(float(number)) for number in numbers)
    return suspect


def _choose(columns: list[pa.Array], kinds: list[list[str]], codes: Codes) -> tuple[pa.Array, list[str]]:
    """Return the column of a field and its kind per pattern: the literal key if it is present and not null, else the nested one."""
    if len(columns) == 1:
        return columns[0], kinds[0]
    literal = [kind != "" for kind in kinds[0]]
    kind = [first if is_literal else second for first, second, is_literal in zip(*kinds, literal, strict=True)]
    if not any(literal):
        return columns[1], kind
    return pc.if_else(pa.array(np.array(literal)[codes]), columns[0], columns[1]), kind


def _patterns(kinds: pa.Array, width: int) -> tuple[Codes, list[list[str]]]:
    """Return the kinds of every row as a code, and per code the list of kinds by path; "" if there is nothing."""
    coded = pc.fill_null(kinds, "").dictionary_encode()
    patterns = []
    for text in coded.dictionary.to_pylist():
        names = text[1:-1].split(", ") if text else [""] * width
        patterns.append(["" if name in _NULLS else name for name in names])
    return coded.indices.to_numpy(zero_copy_only=False), patterns


def _child(struct: pa.Array, indices: tuple[int, ...]) -> pa.Array:
    for index in indices:
        struct = pc.struct_field(struct, index)
    return struct


def _insert(tree: Tree, path: tuple[str, ...], leaf: SourceType) -> tuple[int, ...] | None:
    """Put `leaf` at `path` and return the child indices to it; return None, and change nothing, if the tree has no room for it.

    The engine's struct fields ignore case, so two keys that differ only in case need two trees.
    """
    same = [key for key in tree if key.casefold() == path[0].casefold()]
    if len(path) == 1:
        if same:
            return None
        tree[path[0]] = leaf
        return (len(tree) - 1,)
    below = tree.get(path[0], {})
    if isinstance(below, SourceType) or same not in ([], [path[0]]):
        return None
    rest = _insert(below, path[1:], leaf)
    if rest is None:
        return None
    tree[path[0]] = below
    return (list(tree).index(path[0]), *rest)


def _json_path(path: tuple[str, ...]) -> str:
    return "$" + "".join(f'."{segment}"' for segment in path)


def _keys(parent: tuple[str, ...]) -> str:
    return f"json_keys(v, {_literal(_json_path(parent))})" if parent else "json_keys(v)"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
