"""Instants as most producers write them are read without regular expressions: the same values, the same faults."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import stage_engine

from pipelines.types import instants
from pipelines.types.columns import parse_type
from pipelines.types.instants import are_plain, parse_instants

ENGINE = stage_engine()
PLAIN = "2026-03-01T12:30:00.250Z"
CHARACTERS = "0123456789-:.TZ +/;é"


@st.composite
def columns(draw: st.DrawFn) -> list[str]:
    """Instants of one form, some of them with one character replaced, added or left out."""
    digits, separator, zone = draw(st.integers(0, 9)), draw(st.sampled_from("T t")), draw(st.sampled_from(["Z", "", "+02:00", "-0530"]))
    two = [st.integers(0, 13), st.integers(0, 32), st.integers(0, 25), st.integers(0, 61), st.integers(0, 61)]
    texts = []
    for _ in range(draw(st.integers(1, 5))):
        year, fields = draw(st.integers(1890, 2310)), [f"{draw(field):02}" for field in two]
        fraction = "." + "".join(draw(st.sampled_from("0123456789")) for _ in range(digits)) if digits else ""
        text = f"{year}-{fields[0]}-{fields[1]}{separator}{fields[2]}:{fields[3]}:{fields[4]}{fraction}{zone}"
        at = draw(st.integers(0, 4 * len(text)))
        texts.append(text[:at] + draw(st.sampled_from([*CHARACTERS, "", "00"])) + text[at + 1 :] if at < len(text) else text)
    return texts


@given(columns(), st.sampled_from(["DateTime", "DateTime64(3)", "DateTime64(9)"]))
def test_plain_instants_are_read_as_by_the_regular_expressions(texts: list[str], kind: str) -> None:
    column, target = pa.array(["", *texts]).slice(1), parse_type(kind)
    values, malformed, beyond = parse_instants(ENGINE, column, target)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(instants, "are_plain", lambda _: False)
        slow_values, slow_malformed, slow_beyond = parse_instants(ENGINE, column, target)
    assert (malformed.tolist(), beyond.tolist()) == (slow_malformed.tolist(), slow_beyond.tolist())
    is_good = [not bad for bad in (malformed | beyond).tolist()]
    assert values.filter(pa.array(is_good)).equals(slow_values.filter(pa.array(is_good)))


@pytest.mark.parametrize(
    "text", ["2026-03-01T12:30:00Z", "2026-03-01 12:30:00.1Z", PLAIN, "1999-12-31T23:59:59.999999Z", "2026-02-30T00:00:00Z"]
)
def test_what_most_producers_write_is_plain(text: str) -> None:
    assert are_plain(pa.array([text] * 5000))


@pytest.mark.parametrize(
    "other", [None, "2026-03-01T12:30:00.2500Z", "2026-13-01T12:30:00.250Z", "2026-03-00T12:30:00.250Z", "2026-03-01T24:30:00.250Z",
              "2026-03-01T12:30:00.250z", "2026-03-01U12:30:00.250Z", "2026-03-01T12:30:00.25+0"]
)  # fmt: skip
def test_one_other_text_takes_all_the_long_way(other: str | None) -> None:
    assert not are_plain(pa.array([PLAIN] * 2500 + [other] + [PLAIN] * 2500))
