from typing import Any

import pytest

from pipelines.expressions.expr_lang.fold import fold
from pipelines.expressions.expr_lang.nodes import (
    Array,
    Binary,
    Call,
    Chain,
    Conditional,
    Constant,
    Let,
    Member,
    Name,
    Node,
    Pointer,
    Predicate,
    Slice,
    Unary,
)
from pipelines.expressions.expr_lang.parser import parse


def shape(node: Node | None) -> Any:
    """Write a tree in brackets."""
    match node:
        case None:
            return ""
        case Constant():
            return repr(node.value)
        case Name():
            return node.name
        case Pointer():
            return f"#{node.name}"
        case Unary():
            return f"({node.operator} {shape(node.operand)})"
        case Binary():
            return f"({shape(node.left)} {node.operator} {shape(node.right)})"
        case Conditional():
            return f"({shape(node.condition)} ? {shape(node.then)} : {shape(node.otherwise)})"
        case Member():
            return f"{shape(node.base)}{'?' if node.optional else ''}[{shape(node.key)}]"
        case Chain():
            return f"<{shape(node.body)}>"
        case Slice():
            return f"{shape(node.base)}[{shape(node.start)}:{shape(node.stop)}]"
        case Call():
            return f"{node.name}({', '.join(map(shape, node.arguments))})"
        case Predicate():
            return f"{{{shape(node.body)}}}"
        case Array():
            return f"[{', '.join(map(shape, node.items))}]"
        case Let():
            return f"let {node.name} = {shape(node.value)}; {shape(node.body)}"
    raise AssertionError(node)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a or b and c", "(a or (b and c))"),
        ("not a == b", "((not a) == b)"),
        ("!a && b", "((not a) and b)"),
        ("a + b * c ** d", "(a + (b * (c ** d)))"),
        ("a - b - c", "((a - b) - c)"),
        ("a ** b ^ c", "(a ** (b ** c))"),
        ("-a ** b", "(- (a ** b))"),
        ("-a * b", "((- a) * b)"),
        ("1 .. a + 2", "(1 .. (a + 2))"),
        ("a in 1..3", "(a in (1 .. 3))"),
        ("a not in b", "(not (a in b))"),
        ("a not contains b or c", "((not (a contains b)) or c)"),
        ("1 < a <= 3", "((1 < a) and (a <= 3))"),
        ("1 + a ?? b", "(1 + (a ?? b))"),
        ("a ? b : c ? d : e", "(a ? b : (c ? d : e))"),
        ("a ?: b", "(a ? a : b)"),
        ("if a { 1 } else if b { 2 } else { 3 }", "(a ? 1 : (b ? 2 : 3))"),
        ("a.b['c'][0]", "a['b']['c'][0]"),
        ("a?.b.c ?? d", "(<a?['b']['c']> ?? d)"),
        ("a?.[0]", "<a?[0]>"),
        ("a.not", "a['not']"),
        ("a[1:2][:3][4:][:]", "a[1:2][:3][4:][:]"),
        ("a | trim() | split(',')", "split(trim(a), ',')"),
        ("any(a, # > 1)", "any(a, {(# > 1)})"),
        ("map(a, {.b == #index})", "map(a, {(#['b'] == #index)})"),
        ("count(a)", "count(a)"),
        ("[1, 'a', nil,]", "[1, 'a', None]"),
        ("let x = a + 1; x * x", "let x = (a + 1); (x * x)"),
        ("0x1f + 0b11 + 0o17 + 1_000", "(((31 + 3) + 15) + 1000)"),
    ],
)
def test_operators_bind_as_in_expr_lang(text: str, tree: str) -> None:
    assert shape(parse(text)) == tree


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1 + 2 * 3", "7"),
        ("7 % -4", "3"),
        ("-7 % 4", "-3"),
        ("'a' + 'b'", "'ab'"),
        ("9223372036854775807 + 1", "-9223372036854775808"),
        ("2 ** 3", "8.0"),
        ("a and true", "a"),
        ("a and 1 == 2", "False"),
        ("false or a", "a"),
        ("not (1 == 1)", "False"),
        ("1 / 2", "(1 / 2)"),
        ("first(filter(a, # > 1))", "find(a, {(# > 1)})"),
        ("len(filter(a, # > 1))", "count(a, {(# > 1)})"),
        ("len(map(filter(a, # > 1), #))", "count(a, {(# > 1)})"),
        ("len(map(filter(a, # > 1), #index))", "len(map(filter(a, {(# > 1)}), {#index}))"),
        ("sum([a, 2, b])", "(a + (2 + b))"),
        ("any(a, # > 1) or any(a, # < 0)", "any(a, {((# > 1) or (# < 0))})"),
        ("none(a, # > 1) and none(a, # < 0)", "none(a, {((# > 1) or (# < 0))})"),
        ("any(a, # > 1) or any(b, # < 0)", "(any(a, {(# > 1)}) or any(b, {(# < 0)}))"),
    ],
)
def test_constant_parts_are_computed_as_in_expr_lang(text: str, tree: str) -> None:
    assert shape(fold(parse(text))) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the end is not expected here (character 1)"),
        ("a +", "the end is not expected here (character 4)"),
        ("a b", "'b' is not expected here (character 3)"),
        ("(a", "')' is expected here, not the end (character 3)"),
        ("a ?? b + c", "'+' and `??` cannot be mixed; put one of them in parentheses (character 8)"),
        ("a not b", "'b' is not expected behind `not` (character 7)"),
        ("a; b", "several expressions, separated by `;`, are not supported (character 2)"),
        ("{'a': 1}", "a map is not supported (character 1)"),
        ("::upper(a)", "`::` is not supported (character 1)"),
        ("a.upper()", "'upper' is a method, and values have none (character 3)"),
        ("a.1", "'.1' is not expected here (character 2)"),
        ("any(a, #x)", "`#x` is unknown in any; there is `#`, and in map `#index` (character 8)"),
        ("map(a, #acc)", "`#acc` is unknown in map; there is `#`, and in map `#index` (character 8)"),
        ("count(a, {# == #index})", "`#index` is unknown in count; there is `#`, and in map `#index` (character 16)"),
        ("map(a, any(b, #index > 1))", "`#index` is unknown in any; there is `#`, and in map `#index` (character 15)"),
        ("a | filter(false and #index == 1)", "`#index` is unknown in filter; there is `#`, and in map `#index` (character 22)"),
        ("9223372036854775808", "the number is too large (character 1)"),
        ("0x", "this is not a number (character 1)"),
        ("1 % 0", "the right side of `%` is 0 (character 3)"),
        ("(" * 60 + "a" + ")" * 60, "the expression nests deeper than 50 levels (character 51)"),
        ("a" + " + a" * 60, "the expression nests deeper than 50 levels; use `in` for a long list of values (character 199)"),
    ],
)
def test_a_mistake_is_named_with_its_position(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        fold(parse(text))
    assert str(raised.value) == message
