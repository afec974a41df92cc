"""Whatever the records hold: a file of which a preview makes a row of each, and lint nothing, or a sentence."""

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.errors import SampleError
from pipelines.init.file_text import Place
from pipelines.init.records import Sample
from pipelines.init.run import draft

PLACE = Place("any-topic", "any", {"brokers": "kafka-1:9092"}, {"host": "ch", "port": "8123", "database": "default"}, "records")

TIMES = ["2026-01-31T23:59:59Z", "2026-01-31", "31/01/2026", "01/02/2026 10:00", "1769903999", "1769903999123", "12.50", "007", "1e5", ""]
KEYS = st.sampled_from(
    ["id", "at", "sentAt", "a.b", "a", "b", "größe", "yes", "${X}", "x y", "", "é", "e", "A", '"', "_tf_offset", "*", "\n", "#"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(TIMES)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6)
RECORDS = st.lists(st.dictionaries(KEYS, VALUES, max_size=5), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(RECORDS)
@example([{"id": 1, "v": {"a": 1}}, {"id": 2, "v": "x"}])
@example([{"id": 1, "v": [[1], ["x"]]}])
@example([{"id": 1, "a.b": 1, "a": {"b": "x"}}])
@example([{"id": 1, "whole_value": 1, "v": 1}, {"id": 2, "whole_value": 2, "v": "x"}])
def test_a_draft_makes_a_row_of_each_record_or_says_why_not(records: list[dict[str, Any]]) -> None:
    sample = Sample("topic any")
    for record in records:
        sample.add(json.dumps(record).encode())
    try:
        made = draft(PLACE, sample)
    except SampleError as error:
        assert str(error).startswith("sampling topic any: ")
        return
    assert (dict(made.outcomes), made.reasons, list(made.findings)) == ({"row": len(records)}, {}, [])
