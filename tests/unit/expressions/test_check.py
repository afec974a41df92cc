"""A text is checked at load: what it may ask for, the fields that it reads, the type of its value, and one sentence for each fault."""

import pytest

from pipelines.expressions.expression import Expression, check
from pipelines.expressions.result_types import RESULT_TYPES
from pipelines.types.fields import SOURCE_TYPES

FIELDS = {
    "amount": "float64",
    "n": "int64",
    "small": "int8",
    "huge": "uint64",
    "name": "string",
    "customer.city": "string",
    "customer": "object",
    "tags": "array",
    "raw": "bytes",
    "ok": "bool",
    "price": "decimal",
    "Case": "string",
    "seen": "timestamp",
}


def sql(text: str, wanted: str | None = None) -> Expression:
    return check(text, FIELDS, "sql", wanted)


def fault(text: str, wanted: str | None = None) -> str:
    with pytest.raises(ValueError) as raised:
        sql(text, wanted)
    return str(raised.value)


def test_the_fields_read_are_listed_by_their_names() -> None:
    found = sql("""upper(customer.city) = "customer.city" AND n > small""")
    assert (found.fields, found.type, found.language) == (("customer.city", "n", "small"), "bool", "sql")
    assert found.sql == """((upper("customer.city") = "customer.city") AND (n > small))"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name", "string"),
        ("n > 1", "bool"),
        ("small", "int8"),
        ("CAST(n AS SMALLINT)", "int16"),
        ("1", "int32"),
        ("n + 1", "int64"),
        ("huge", "uint64"),
        ("CAST(amount AS FLOAT)", "float32"),
        ("n / 2", "float64"),
        ("raw", "bytes"),
        ("n * 1.5", "decimal"),
        ("price", "decimal"),
        ("tags", "array"),
        ("seen", "timestamp"),
        ("date_trunc('day', seen)", "string"),
        ("concat(price)", "string"),
        ("CAST(n AS HUGEINT)", "decimal"),
        ("CAST(name AS DATE)", "string"),
        ("CAST(name AS TIMESTAMPTZ)", "string"),
        ("CAST(name AS UUID)", "string"),
        ("string_split(name, ',')", "array"),
        ("{'a': n}", "object"),
        ("MAP {'a': n}", "object"),
        ("customer -> 'city'", "object"),
        ("customer ->> 'city'", "string"),
    ],
)
def test_the_type_of_a_value_is_inferred(text: str, expected: str) -> None:
    assert sql(text).type == expected


def test_every_result_type_is_a_source_type() -> None:
    assert {source_type for source_type, _ in RESULT_TYPES.values()} <= set(SOURCE_TYPES)


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("n", "int8", "CAST(n AS TINYINT)"),
        ("small", "uint64", "CAST(small AS UBIGINT)"),
        ("n", "int", "n"),
        ("n", "float", "CAST(n AS DOUBLE)"),
        ("n", "decimal", "CAST(n AS VARCHAR)"),
        ("1.5", "float64", "CAST(1.5 AS DOUBLE)"),
        ("CAST(amount AS FLOAT)", "float64", "CAST(CAST(amount AS FLOAT) AS DOUBLE)"),
        ("NULL", "string", "CAST(NULL AS VARCHAR)"),
        ("{'a': n}", "map", "CAST(to_json(struct_pack(a := n)) AS VARCHAR)"),
        ("date_trunc('day', seen)", "timestamp", "date_trunc('day', seen)"),
        ("tags -> 0", "array", "CAST(json_extract(tags, 0) AS VARCHAR)"),
    ],
)
def test_a_lossless_or_checked_conversion_is_made(text: str, wanted: str, expected: str) -> None:
    found = sql(text, wanted)
    assert (found.sql, found.type) == (expected, wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("n", "string"), ("amount", "int64"), ("amount", "float32"), ("1.5", "int64"), ("name", "bytes"), ("n", "bool"), ("name", "array")],
)
def test_a_conversion_that_may_lose_is_refused(text: str, wanted: str) -> None:
    assert f"but must be {wanted}; convert it" in fault(text, wanted)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "it is empty"),
        ("n +", "syntax error"),
        ("n, amount", "it has several values"),
        ("amout > 1", "there is no field 'amout' (character 1); did you mean 'amount'?"),
        ("'é' || nn", "there is no field 'nn' (character 8); did you mean 'n'?"),
        ("case_ = 'a'", "there is no field 'case_'"),
        ("\"case\" = 'a'", "did you mean 'Case'?"),
        ("customer.town = 'a'", "declare 'customer.town' among the fields, or read 'customer' with json_extract_string"),
        ("uper(name)", "there is no function 'uper' (character 1); did you mean 'upper'?"),
        ("n && 1", "there is no operator '&&'"),
        ("sum(n)", "there is no function 'sum'"),
        ("count(DISTINCT n)", "there is no function 'count'"),
        ("upper(DISTINCT name)", "upper is called as an aggregate"),
        ("name.upper()", "write upper(...)"),
        ("CAST(n AS ENUM('a'))", "a cast to ENUM is not allowed"),
        ("CAST(n AS BIT)", "a cast to BIT is not allowed"),
        ("INTERVAL 1 DAY", "is of type INTERVAL"),
        ("NULL", "always null"),
        ("name + amount", "No function matches"),
        ("list_transform([1], lambda n: n)", "the parameter 'n' of a lambda has the name of a field"),
        ("repeat(name, n)", "repeat needs a size that is a constant"),
        ("lpad(name, 10001, ' ')", "integer of at most 10000"),
    ],
)
def test_a_fault_is_one_sentence_with_the_remedy(text: str, expected: str) -> None:
    message = fault(text)
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        "regexp_matches(name, '[')",
        "CAST('a' AS INTEGER)",
        "CASE WHEN ok THEN CAST('a' AS INTEGER) ELSE 1 END",
        "n + 5 % 0",
        "strptime('x', '%Y')",
        "9223372036854775807 + 1",
        "list_transform([1], lambda x: x + CAST('a' AS INTEGER))",
    ],
)
def test_a_constant_that_fails_is_refused_at_load(text: str) -> None:
    fault(text)


def test_fields_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(ValueError, match="'id' and 'ID' differ only in case"):
        check("id > 1", {"id": "int64", "ID": "int64"}, "sql")


@pytest.mark.parametrize(
    ("text", "language"),
    [("name = 'a'", "sql"), ('name == "a"', "expr"), ("ok ? 1 : 2", "expr"), ("upper(name)", "sql"), ("name == nil", "expr")],
)
def test_the_language_is_sql_where_that_is_sound(text: str, language: str) -> None:
    assert check(text, FIELDS).language == language


@pytest.mark.parametrize(("text", "first"), [("upper(nam)", "as SQL: "), ('nam == "a" && ok', "as expr-lang: ")])
def test_a_text_sound_in_neither_gets_both_reasons(text: str, first: str) -> None:
    with pytest.raises(ValueError, match="'nam'") as raised:
        check(text, FIELDS)
    assert str(raised.value).startswith(first)
    assert all(reason in str(raised.value) for reason in ("as SQL: ", "as expr-lang: "))


@pytest.mark.parametrize(
    "text",
    ["a - (b - c)", "-(-a)", "NOT (a > b AND b > c) OR a = 1", "a NOT BETWEEN b AND c", "'it''s' LIKE 'i%'", "[x + a for x in [b]]"],
)
def test_what_is_written_from_the_tree_is_sound_again(text: str) -> None:
    fields = {"a": "int64", "b": "int64", "c": "int64"}
    once = check(text, fields, "sql").sql
    assert check(once, fields, "sql").sql == once


def test_a_field_named_as_a_word_of_sql_is_to_be_quoted() -> None:
    fields = {"at": "int", "order": "string", "user": "string"}
    with pytest.raises(ValueError, match=r"^syntax error .*; a field whose name is a word of SQL is quoted: \"at\", \"order\"$"):
        check("at > 1 AND order = user", fields, "sql")
    assert check('"at" > 1 AND "order" = user', fields).fields == ("at", "order", "user")
    with pytest.raises(ValueError, match=r"^syntax error at [^;]*$"):
        check('"at" > ', fields, "sql")
