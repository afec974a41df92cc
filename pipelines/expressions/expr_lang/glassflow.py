"""GlassFlow's own functions over queries, times, user agents and the keys of objects, as SQL.

By the rules of glassflow-api/internal/transformer/json/custom_expr_functions.go at c13349c4.
"""

from collections.abc import Callable, Sequence

from pipelines.expressions.expr_lang.lists import element
from pipelines.expressions.expr_lang.nodes import fault
from pipelines.expressions.expr_lang.operators import as_whole
from pipelines.expressions.expr_lang.texts import cast_text, shown
from pipelines.expressions.expr_lang.values import (
    NUMBERS,
    Names,
    Value,
    all_bound,
    bound,
    guarded,
    integer,
    text_value,
    truth,
)

_BAD_ESCAPE = "%(?:[^0-9A-Fa-f]|$|[0-9A-Fa-f](?:[^0-9A-Fa-f]|$))"


def _unescaped(sql: str) -> str:
    return f"url_decode(replace({sql}, '+', ' '))"


def parse_query(names: Names, at: int, value: Value) -> Value:
    """Translate `parseQuery` as a list of its pairs; a query that cannot be parsed has none."""

    def pairs(text: Value) -> Value:
        sound = f"CASE WHEN contains({text.sql}, ';') OR regexp_matches({text.sql}, '{_BAD_ESCAPE}') THEN '' ELSE {text.sql} END"
        part = names.new()
        key = f"split_part({part}, '=', 1)"
        pair = f"struct_pack(k := {_unescaped(key)}, v := {_unescaped(f'substr({part}, length({key}) + 2)')})"
        parts = f"list_filter(string_split({sound}, '&'), lambda _tf_e: _tf_e <> '')"
        return Value(f"list_transform({parts}, lambda {part}: {pair})", "query", fails=True)

    return bound(names, cast_text(names, value, at), pairs)


def parameter(names: Names, query: Value, key: Value, missing: str) -> Value:
    """Return the value of a key in a parsed query; one that is given several times makes the row fail."""

    def found(one: Value, name: Value) -> Value:
        values = f"list_filter({one.sql}, lambda _tf_e: _tf_e.k = {name.sql})"

        def single(kept: Value) -> Value:
            value = text_value(f"CASE WHEN len({kept.sql}) = 1 THEN {kept.sql}[1].v ELSE {missing} END", nullable=missing == "NULL")
            return guarded(value, (f"len({kept.sql}) > 1", "the parameter is given several times"))

        return bound(names, Value(values, "query"), single)

    return all_bound(names, (query, key), found)


def query_param(names: Names, at: int, query: Value, key: Value) -> Value:
    return parameter(names, parse_query(names, at, query), cast_text(names, key, at), "''")


def key_list(value: Value) -> str:
    """Write the keys of an object or a parsed query, which is simple, as a list; NULL where it is nil."""
    return f"json_keys({value.sql})" if value.kind == "object" else f"list_transform({value.sql}, lambda _tf_e: _tf_e.k)"


def keys(names: Names, at: int, value: Value) -> Value:
    if value.kind not in ("object", "query"):
        raise fault(f"keys takes an object or a parsed query, not {value.name}", at)
    item = Value("", "string")
    sql = bound(names, value, lambda one: Value(f"list_sort(list_distinct({key_list(one)}))", "list")).sql
    return Value(f"coalesce({sql}, CAST([] AS VARCHAR[]))", "list", fails=value.fails, item=item, boxed=False)


def _any_key(names: Names, at: int, container: Value, wanted: Value, test: Callable[[str, str], str]) -> Value:
    if container.kind not in ("object", "query", "nil") or wanted.kind not in ("list", "nil"):
        raise fault("an object or a parsed query is needed here, and an array of keys", at)
    if "nil" in (container.kind, wanted.kind) or not wanted.boxed:
        return truth("FALSE", container, wanted)

    def found(one: Value, array: Value) -> Value:
        key, item = names.new(), names.new()
        text = cast_text(names, element(array, item), at).sql
        inner = f"list_filter({array.sql}, lambda {item}: {test(key, text)})"
        return truth(f"(coalesce(len(list_filter({key_list(one)}, lambda {key}: len({inner}) > 0)), 0) > 0)")

    return all_bound(names, (container, wanted), found)


