"""The functions of expr-lang over arrays that take no predicate, and those over values of any kind, as SQL."""

from collections.abc import Callable
from dataclasses import replace

from pipelines.expressions.expr_lang.glassflow import key_list
from pipelines.expressions.expr_lang.lists import as_list, element
from pipelines.expressions.expr_lang.nodes import fault
from pipelines.expressions.expr_lang.numbers import extreme
from pipelines.expressions.expr_lang.values import (
    NUMBERS,
    Names,
    Value,
    all_bound,
    bound,
    guarded,
    integer,
    is_json,
    json_as,
    nil_faults,
    read_as,
    text_value,
)


def length(names: Names, at: int, value: Value) -> Value:
    """Translate `len`: characters of a string, elements of an array, keys of an object."""

    def counted(one: Value) -> Value:
        if one.kind == "json":
            text, array = json_as(one, "string").sql, f"json_array_length({one.sql})"
            cases = f"WHEN {is_json(one, 'string')} THEN length({text}) WHEN {is_json(one, 'list')} THEN CAST({array} AS BIGINT)"
            found = integer(f"CASE {cases} ELSE len(list_distinct(json_keys({one.sql}))) END")
            scalar = f"{is_json(one, 'float')} OR {is_json(one, 'bool')}"
            return guarded(found, *nil_faults("len", one), (scalar, "len: neither text nor array"))
        sizes = {"string": "length({0})", "list": "len({0})"}
        sql = sizes[one.kind].format(one.sql) if one.kind in sizes else f"len(list_distinct({key_list(one)}))"
        return guarded(integer(sql, one), *nil_faults("len", one))

    if value.kind not in ("string", "list", "object", "query", "json"):
        raise fault(f"len takes a string, an array or an object, not {value.name}", at)
    return bound(names, value, counted) if value.nullable or value.kind == "json" else counted(value)


_TYPES = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "string": "string",
    "list": "array",
    "object": "map",
    "query": "map",
    "nil": "nil",
}


def type_name(names: Names, at: int, value: Value) -> Value:
    if value.kind == "json":
        kinds = "WHEN 'VARCHAR' THEN 'string' WHEN 'BOOLEAN' THEN 'bool' WHEN 'ARRAY' THEN 'array' WHEN 'OBJECT' THEN 'map'"
        return text_value(f"CASE coalesce(json_type({value.sql}), 'NULL') {kinds} WHEN 'NULL' THEN 'nil' ELSE 'float' END", value)
    return text_value(f"CASE WHEN {value.sql} IS NULL THEN 'nil' ELSE '{_TYPES[value.kind]}' END", value)


def _end(place: int, names: Names, at: int, value: Value) -> Value:
    name = "first" if place == 1 else "last"
    if value.kind != "list":
        raise fault(f"{name} takes an array, not {value.name}", at)
    return replace(element(value, f"list_extract({value.sql}, {place})"), nullable=True, fails=value.fails)


def first(names: Names, at: int, value: Value) -> Value:
    return _end(1, names, at, value)


def last(names: Names, at: int, value: Value) -> Value:
    return _end(-1, names, at, value)


def take(names: Names, at: int, value: Value, count: Value) -> Value:
    if count.kind != "int":
        raise fault("take takes an integer, and the numbers of a record are floats; use int()", at)

    def taken(array: Value, number: Value) -> Value:
        sql = f"array_slice({array.sql}, 1, {number.sql})"
        return guarded(replace(array, sql=sql), *nil_faults("take", number), (f"{number.sql} < 0", "take: a negative number"))

    return as_list(names, value, "take", at, lambda array: all_bound(names, (array, count), taken))


def reverse(names: Names, at: int, value: Value) -> Value:
    return as_list(names, value, "reverse", at, lambda array: replace(array, sql=f"list_reverse({array.sql})", boxed=True))


def concat(names: Names, at: int, *values: Value) -> Value:
    def joined(rest: tuple[Value, ...], done: tuple[Value, ...]) -> Value:
        if rest:
            return as_list(names, rest[0], "concat", at, lambda array: joined(rest[1:], (*done, array)))
        items = [one.item for one in done if one.item]
        if len({(item.kind, item.exact) for item in items}) > 1:
            raise fault("concat takes arrays of one kind", at)
        sql = done[0].sql
        for one in done[1:]:
            sql = f"list_concat({sql}, {one.sql})"
        return replace(done[0], sql=sql, boxed=True, item=replace(items[0], nullable=any(item.nullable for item in items)))

    return joined(values, ())


def _typed(name: str, array: Value, at: int) -> Value:
    assert array.item is not None
    if array.item.kind not in ("string", *NUMBERS) or array.item.infinite:
        raise fault(f"{name} takes an array of numbers or of strings; make one with map(array, string(#)) or map(array, float(#))", at)
    return array.item


