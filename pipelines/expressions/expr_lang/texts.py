"""The functions of expr-lang and GlassFlow over strings, as SQL. GlassFlow's take any value, as its text, and nil as the empty string."""

from collections.abc import Callable

from pipelines.expressions.expr_lang.nodes import fault
from pipelines.expressions.expr_lang.operators import as_whole
from pipelines.expressions.expr_lang.values import (
    NUMBERS,
    Names,
    Value,
    all_bound,
    bound,
    fixed_text,
    guarded,
    integer,
    is_json,
    json_as,
    quoted,
    read_as,
    shown_text,
    text_value,
    truth,
)

MAX_REPEATED = 1_000_000
"""Limits the bytes that `repeat` makes, as expr-lang's memory budget does."""
_SPACES = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


def cast_text(names: Names, value: Value, at: int) -> Value:
    """Return a value as GlassFlow's text of it (`cast.ToString`): nil, and JSON that is an array or an object, are the empty string."""
    match value.kind:
        case "string":
            return text_value(f"coalesce({value.sql}, '')", value) if value.nullable else value
        case "nil":
            return text_value("''")
        case "list" | "object" | "query":
            raise fault(f"a string is needed here, not {value.name}", at)
    return bound(names, value, lambda one: text_value(f"CASE {_cases(one, fixed_text)} ELSE '' END"))


def _cases(one: Value, number: Callable[[Value], str]) -> str:
    """Write the cases of a simple value that give its text; `number` writes that of a number."""
    if one.kind == "json":
        text, truth_text = json_as(one, "string").sql, f"WHEN {is_json(one, 'bool')} THEN {one.sql}"
        return f"WHEN {is_json(one, 'string')} THEN {text} WHEN {is_json(one, 'float')} THEN {number(json_as(one, 'float'))} {truth_text}"
    if one.kind == "bool":
        return f"WHEN {one.sql} THEN 'true' WHEN NOT {one.sql} THEN 'false'"
    return f"WHEN {one.sql} IS NOT NULL THEN {number(one)}"


def shown(names: Names, value: Value, nil: str, at: int) -> Value:
    """Return a value as Go prints it (`%v`), and nil as `nil`, SQL that is a string or NULL."""
    match value.kind:
        case "string":
            return text_value(f"coalesce({value.sql}, {nil})", value) if value.nullable else value
        case "nil":
            return text_value(nil)
        case "list" | "object" | "query":
            raise fault(f"the text of {value.name} is not supported", at)

    def printed(one: Value) -> Value:
        text = text_value(f"CASE {_cases(one, shown_text)} ELSE {nil} END", nullable=nil == "NULL")
        nested = f"json_type({one.sql}) IN ('ARRAY', 'OBJECT')"
        return guarded(text, (nested, "the text of an array or an object is not supported")) if one.kind == "json" else text

    return bound(names, value, printed)


def string(names: Names, at: int, value: Value) -> Value:
    return shown(names, value, "'<nil>'", at)


def upper(names: Names, at: int, value: Value) -> Value:
    def raised(text: Value) -> Value:
        # The only letter of Unicode for which DuckDB and Go differ.
        parts = f"list_transform(string_split({text.sql}, 'ß'), lambda _tf_e: upper(_tf_e))"
        return text_value(f"CASE WHEN contains({text.sql}, 'ß') THEN array_to_string({parts}, 'ß') ELSE upper({text.sql}) END")

    return bound(names, cast_text(names, value, at), raised)


def lower(names: Names, at: int, value: Value) -> Value:
    text = cast_text(names, value, at)
    return text_value(f"lower({text.sql})", text)


def trim(names: Names, at: int, value: Value) -> Value:
    text = cast_text(names, value, at)
    return text_value(f"trim({text.sql}, {quoted(_SPACES)})", text)


