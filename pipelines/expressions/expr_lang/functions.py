"""The functions of expr-lang and of GlassFlow that are translated, those that are not, and the functions of SQL in a translation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from pipelines.expressions.expr_lang import collections, glassflow, numbers, texts
from pipelines.expressions.expr_lang.values import Value

Origin = Literal["expr-lang", "GlassFlow", "both"]


@dataclass(frozen=True)
class Function:
    """A function that takes values: how it is written, whose it is, and how it is translated."""

    usage: str
    origin: Origin
    """`both`: expr-lang has one of this name, and GlassFlow's meaning is the one here."""
    summary: str
    build: Callable[..., Value]
    """Called with the names of lambdas, the position, and the arguments."""
    least: int = 1
    most: int = 1

    @property
    def is_typed(self) -> bool:
        """Report whether expr-lang's checker knows the kind of the result."""
        return self.origin == "expr-lang" and self.name not in ("first", "last", "max", "min")

    @property
    def name(self) -> str:
        return self.usage.partition("(")[0]


_ANY = 100
_FUNCTIONS = (
    Function("abs(number)", "expr-lang", "its distance from 0", numbers.absolute),
    Function("bitand(a, b)", "expr-lang", "the bits that both integers have", partial(numbers.bitwise, "bitand"), 2, 2),
    Function("bitnand(a, b)", "expr-lang", "the bits that only the first integer has", partial(numbers.bitwise, "bitnand"), 2, 2),
    Function("bitnot(integer)", "expr-lang", "its bits, inverted", numbers.bit_not),
    Function("bitor(a, b)", "expr-lang", "the bits that either integer has", partial(numbers.bitwise, "bitor"), 2, 2),
    Function("bitxor(a, b)", "expr-lang", "the bits that one of the integers has", partial(numbers.bitwise, "bitxor"), 2, 2),
    Function("ceil(number)", "expr-lang", "the next integer upwards", numbers.ceil),
    Function("concat(array, ...)", "expr-lang", "the arrays, one behind the other", collections.concat, 1, _ANY),
    Function("containsStr(text, part)", "GlassFlow", "whether the part occurs; never in an empty text", texts.contains_str, 2, 2),
    Function("extractPathType(path)", "GlassFlow", "`collect`, `set_cookie` or `unknown`", glassflow.path_type),
    Function("first(array)", "expr-lang", "its first element, or nil", collections.first),
    Function("float(value)", "expr-lang", "the number that a string holds, or the number", numbers.to_number),
    Function("floor(number)", "expr-lang", "the next integer downwards", numbers.floor),
    Function("fromBase64(text)", "expr-lang", "the text that is encoded", texts.from_base64),
    Function("getNestedParam(query, key)", "GlassFlow", "the same as getQueryParam", glassflow.query_param, 2, 2),
    Function(
        "getQueryParam(query, key)",
        "GlassFlow",
        "the value of a parameter in a query string, or an empty text",
        glassflow.query_param,
        2,
        2,
    ),
    Function("hasAnyKey(object, keys)", "GlassFlow", "whether it has one of the keys", glassflow.has_any_key, 2, 2),
    Function(
        "hasKeyPrefix(object, prefixes)", "GlassFlow", "whether a key starts with one of the prefixes", glassflow.has_key_prefix, 2, 2
    ),
    Function("hasPrefix(text, prefix)", "both", "whether the text starts with it; never an empty text", texts.has_prefix, 2, 2),
    Function("hasSuffix(text, suffix)", "both", "whether the text ends with it; never an empty text", texts.has_suffix, 2, 2),
    Function("indexOf(text, part)", "expr-lang", "the byte where the part starts first, or -1", texts.index_of, 2, 2),
    Function("int(value)", "expr-lang", "the integer that a string holds, or the number cut towards 0", numbers.to_integer),
    Function("join(array, separator)", "both", "the texts of the elements, joined", texts.join, 2, 2),
    Function("keys(object)", "both", "its keys, sorted", glassflow.keys),
    Function("last(array)", "expr-lang", "its last element, or nil", collections.last),
    Function("lastIndexOf(text, part)", "expr-lang", "the byte where the part starts last, or -1", texts.last_index_of, 2, 2),
    Function("len(value)", "expr-lang", "characters of a text, elements of an array, keys of an object", collections.length),
    Function("lower(text)", "both", "in lower case", texts.lower),
    Function("max(number, ...)", "expr-lang", "the largest number, also of one array", collections.largest, 1, _ANY),
    Function("mean(array)", "expr-lang", "the average of its numbers, 0 if it is empty", collections.mean),
    Function("median(array)", "expr-lang", "the middle one of its numbers, 0 if it is empty", collections.median),
    Function("min(number, ...)", "expr-lang", "the smallest number, also of one array", collections.smallest, 1, _ANY),
    Function("parseISO8601(text)", "GlassFlow", "seconds since 1970 in UTC, 0 if it is no time", glassflow.parse_time),
    Function("parseQuery(query)", "GlassFlow", "the parameters of a query string, for an index, keys and hasAnyKey", glassflow.parse_query),
    Function("parseUserAgent(agent, part)", "GlassFlow", "its `device`, `browser` or `os`", glassflow.user_agent, 2, 2),
    Function("repeat(text, times)", "expr-lang", "the text, that many times", texts.repeat, 2, 2),
    Function("replace(text, old, new)", "both", "with every `old` as `new`", texts.replace_all, 3, 3),
    Function("reverse(array)", "expr-lang", "its elements from the last to the first", collections.reverse),
    Function("round(number)", "expr-lang", "the nearest integer, halves away from 0", numbers.rounded),
    Function("sort(array, order)", "expr-lang", 'its elements in order, `"asc"` or `"desc"`', collections.sort, 1, 2),
    Function("split(text, separator)", "both", "the parts between the separators", texts.split, 2, 2),
    Function("splitAfter(text, separator)", "expr-lang", "the same, each part with its separator", texts.split_after, 2, 2),
    Function("string(value)", "expr-lang", "its text; `<nil>` for nil", texts.string),
    Function("take(array, count)", "expr-lang", "its first elements", collections.take, 2, 2),
    Function("toBase64(text)", "expr-lang", "the text in base64", texts.to_base64),
    Function("toDate(seconds)", "GlassFlow", "the date of seconds since 1970, in UTC", glassflow.to_date),
    Function("toFloat(value)", "GlassFlow", "the number in a text, 0 if there is none", numbers.cast_number),
    Function("toInt(value)", "GlassFlow", "the integer in a text, rounded down, 0 if there is none", numbers.cast_integer),
    Function("toString(value)", "GlassFlow", "its text; empty for nil", texts.cast_text_of),
    Function("trim(text)", "both", "without the spaces around it", texts.trim),
    Function("trimPrefix(text, prefix)", "expr-lang", "without the prefix, a space by default", texts.trim_prefix, 1, 2),
    Function("trimSuffix(text, suffix)", "expr-lang", "without the suffix, a space by default", texts.trim_suffix, 1, 2),
    Function("type(value)", "expr-lang", "`string`, `float`, `int`, `bool`, `array`, `map` or `nil`", collections.type_name),
    Function("uniq(array)", "expr-lang", "its elements, each once", collections.uniq),
    Function("upper(text)", "both", "in upper case", texts.upper),
    Function("urlDecode(text)", "GlassFlow", "the text that is encoded in a URL", glassflow.url_decode),
    Function("waterfall(value, ...)", "GlassFlow", "the first value that is neither nil nor empty, as text", glassflow.waterfall, 1, _ANY),
)
FUNCTIONS = {function.name: function for function in _FUNCTIONS}
"""The functions that take values, by name."""