def uniq(names: Names, at: int, value: Value) -> Value:
    def kept(array: Value) -> Value:
        _typed("uniq", array, at)
        item, index, earlier = names.new(), names.new(), names.new()
        before = f"array_slice({array.sql}, 1, {index} - 1)"
        same = f"list_filter({before}, lambda {earlier}: {earlier} IS NOT DISTINCT FROM {item})"
        sql = f"list_filter({array.sql}, lambda {item}, {index}: len({same}) = 0)"
        return replace(array, sql=sql, boxed=True)

    return as_list(names, value, "uniq", at, lambda array: bound(names, array, kept))


def sort(names: Names, at: int, value: Value, order: Value | None = None) -> Value:
    if order is not None and order.constant not in ("asc", "desc"):
        raise fault('sort takes "asc" or "desc" as its order', at)
    function = "list_reverse_sort" if order is not None and order.constant == "desc" else "list_sort"

    def ordered(array: Value) -> Value:
        item = _typed("sort", array, at)
        result = replace(array, sql=f"{function}({array.sql})", boxed=True, item=replace(item, nullable=False))
        faulty = f"len({array.sql}) > 1 AND len(list_filter({array.sql}, lambda _tf_e: _tf_e IS NULL)) > 0"
        return guarded(result, (faulty, "sort: nil among the elements")) if item.nullable else result

    return as_list(names, value, "sort", at, lambda array: bound(names, array, ordered))


def _numbers(name: str, names: Names, at: int, value: Value, body: Callable[[Value], Value]) -> Value:
    """Return what `body` makes of a list of numbers that are not nil."""

    def read(array: Value) -> Value:
        assert array.item is not None
        if array.item.kind not in (*NUMBERS, "json"):
            raise fault(f"{name} takes an array of numbers", at)
        item = names.new()
        made = read_as(names, element(array, item), "float" if array.item.kind == "json" else array.item.kind, name, lambda one: one)
        sql = array.sql if made.sql == item else f"list_transform({array.sql}, lambda {item}: {made.sql})"
        shape = replace(made, sql="", nullable=False, fails=False)
        return bound(names, replace(array, sql=sql, item=shape, fails=array.fails or made.fails), body)

    return as_list(names, value, name, at, read)


def total(names: Names, at: int, value: Value) -> Value:
    def summed(array: Value) -> Value:
        assert array.item is not None
        zero = "CAST(0 AS BIGINT)" if array.item.exact else "CAST(0 AS DOUBLE)"
        sql = f"list_reduce(list_concat([{zero}], {array.sql}), lambda _tf_a, _tf_e: _tf_e + _tf_a)"
        return Value(sql, array.item.kind, exact=array.item.exact, infinite=not array.item.exact, fails=array.item.exact)

    return _numbers("sum", names, at, value, summed)


def _as_doubles(array: Value) -> str:
    assert array.item is not None
    return f"list_transform({array.sql}, lambda _tf_e: CAST(_tf_e AS DOUBLE))" if array.item.exact else array.sql


def mean(names: Names, at: int, value: Value) -> Value:
    def averaged(array: Value) -> Value:
        sums = f"list_reduce(list_concat([CAST(0 AS DOUBLE)], {_as_doubles(array)}), lambda _tf_a, _tf_e: _tf_a + _tf_e)"
        return Value(f"CASE WHEN len({array.sql}) = 0 THEN CAST(0 AS DOUBLE) ELSE {sums} / len({array.sql}) END", "float", infinite=True)

    return _numbers("mean", names, at, value, averaged)


def median(names: Names, at: int, value: Value) -> Value:
    def middle(array: Value) -> Value:
        def picked(ordered: Value) -> Value:
            size = f"len({ordered.sql})"
            high = f"list_extract({ordered.sql}, {size} // 2 + 1)"
            low = f"list_extract({ordered.sql}, {size} // 2)"
            even = f"({low} + {high}) / 2"
            sql = f"CASE WHEN {size} = 0 THEN CAST(0 AS DOUBLE) WHEN {size} % 2 = 1 THEN {high} ELSE {even} END"
            return Value(sql, "float", infinite=True)

        return bound(names, Value(f"list_sort({_as_doubles(array)})", "list"), picked)

    return _numbers("median", names, at, value, middle)


def _most(name: str, names: Names, at: int, *values: Value) -> Value:
    """Translate `min` and `max`: of several numbers, or of an array, whose answer is nil if it is empty."""
    if len(values) > 1 or values[0].kind != "list":
        return extreme(name, names, at, *values)

    def found(array: Value) -> Value:
        assert array.item is not None
        return replace(array.item, sql=f"list_{name}({array.sql})", nullable=True)

    # The answer for nil is nil too.
    return _numbers(name, names, at, replace(values[0], nullable=False), found)


def largest(names: Names, at: int, *values: Value) -> Value:
    return _most("max", names, at, *values)


def smallest(names: Names, at: int, *values: Value) -> Value:
    return _most("min", names, at, *values)