def has_key_prefix(names: Names, at: int, container: Value, prefixes: Value) -> Value:
    return _any_key(names, at, container, prefixes, lambda key, text: f"starts_with({key}, {text})")


def has_any_key(names: Names, at: int, container: Value, wanted: Value) -> Value:
    return _any_key(names, at, container, wanted, lambda key, text: f"({text} <> '' AND {key} = {text})")


def url_decode(names: Names, at: int, value: Value) -> Value:
    if value.kind not in ("string", "nil"):
        raise fault(f"urlDecode takes a string, not {value.name}", at)

    def decoded(text: Value) -> Value:
        bad = f"regexp_matches({text.sql}, '{_BAD_ESCAPE}')"
        return guarded(text_value(_unescaped(text.sql), fails=True), (bad, "urlDecode: not a URL encoding"))

    return bound(names, cast_text(names, value, at), decoded)


def path_type(names: Names, at: int, value: Value) -> Value:
    text = cast_text(names, value, at)
    return text_value(f"CASE {text.sql} WHEN '/g/collect' THEN 'collect' WHEN '/_/set_cookie' THEN 'set_cookie' ELSE 'unknown' END", text)


_TIME = (
    r"^([0-9]{4}-[0-9]{2}-[0-9]{2})(?:( )([0-9]{1,2})(:[0-9]{2}:[0-9]{2})[.,][0-9]{6}"
    r"|T([0-9]{1,2})(:[0-9]{2}:[0-9]{2})(?:[.,][0-9]+)?(?:Z|([+-])([0-9]{2}):([0-9]{2})))$"
)
"""GlassFlow's formats: a space and six digits of a second, or RFC 3339 with any digits. Groups: date, twice hour and rest, offset."""
_GROUPS = "['d', 's', 'h', 'r', 'i', 'q', 'sign', 'zh', 'zm']"


def parse_time(names: Names, at: int, value: Value) -> Value:
    """Translate `parseISO8601`: seconds since 1970, and 0 for what is no time."""

    def parsed(text: Value) -> Value:
        def seconds(found: Value) -> Value:
            g = found.sql
            clock = f"lpad({g}.h || {g}.i, 2, '0') || {g}.r || {g}.q"
            instant = f"epoch(TRY_CAST({g}.d || ' ' || {clock} AS TIMESTAMP))"
            hours, minutes = (f"coalesce(TRY_CAST({g}.{name} AS BIGINT), 0)" for name in ("zh", "zm"))
            offset = f"CASE WHEN {g}.sign = '-' THEN -1 ELSE 1 END * ({hours} * 3600 + {minutes} * 60)"
            sound = f"{g}.d <> '' AND {hours} <= 24 AND {minutes} <= 60 AND {clock} < '24'"
            return integer(f"CASE WHEN {sound} THEN coalesce(CAST({instant} AS BIGINT) - {offset}, 0) ELSE 0 END")

        return bound(names, Value(f"regexp_extract({text.sql}, '{_TIME}', {_GROUPS})", "json"), seconds)

    return bound(names, cast_text(names, value, at), parsed)


_FIRST_SECOND, _LAST_SECOND = -62135596800, 253402300799
"""The years 1 to 9999, which have four digits."""