PREDICATES = {
    "all(array, predicate)": "whether it holds for every element",
    "any(array, predicate)": "whether it holds for one element or more",
    "count(array, predicate)": "for how many elements it holds",
    "filter(array, predicate)": "the elements for which it holds",
    "find(array, predicate)": "the first such element, or nil",
    "findIndex(array, predicate)": "where it is, from 0, or nil",
    "findLast(array, predicate)": "the last such element, or nil",
    "findLastIndex(array, predicate)": "where it is, from 0, or nil",
    "map(array, predicate)": "what the predicate gives for each element",
    "none(array, predicate)": "whether it holds for no element",
    "one(array, predicate)": "whether it holds for exactly one element",
    "sum(array, predicate)": "the sum of the elements, or of what the predicate gives",
}
"""How the functions that ask a predicate about each element are written, and what they give."""

_TIME = "a time of expr-lang has no place in a record; use parseISO8601 and toDate, or SQL"
REFUSED = {
    **dict.fromkeys(("date", "duration", "timezone"), _TIME),
    "now": "a record must give the same rows whenever it is processed",
    **dict.fromkeys(("groupBy", "fromPairs", "toPairs", "values"), "a map as a value is not supported"),
    **dict.fromkeys(("toJSON", "fromJSON"), "declare a field of type object, or use SQL"),
    **dict.fromkeys(("sortBy", "reduce", "flatten"), "use SQL"),
    **dict.fromkeys(("bitshl", "bitshr", "bitushr"), "use SQL"),
    "get": "use an index with `?.`",
}
"""The functions of expr-lang that are not translated, and why or what to do."""

EMITTED = frozenset(
    (
        *("%", "&", "*", "+", "-", "/", "//", "|", "||", "~"),
        *("abs", "array_slice", "array_to_string", "ceil", "chr", "contains", "decode", "encode", "epoch", "floor"),
        *("from_base64", "greatest", "instr", "isfinite", "isinf", "isnan", "json_array_length", "json_extract"),
        *("json_extract_string", "json_keys", "json_type", "least", "left", "len", "length", "list_concat"),
        *("list_contains", "list_distinct", "list_extract", "list_filter", "list_max", "list_min", "list_reduce"),
        *("list_reverse", "list_reverse_sort", "list_sort", "list_transform", "list_value", "lower", "lpad", "ltrim"),
        *("make_timestamp", "nullif", "pow", "range", "regexp_escape", "regexp_extract", "regexp_matches", "repeat"),
        *("replace", "round", "rtrim", "split_part", "starts_with", "strftime", "string_split", "strlen"),
        *("struct_pack", "substr", "suffix", "to_base64", "to_json", "trim", "trunc", "upper", "url_decode", "xor"),
    )
)
"""The functions of SQL that a translation calls, operators among them."""
