"""Names that more than one module must agree on."""

import re
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.protocol.naming import (
    Names,
    bucket_of_partition,
    insert_token,
    is_redriven,
    segments_place,
    source_of_subject,
    stream_of_subject,
    subject_token,
)

NAMES = Names("orders-eu")


def test_a_subject_tells_its_stream() -> None:
    assert stream_of_subject(NAMES.raw("a.b", 3)) == NAMES.stream("raw")
    assert stream_of_subject(NAMES.dead_letters("sink", 0)) == NAMES.stream("dlq")
    assert stream_of_subject(NAMES.lease("sink")) == NAMES.stream("ledger")


def test_plain_characters_stand_for_themselves() -> None:
    assert subject_token("orders_v2-EU") == "orders_v2-EU"


def test_other_characters_are_escaped_byte_by_byte() -> None:
    assert subject_token("a.b") == "a=2Eb"
    assert subject_token("ü") == "=C3=BC"
    assert subject_token("a=2Eb") == "a=3D2Eb"


@settings(deadline=None)
@given(st.text(min_size=1))
def test_a_token_is_one_legal_subject_token(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", subject_token(text))


@settings(deadline=None)
@given(st.text(), st.text())
def test_different_texts_have_different_tokens(one: str, other: str) -> None:
    assert (subject_token(one) == subject_token(other)) == (one == other)


@settings(deadline=None)
@given(st.text(alphabet="=2E3Dd.a"), st.text(alphabet="=2E3Dd.a"))
def test_texts_made_of_escapes_have_different_tokens(one: str, other: str) -> None:
    assert (subject_token(one) == subject_token(other)) == (one == other)


def test_streams_and_subjects_of_a_pipeline() -> None:
    assert NAMES.stream("raw") == "tf-orders-eu-raw"
    assert NAMES.subjects("raw") == "tf.orders-eu.raw.>"
    assert NAMES.raw("my.source", 3) == "tf.orders-eu.raw.my=2Esource.3"
    assert NAMES.redriven("my.source", 3) == "tf.orders-eu.raw.my=2Esource.redrive.3"
    assert is_redriven(NAMES.redriven("my.source", 3))
    assert not is_redriven(NAMES.raw("redrive", 3)), "a source may have that name"
    assert NAMES.out(7) == "tf.orders-eu.out.7"
    assert NAMES.dead_letters("process", 2) == "tf.orders-eu.dlq.process.2"
    assert NAMES.chain("sink") == "tf.orders-eu.ledger.sink"
    assert NAMES.lease("sink") == "tf.orders-eu.ledger.lease.sink"
    assert NAMES.config("ab12") == "tf.orders-eu.ledger.config.ab12"
    assert NAMES.directory(Path("home")) == Path("home/pipelines/orders-eu")


def test_key_stores_lie_in_the_directory_or_below_a_uri() -> None:
    at_home = NAMES.state_storage(Path("home?/x"), "")
    assert (at_home, segments_place(at_home, "3")) == ("home?/x/state", "home?/x/state/dedup/3")
    elsewhere = NAMES.state_storage(Path("home"), "s3://bucket/keys/?region=eu-west-1")
    assert elsewhere == "s3://bucket/keys/orders-eu?region=eu-west-1"
    assert segments_place(elsewhere, "3") == "s3://bucket/keys/orders-eu/dedup/3?region=eu-west-1"


def test_every_subject_lies_under_the_wildcard_of_its_stream() -> None:
    by_role = {
        "raw": [NAMES.raw("s", 0)],
        "out": [NAMES.out(0)],
        "dlq": [NAMES.dead_letters("process", 0)],
        "ledger": [NAMES.chain("ingest"), NAMES.lease("sink"), NAMES.config("v")],
    }
    for role, subjects in by_role.items():
        assert all(subject.startswith(NAMES.subjects(role)[:-1]) for subject in subjects)


def test_partitions_are_dealt_to_the_buckets_in_turn() -> None:
    """One by one as in a column: where both are used for the same records they must agree."""
    assert [bucket_of_partition(partition, 3) for partition in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert bucket_of_partition(np.array([5, 0, 4], np.int32), 3).tolist() == [2, 0, 1]


def test_the_insert_token_names_stream_table_bounds_and_rows() -> None:
    assert insert_token("p", "5e1f", "db.t", 3, 9, "ab12") == "tf:p:5e1f:db.t:3-9:ab12"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_raw_subject_tells_its_source(source: str) -> None:
    assert source_of_subject(Names("orders").raw(source, 3)) == source
    assert source_of_subject(Names("orders").redriven(source, 3)) == source
