import pytest

from pipelines.expressions.expr_lang.lexer import MAX_LENGTH, tokens


def texts(text: str) -> list[tuple[str, str]]:
    return [(token.kind, token.text) for token in tokens(text)[:-1]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\n\t\"\\"', 'a\n\t"\\'),
        (r"'it\'s'", "it's"),
        ("`raw \\n ``quoted```", "raw \\n `quoted`"),
        (r'"\x41\u00e9\u{1F44D}\U0001F44D\101"', "Aé👍👍A"),
        (r'"\ud800"', "\ufffd"),
        ('"日本"', "日本"),
    ],
)
def test_a_string_is_unescaped(text: str, value: str) -> None:
    assert texts(text) == [("string", value)]


@pytest.mark.parametrize("text", ["1", "1_000", "0x1F", "0b01", "0o17", "1.5", ".5", "1e3", "1.5e-3", "2."])
def test_a_number_is_one_token(text: str) -> None:
    assert texts(text) == [("number", text)]


def test_a_range_is_not_a_decimal_point() -> None:
    assert texts("1..3") == [("number", "1"), ("operator", ".."), ("number", "3")]


def test_words_are_operators_and_the_others_are_names() -> None:
    assert texts("not inner in endsWith") == [("operator", "not"), ("name", "inner"), ("operator", "in"), ("operator", "endsWith")]


def test_the_longest_operator_wins() -> None:
    assert [text for _, text in texts("a??b?.c**d||e<=f&&g!=h")] == [
        *"a",
        "??",
        "b",
        "?.",
        "c",
        "**",
        "d",
        "||",
        "e",
        "<=",
        "f",
        "&&",
        "g",
        "!=",
        "h",
    ]


def test_comments_and_spaces_are_skipped() -> None:
    assert texts("a // one\n\u00a0/* two */ + b") == [("name", "a"), ("operator", "+"), ("name", "b")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"abc', "the string has no end (character 1)"),
        ("a + `b", "the string has no end (character 5)"),
        ('"a\nb"', "the string has no end (character 1)"),
        (r'"\q"', "the string has an escape that expr-lang does not know (character 2)"),
        (r'"\U00110000"', "the string has an escape beyond Unicode (character 2)"),
        (r'"\x00"', "the string holds the character 0 or half a surrogate pair, which SQL text cannot hold (character 1)"),
        ("a /* b", "the comment has no end (character 3)"),
        ("1abc", "this is not a number (character 1)"),
        ("a @ b", "the character '@' is not part of expr-lang (character 3)"),
        ("a" * (MAX_LENGTH + 1), "the expression is longer than 4000 characters (character 4001)"),
    ],
)
def test_a_mistake_is_named_with_its_position(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        tokens(text)
    assert str(raised.value) == message
