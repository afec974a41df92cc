"""Arrays of expr-lang as lists of SQL: membership, index, slice, and the functions that take a predicate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pipelines.expressions.expr_lang.nodes import fault
from pipelines.expressions.expr_lang.operators import as_whole, equality
from pipelines.expressions.expr_lang.values import (
    NUMBERS,
    Names,
    Value,
    all_bound,
    as_big,
    as_double,
    bound,
    guarded,
    integer,
    is_json,
    json_list,
    nil_faults,
    read_as,
    truth,
)

Predicate = Callable[[Mapping[str, Value]], Value]
"""Makes a value of what `#` names: the element as "", in map also its "index"."""


def array(items: Sequence[Value], at: int) -> Value:
    """Translate `[item, ...]`, whose items are of one kind."""
    known = [item for item in items if item.kind != "nil"]
    if any(item.kind in ("list", "object", "query") for item in items):
        raise fault("an array of arrays or objects is not supported", at)
    if not known:
        return Value(f"CAST([{', '.join('NULL' for _ in items)}] AS VARCHAR[])", "list", item=Value("", "json", nullable=True))
    exact = all(item.exact for item in known)
    if not (len({item.kind for item in known}) == 1 or all(item.kind in NUMBERS for item in known)):
        raise fault("the items of an array must be of one kind", at)
    numeric = known[0].kind in NUMBERS
    texts = [_item_sql(item, numeric, exact) for item in items]
    kind = "float" if any(item.kind == "float" for item in known) else known[0].kind
    nullable, infinite = any(item.nullable for item in items), any(item.infinite for item in known)
    shape = Value("", kind, nullable=nullable, exact=numeric and exact, infinite=infinite)
    return Value(f"[{', '.join(texts)}]", "list", fails=any(item.fails for item in items), item=shape)


def _item_sql(item: Value, numeric: bool, exact: bool) -> str:
    if item.kind == "nil" or not numeric:
        return item.sql
    return f"CAST({item.sql} AS BIGINT)" if exact and item.constant is not None else as_big(item) if exact else as_double(item)


def as_list(names: Names, value: Value, what: str, at: int, body: Callable[[Value], Value]) -> Value:
    """Return what `body` makes of `value` as a list; the row fails where it is none."""
    if value.kind not in ("list", "json"):
        raise fault(f"{what} takes an array, not {value.name}", at)
    return read_as(names, value, "list", what, body)


def element(value: Value, sql: str) -> Value:
    """Return an element of the list `value`, whose SQL is `sql`."""
    assert value.item is not None
    return replace(value.item, sql=sql)


def contains_any(names: Names, needle: Value, items: Sequence[Value], at: int) -> Value:
    """Translate `needle in [item, ...]`."""
    texts = [item.constant for item in items if isinstance(item.constant, str)]
    if items and len(texts) == len(items):
        return _in_texts(names, needle, items, "" in texts, at)

    def found(one: Value, *others: Value) -> Value:
        tests = [test for item in others if (test := equality(names, one, item)) is not None]
        if items and not tests:
            raise fault(f"`in` compares {needle.name} with other kinds only", at)
        return truth(f"({' OR '.join(test.sql for test in tests)})" if tests else "FALSE", *tests)

    return all_bound(names, (needle, *items), found)


def _in_texts(names: Names, needle: Value, items: Sequence[Value], empty: bool, at: int) -> Value:
    """Translate `in` over literal strings: a map in expr-lang, in which nil is the empty string, and another kind makes the row fail."""
    if needle.kind == "nil":
        return truth("TRUE" if empty else "FALSE")
    if needle.kind not in ("string", "json"):
        raise fault(f"`in` compares {needle.name} with strings", at)
    listed = ", ".join(item.sql for item in items)

    def found(one: Value) -> Value:
        text = f"json_extract_string({one.sql}, '$')" if one.kind == "json" else one.sql
        test = f"{text} IN ({listed})"
        value = truth(f"coalesce({test}, {'TRUE' if empty else 'FALSE'})" if one.nullable else f"({test})", one)
        return guarded(value, (f"NOT {is_json(one, 'string')}", "in: not a string")) if one.kind == "json" else value

    return bound(names, needle, found) if needle.kind == "json" else found(needle)


def in_range(names: Names, needle: Value, low: Value, high: Value) -> Value:
    """Translate `needle in low..high` for integers that are literals."""

    def found(one: Value) -> Value:
        whole = "" if one.exact else f" AND {one.sql} = trunc({one.sql})"
        sql = f"({one.sql} BETWEEN {low.sql} AND {high.sql}{whole})"
        return truth(f"coalesce({sql}, FALSE)" if one.nullable else sql)

    return bound(names, needle, found)


def membership(names: Names, needle: Value, container: Value, at: int) -> Value:
    """Translate `needle in container`; nothing is in nil."""
    if container.kind == "nil":
        return truth("FALSE")
    if container.kind == "object":
        return _key_in(names, needle, container, at)
    if container.kind not in ("list", "json"):
        raise fault(f"`in` takes an array on its right side, not {container.name}", at)

    def found(one: Value, array: Value) -> Value:
        faults = [(f"NOT {is_json(array, 'list')}", "in: not an array")] if array.kind == "json" else []
        inside = json_list(array) if array.kind == "json" else array
        name = names.new()
        test = equality(names, one, element(inside, name))
        if test is None:
            return guarded(truth("FALSE"), *faults)
        sql = f"(len(list_filter({inside.sql}, lambda {name}: {test.sql})) > 0)"
        return guarded(truth(f"coalesce({sql}, FALSE)" if array.nullable else sql), *faults)

    return all_bound(names, (needle, container), found)


def _key_in(names: Names, needle: Value, container: Value, at: int) -> Value:
    if needle.kind != "string":
        raise fault(f"`in` takes the name of a member before an object, not {needle.name}", at)
    return all_bound(
        names,
        (needle, container),
        lambda key, one: truth(f"coalesce(list_contains(json_keys({one.sql}), coalesce({key.sql}, '')), FALSE)"),
    )


def at_index(names: Names, base: Value, index: Value, optional: bool, at: int) -> Value:
    """Translate `base[index]` of a list; a negative index counts from the end, and one outside makes the row fail."""
    if index.kind not in NUMBERS:
        raise fault(f"an array takes a number as its index, not {index.name}", at)

    def taken(one: Value, position: Value) -> Value:
        whole = as_whole(position)
        place = f"CASE WHEN {whole} < 0 THEN {whole} ELSE {whole} + 1 END"
        if isinstance(position.constant, int):
            place = str(position.constant if position.constant < 0 else position.constant + 1)
        size = f"len({one.sql})"
        outside = f"{whole} >= {size} OR {whole} < -{size}"
        faults = [*nil_faults("[]", position), (outside, "[]: index out of range")]
        item = element(one, f"list_extract({one.sql}, {place})")
        return replace(guarded(item, *([] if optional else nil_faults("[]", one)), *faults), nullable=item.nullable or optional)

    return all_bound(names, (base, index), taken)


def part(names: Names, base: Value, start: Value | None, stop: Value | None, at: int) -> Value:
    """Translate `base[start:stop]`; a string is cut at bytes, and a cut inside a character makes the row fail."""
    ends = [end for end in (start, stop) if end is not None]
    for end in ends:
        if end.kind not in NUMBERS:
            raise fault(f"a slice takes numbers, not {end.name}", at)

    def cut(one: Value, *bounds: Value) -> Value:
        size = f"strlen({one.sql})" if one.kind == "string" else f"len({one.sql})"
        given = iter(bounds)
        first = _end(next(given), size) if start is not None else "0"
        last = _end(next(given), size) if stop is not None else size
        inner = f"encode({one.sql})" if one.kind == "string" else one.sql
        piece = f"array_slice({inner}, {first} + 1, greatest({last}, 0))"
        faults = [*nil_faults("[:]", *bounds)]
        text = one.kind == "string"
        return guarded(replace(one, sql=f"decode({piece})" if text else piece, fails=text or one.fails, constant=None), *faults)

    return read_as(names, base, base.kind, "[:]", lambda one: all_bound(names, (one, *ends), cut))


def _end(end: Value, size: str) -> str:
    whole = as_whole(end)
    if isinstance(end.constant, int):
        return str(end.constant) if end.constant >= 0 else f"greatest({size} + {whole}, 0)"
    return f"greatest(CASE WHEN {whole} < 0 THEN {size} + {whole} ELSE {whole} END, 0)"


def tested(names: Names, name: str, array: Value, predicate: Predicate, at: int) -> Value:
    """Translate the functions that ask a predicate: all, any, none, one, count, filter, find, findIndex and the last ones."""
    item = names.new()
    test = predicate({"": element(array, item)})
    if test.kind not in ("bool", "json"):
        raise fault(f"the predicate of {name} must be a boolean, not {test.name}", at)
    test = read_as(names, test, "bool", name, lambda one: one)
    if test.fails and name in _STOPS:
        return _stopping(names, name, array, predicate)
    kept = f"list_filter({array.sql}, lambda {item}: {test.sql})"
    fails = array.fails or test.fails
    if name == "filter":
        return Value(kept, "list", fails=fails, item=array.item)
    if name in ("find", "findLast"):
        return replace(element(array, f"list_extract({kept}, {1 if name == 'find' else -1})"), nullable=True, fails=fails)
    if name in ("findIndex", "findLastIndex"):
        index = names.new()
        places = f"list_transform({array.sql}, lambda {item}, {index}: CASE WHEN {test.sql} THEN {index} - 1 END)"
        found = f"list_filter({places}, lambda _tf_e: _tf_e IS NOT NULL)"
        return integer(f"list_extract({found}, {1 if name == 'findIndex' else -1})", nullable=True, fails=fails)
    if name == "count":
        return integer(f"len({kept})", fails=fails)
    sizes = {"any": "> 0", "none": "= 0", "one": "= 1", "all": f"= len({array.sql})"}
    return truth(f"(len({kept}) {sizes[name]})", fails=fails)


_STOPS = ("any", "all", "none", "find", "findIndex", "findLast", "findLastIndex")


def _stopping(names: Names, name: str, array: Value, predicate: Predicate) -> Value:
    """Ask a predicate that may fail about one element after the other, up to the one that decides."""
    state, step = names.new(), names.new()
    test = read_as(names, predicate({"": element(array, f"{step}.v")}), "bool", name, lambda one: one)
    stop = f"NOT {test.sql}" if name == "all" else test.sql
    last = name.startswith("findLast")
    item, index = names.new(), names.new()
    steps = f"list_transform({array.sql}, lambda {item}, {index}: struct_pack(v := {item}, i := {index} - 1, s := FALSE))"
    steps = f"list_reverse({steps})" if last else steps
    # The first state has the type of the others, although the list may be empty.
    first = f"[struct_pack(v := list_extract({array.sql}, 1), i := CAST(-1 AS BIGINT), s := FALSE)]"
    following = f"CASE WHEN {state}.s THEN {state} ELSE struct_pack(v := {step}.v, i := {step}.i, s := {stop}) END"
    folded = f"list_reduce(list_concat({first}, {steps}), lambda {state}, {step}: {following})"
    if name in ("any", "none", "all"):
        return truth(f"({'' if name == 'any' else 'NOT '}({folded}).s)", fails=True)
    field = "i" if name.endswith("Index") else "v"
    result = bound(names, Value(folded, "json"), lambda one: Value(f"CASE WHEN {one.sql}.s THEN {one.sql}.{field} END", "json"))
    shape = integer("") if field == "i" else element(array, "")
    return replace(shape, sql=result.sql, nullable=True, fails=True)


def mapped(names: Names, array: Value, predicate: Predicate, at: int) -> Value:
    """Translate `map(array, predicate)`."""
    item, index = names.new(), names.new()
    made = predicate({"": element(array, item), "index": integer(f"({index} - 1)")})
    if made.kind in ("list", "object", "query", "nil"):
        raise fault(f"an array of {made.name.split()[-1]}s is not supported" if made.kind != "nil" else "map must not give nil", at)
    indexed = f"{item}, {index}" if index in made.sql else item
    exact = as_big(made) if made.exact else made.sql
    shape = replace(made, sql="", fails=False, constant=None, big=True)
    return Value(f"list_transform({array.sql}, lambda {indexed}: {exact})", "list", fails=array.fails or made.fails, item=shape)
