"""Records that become dead letters, with their causes, and odd ones that become rows."""

import json
from random import Random

BAD_VALUES: dict[str, tuple[bytes | None, tuple[str, str, str | None]]] = {
    "no JSON": (b'{"id": 1, "name": ', ("parse", "invalid_json", None)),
    "no object": (b"[1, 2]", ("parse", "invalid_json", None)),
    "empty": (b"", ("parse", "invalid_json", None)),
    "not UTF-8": (b'{"id": 1, "name": "\xff\xfe"}', ("parse", "invalid_json", None)),
    "wrong type": (b'{"id": "1", "name": "x"}', ("parse", "wrong_type", "id")),
    "out of range": (b'{"id": 9223372036854775808, "name": "x"}', ("parse", "out_of_range", "id")),
    "infinite": (b'{"id": 1, "name": "x", "amount": 1e400}', ("parse", "out_of_range", "amount")),
    "missing field": (b'{"name": "x"}', ("transform", "null_in_non_nullable", "id")),
    "null field": (b'{"id": 1, "name": null}', ("transform", "null_in_non_nullable", "name")),
    "null value": (None, ("parse", "tombstone", None)),
}
"""By what is wrong: the value, and the stage, code and field of its dead letter."""

KIB = 1024
DEPTH = 50_000


def event(number: int, name: str = "event", more: str = "") -> bytes:
    return b'{"id": %d, "name": %s, "amount": null%s}' % (number, json.dumps(name).encode(), more.encode())


def of_size(number: int, size: int) -> bytes:
    """A good event of so many bytes that hardly compress."""
    around = len(event(number, ""))
    return event(number, Random(number).randbytes(size).hex()[: size - around])


DEAD_LETTERS: dict[str, tuple[bytes, str]] = {
    "deep arrays": (b"[" * DEPTH + b"]" * DEPTH, "invalid_json"),
    "deep objects": (b'{"id":' * DEPTH + b"1" + b"}" * DEPTH, "wrong_type"),
    "deep and never closed": (b"[" * DEPTH, "invalid_json"),
    "an id of 300,000 digits": (b'{"id": 1' + b"0" * 300_000 + b', "name": "x"}', "out_of_range"),
    "an amount of 300,000 digits": (b'{"id": 1, "name": "x", "amount": 1' + b"0" * 300_000 + b"}", "out_of_range"),
    "a million digits": (b'{"id": 1' + b"0" * 1_000_000 + b', "name": "x"}', "oversize"),
    "NUL outside a string": (b'{"id": 1, \x00"name": "x"}', "invalid_json"),
    "NUL bytes only": (bytes(1000), "invalid_json"),
    "a high surrogate alone": (b'{"id": 1, "name": "\\ud800"}', "invalid_json"),
    "a low surrogate alone": (b'{"id": 1, "name": "\\udc00 x"}', "invalid_json"),
    "surrogates as bytes": (b'{"id": 1, "name": "\xed\xa0\x80"}', "invalid_json"),
    "NaN": (b'{"id": 1, "name": "x", "amount": NaN}', "out_of_range"),
    "Infinity": (b'{"id": 1, "name": "x", "amount": -Infinity}', "out_of_range"),
    "a key twice": (b'{"id": 1, "id": 1, "name": "x"}', "invalid_json"),
    "a key twice, of two types": (b'{"id": 1, "id": "2", "name": "x"}', "invalid_json"),
    "1.0 MiB": (of_size(1, KIB * KIB), "oversize"),
    "1.1 MiB": (of_size(1, 1100 * KIB), "oversize"),
    "5 MiB": (of_size(1, 5 * KIB * KIB), "oversize"),
}
ROWS: dict[str, tuple[bytes, tuple[int, str, float | None]]] = {
    "NUL in a string": (b'{"id": 1, "name": "a\\u0000b"}', (1, "a\0b", None)),
    "a pair of surrogates": (b'{"id": 1, "name": "\\ud83d\\ude00"}', (1, "\U0001f600", None)),
    "deep where nothing is read": (event(1, "x", ', "more": ' + "[" * 500 + "]" * 500), (1, "x", None)),
    "0.9 MiB": (of_size(1, 950 * KIB), (1, json.loads(of_size(1, 950 * KIB))["name"], None)),
}