def _affix(name: str, names: Names, at: int, value: Value, affix: Value) -> Value:
    def tested(one: Value, two: Value) -> Value:
        # GlassFlow finds nothing in the empty string, not even the empty string.
        return truth(f"({one.sql} <> '' AND {name}({one.sql}, {two.sql}))")

    return all_bound(names, (cast_text(names, value, at), cast_text(names, affix, at)), tested)


def contains_str(names: Names, at: int, value: Value, affix: Value) -> Value:
    return _affix("contains", names, at, value, affix)


def has_prefix(names: Names, at: int, value: Value, affix: Value) -> Value:
    return _affix("starts_with", names, at, value, affix)


def has_suffix(names: Names, at: int, value: Value, affix: Value) -> Value:
    return _affix("suffix", names, at, value, affix)


def replace_all(names: Names, at: int, value: Value, old: Value, new: Value) -> Value:
    def replaced(text: Value, before: Value, after: Value) -> Value:
        plain = f"replace({text.sql}, {before.sql}, {after.sql})"
        if before.constant:
            return text_value(plain)
        characters = f"string_split({text.sql}, '')"
        spread = f"{after.sql} || {_joined(characters, after)} || {after.sql}"
        return text_value(f"CASE WHEN {before.sql} <> '' OR {text.sql} = '' THEN {plain} ELSE {spread} END")

    return all_bound(names, [cast_text(names, one, at) for one in (value, old, new)], replaced)


_TEXTS = Value("", "string")


def split(names: Names, at: int, value: Value, separator: Value) -> Value:
    def pieces(text: Value, by: Value) -> Value:
        sql = f"list_filter(string_split({text.sql}, {by.sql}), lambda _tf_e: {text.sql} <> '')"
        return Value(sql, "list", item=_TEXTS, boxed=False)

    return all_bound(names, (cast_text(names, value, at), cast_text(names, separator, at)), pieces)


def _joined(list_sql: str, by: Value) -> str:
    """Write the texts of a list, joined; `array_to_string` takes a literal only, and the reduction no empty list."""
    if by.constant is not None:
        return f"array_to_string({list_sql}, {by.sql})"
    reduced = f"list_reduce(_tf_l, lambda _tf_a, _tf_e: _tf_a || {by.sql} || _tf_e)"
    return f"list_transform([{list_sql}], lambda _tf_l: CASE WHEN len(_tf_l) = 0 THEN '' ELSE {reduced} END)[1]"


def join(names: Names, at: int, values: Value, separator: Value) -> Value:
    if values.kind not in ("list", "json", "nil") or (values.item and values.item.kind not in ("string", "nil") and not values.boxed):
        raise fault("join takes an array of strings", at)
    if values.kind == "nil":
        return text_value("''")
    by = cast_text(names, separator, at)

    def joined(array: Value) -> Value:
        assert array.item is not None
        name = names.new()
        each = cast_text(names, Value(name, array.item.kind, nullable=array.item.nullable, exact=array.item.exact), at)
        list_sql = f"list_transform({array.sql}, lambda {name}: {each.sql})"
        return bound(names, by, lambda one: text_value(f"coalesce({_joined(list_sql, one)}, '')", array, each))

    def joined_json(one: Value) -> Value:
        return text_value(f"CASE WHEN {is_json(one, 'list')} THEN {joined(json_as(one, 'list')).sql} ELSE '' END", by)

    if values.kind == "json":
        return bound(names, values, joined_json)
    return joined(values)


def _strings(name: str, names: Names, at: int, values: tuple[Value, ...], body: Callable[..., Value]) -> Value:
    """Return what `body` makes of the arguments of a function of expr-lang, which takes strings only."""
    for value in values:
        if value.kind not in ("string", "json"):
            raise fault(f"{name} takes strings, not {value.name}", at)

    def read(rest: tuple[Value, ...], done: tuple[Value, ...]) -> Value:
        if not rest:
            return all_bound(names, done, body)
        return read_as(names, rest[0], "string", name, lambda one: read(rest[1:], (*done, one)))

    return read(values, ())