def to_date(names: Names, at: int, value: Value) -> Value:
    """Translate `toDate`: the date of seconds since 1970 in UTC, and "0" for nil."""
    if value.kind == "nil":
        return text_value("'0'")
    if value.kind not in NUMBERS:
        raise fault(f"toDate takes a number of seconds, not {value.name}", at)

    def dated(one: Value) -> Value:
        text = f"strftime(make_timestamp({as_whole(one)} * 1000000), '%Y-%m-%d')"
        sql = f"CASE WHEN {one.sql} IS NULL THEN '0' ELSE {text} END" if one.nullable else text
        outside = f"{one.sql} < {_FIRST_SECOND} OR {one.sql} > {_LAST_SECOND}"
        return guarded(text_value(sql), (outside, "toDate: not in the years 1 to 9999"))

    return bound(names, value, dated)


def _contains(text: str, *words: str) -> str:
    return " OR ".join(f"contains({text}, '{word}')" for word in words)


def _devices(ua: str) -> str:
    tablet = f"{_contains(ua, 'ipad')} OR (contains({ua}, 'android') AND NOT contains({ua}, 'mobile'))"
    return f"CASE WHEN {tablet} THEN 'Tablet' WHEN {_contains(ua, 'mobile', 'iphone', 'android')} THEN 'Mobile' ELSE 'Desktop' END"


def _named(ua: str, named: Sequence[tuple[str, Sequence[str]]]) -> str:
    cases = " ".join(f"WHEN {_contains(ua, *words)} THEN '{name}'" for name, words in named)
    return f"CASE {cases} ELSE 'Unknown' END"


# An agent with `chrome` is Chrome or Edge already, so Safari needs no look at it.
_BROWSERS = (("Edge", ("edg/",)), ("Chrome", ("chrome", "crios")), ("Firefox", ("firefox", "fxios")), ("Safari", ("safari",)))
_SYSTEMS = (
    ("iOS", ("iphone", "ipad", "ipod")),
    ("Android", ("android",)),
    ("Windows", ("windows",)),
    ("macOS", ("mac os", "macintosh")),
    ("Linux", ("linux",)),
)


def user_agent(names: Names, at: int, value: Value, part: Value) -> Value:
    def named(text: Value, field: Value) -> Value:
        def found(ua: Value) -> Value:
            cases = {"device": _devices(ua.sql), "browser": _named(ua.sql, _BROWSERS), "os": _named(ua.sql, _SYSTEMS)}
            if isinstance(field.constant, str):
                sql = cases.get(field.constant, "''")
            else:
                sql = (
                    f"CASE {field.sql} {' '.join(f'WHEN {chr(39)}{name}{chr(39)} THEN {case}' for name, case in cases.items())} ELSE '' END"
                )
            return text_value(f"CASE WHEN {ua.sql} = '' THEN '' ELSE {sql} END")

        return bound(names, text_value(f"lower({text.sql})"), found)

    return all_bound(names, (cast_text(names, value, at), cast_text(names, part, at)), named)


def waterfall(names: Names, at: int, *values: Value) -> Value:
    """Translate `waterfall`: the first value that is neither nil nor the empty string, as text."""
    return _waterfall_of_list(names, at, values[0]) if values[0].kind == "list" else first_filled(names, at, values)


def first_filled(names: Names, at: int, values: Sequence[Value]) -> Value:
    """Return the first of `values` that is neither nil nor the empty string, as text."""
    texts = [shown(names, value, "NULL", at) for value in values]
    # A list, unlike `coalesce`, evaluates all of them: one that fails makes the row fail.
    filled = f"list_filter([{', '.join(text.sql for text in texts)}], lambda _tf_e: coalesce(_tf_e, '') <> '')"
    return text_value(f"coalesce(list_extract({filled}, 1), '')", *texts)


def _waterfall_of_list(names: Names, at: int, array: Value) -> Value:
    if not array.boxed:
        raise fault("waterfall takes values, or an array in brackets", at)
    name = names.new()
    text = shown(names, element(array, name), "NULL", at)
    filled = f"list_filter(list_transform({array.sql}, lambda {name}: nullif({text.sql}, '')), lambda _tf_e: _tf_e IS NOT NULL)"
    return text_value(f"coalesce(list_extract({filled}, 1), '')", array, text)
