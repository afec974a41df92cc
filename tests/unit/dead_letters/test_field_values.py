"""The value that a dead letter was rejected for."""

import pytest

from pipelines.dead_letters.field_values import value_of

RECORDS = {
    "text": ("state", b'{"state": "PAIDD"}', '"PAIDD"'),
    "dotted": ("customer.id", b'{"customer": {"id": 1.50}}', "1.50"),
    "a key with a dot": ("customer.id", b'{"customer.id": 7}', "7"),
    "null": ("state", b'{"state": null}', "null"),
    "by its column": ("amount_in_shop", b'{"total": {"amount": "x"}}', '"x"'),
    "absent": ("state", b"{}", None),
    "below a text": ("state.id", b'{"state": "x"}', None),
    "no field": (None, b'{"state": 1}', None),
    "no JSON": ("state", b"{", None),
    "no value": ("state", None, None),
    "an array": ("state", b"[1]", None),
    "not UTF-8": ("state", b'{"state": "\xff"}', None),
}


@pytest.mark.parametrize(("field", "value", "expected"), RECORDS.values(), ids=RECORDS)
def test_the_value_is_that_of_the_field(field: str | None, value: bytes | None, expected: str | None) -> None:
    assert value_of({"field": field, "value": value}, {"amount_in_shop": "total.amount"}) == expected


def test_a_long_value_is_cut() -> None:
    found = value_of({"field": "state", "value": b'{"state": "' + b"x" * 1000 + b'"}'}, {})
    assert found is not None
    assert (len(found), found[-3:]) == (200, "...")


def test_a_number_keeps_its_digits() -> None:
    assert value_of({"field": "n", "value": b'{"n": 123456789012345678901234567890}'}, {}) == "123456789012345678901234567890"