_BLANK = Value("' '", "string", constant=" ")


def trim_prefix(names: Names, at: int, value: Value, prefix: Value = _BLANK) -> Value:
    def trimmed(text: Value, start: Value) -> Value:
        rest = f"substr({text.sql}, length({start.sql}) + 1)"
        return text_value(f"CASE WHEN starts_with({text.sql}, {start.sql}) THEN {rest} ELSE {text.sql} END")

    return _strings("trimPrefix", names, at, (value, prefix), trimmed)


def trim_suffix(names: Names, at: int, value: Value, suffix: Value = _BLANK) -> Value:
    def trimmed(text: Value, end: Value) -> Value:
        rest = f"left({text.sql}, length({text.sql}) - length({end.sql}))"
        return text_value(f"CASE WHEN suffix({text.sql}, {end.sql}) THEN {rest} ELSE {text.sql} END")

    return _strings("trimSuffix", names, at, (value, suffix), trimmed)


def split_after(names: Names, at: int, value: Value, separator: Value) -> Value:
    def pieces(text: Value, by: Value) -> Value:
        parts = f"list_filter(string_split({text.sql}, {by.sql}), lambda _tf_e: {text.sql} <> '' OR {by.sql} <> '')"
        item, index = names.new(), names.new()
        ended = f"CASE WHEN {index} < len({parts}) THEN {item} || {by.sql} ELSE {item} END"
        return Value(f"list_transform({parts}, lambda {item}, {index}: {ended})", "list", item=_TEXTS, boxed=False)

    return _strings("splitAfter", names, at, (value, separator), pieces)


def repeat(names: Names, at: int, value: Value, times: Value) -> Value:
    if times.kind not in NUMBERS:
        raise fault(f"repeat takes a number of times, not {times.name}", at)

    def repeated(text: Value) -> Value:
        def made(one: Value) -> Value:
            whole = as_whole(one)
            bad = f"{whole} < 0 OR {whole} > {MAX_REPEATED} OR strlen({text.sql}) * {whole} >= {MAX_REPEATED}"
            return guarded(text_value(f"repeat({text.sql}, {whole})"), (bad, "repeat: negative or too long"))

        return read_as(names, times, times.kind, "repeat", lambda one: bound(names, one, made))

    return _strings("repeat", names, at, (value,), repeated)


def index_of(names: Names, at: int, value: Value, part: Value) -> Value:
    def found(text: Value, piece: Value) -> Value:
        place = f"instr({text.sql}, {piece.sql})"
        return integer(f"CASE WHEN {place} = 0 THEN -1 ELSE strlen(left({text.sql}, {place} - 1)) END")

    return _strings("indexOf", names, at, (value, part), found)


def last_index_of(names: Names, at: int, value: Value, part: Value) -> Value:
    def found(text: Value, piece: Value) -> Value:
        before = f"regexp_extract({text.sql}, '(?s)^(.*)' || regexp_escape({piece.sql}), 1)"
        return integer(f"CASE WHEN NOT contains({text.sql}, {piece.sql}) THEN -1 ELSE strlen({before}) END")

    return _strings("lastIndexOf", names, at, (value, part), found)


def to_base64(names: Names, at: int, value: Value) -> Value:
    return _strings("toBase64", names, at, (value,), lambda text: text_value(f"to_base64(encode({text.sql}))"))


_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def from_base64(names: Names, at: int, value: Value) -> Value:
    def decoded(text: Value) -> Value:
        # Go skips the line ends of a text in base64.
        plain = f"replace(replace({text.sql}, chr(10), ''), chr(13), '')"
        found = text_value(f"decode(from_base64({plain}))", fails=True)
        return guarded(found, (f"NOT regexp_matches({plain}, '{_BASE64}')", "fromBase64: not base64"))

    return _strings("fromBase64", names, at, (value,), decoded)


def cast_text_of(names: Names, at: int, value: Value) -> Value:
    return cast_text(names, value, at)
