"""Settings of an existing stream that the pipeline cannot rest on."""

from typing import Any

import pytest
from nats.js import api

from pipelines.connectors.nats.stream_settings import stream_faults

OURS: dict[str, Any] = {
    "name": "tf-orders-raw",
    "subjects": ["tf.orders.raw.>"],
    "retention": api.RetentionPolicy.LIMITS,
    "discard": api.DiscardPolicy.NEW,
    "storage": api.StorageType.FILE,
    "max_age": 0,
    "max_msgs": -1,
    "max_msgs_per_subject": -1,
    "allow_direct": True,
}


def test_a_stream_as_we_make_it_is_sound() -> None:
    assert stream_faults(api.StreamConfig(**OURS), "tf.orders.raw.>") == []


@pytest.mark.parametrize(
    ("changed", "fault", "remedy"),
    [
        ({"discard": api.DiscardPolicy.OLD}, "discards old messages", "--discard=new"),
        ({"max_age": 3600.0}, "expire after 3600 s", "--max-age=0"),
        ({"max_msgs": 5}, "keeps only 5 messages", "--max-msgs=-1"),
        ({"max_msgs_per_subject": 1}, "keeps only 1 messages per subject", "--max-msgs-per-subject=-1"),
        ({"storage": api.StorageType.MEMORY}, "in memory only", "start it anew"),
        ({"retention": api.RetentionPolicy.WORK_QUEUE}, "its retention is", "start it anew"),
        ({"subjects": ["tf.orders.>"]}, "its subjects are", "start it anew"),
        ({"allow_direct": False}, "no direct gets", "--allow-direct"),
    ],
)
def test_a_setting_that_may_drop_messages_is_named(changed: dict[str, Any], fault: str, remedy: str) -> None:
    ((reported, way),) = stream_faults(api.StreamConfig(**{**OURS, **changed}), "tf.orders.raw.>")
    assert fault in reported
    assert remedy in way
