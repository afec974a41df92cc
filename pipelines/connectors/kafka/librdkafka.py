"""The librdkafka of this process by its C interface, and our own C code over its messages.

https://docs.confluent.io/platform/current/clients/librdkafka/html/rdkafka_8h.html
"""

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import confluent_kafka  # noqa: F401  # It loads librdkafka.

from pipelines.native_library import KAFKA_READER

_MAPS = Path("/proc/self/maps")
_OF_MESSAGES = ("consume_batch_queue", "message_timestamp", "message_headers", "header_get_all", "message_errstr", "message_destroy")
POINTER, _SIZE, _INT, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
_CALLS: Mapping[str, tuple[object, tuple[object, ...]]] = {
    "conf_new": (POINTER, ()),
    "conf_set": (_INT, (POINTER, _TEXT, _TEXT, _TEXT, _SIZE)),
    "conf_destroy": (None, (POINTER,)),
    "new": (POINTER, (_INT, POINTER, _TEXT, _SIZE)),
    "poll_set_consumer": (_INT, (POINTER,)),
    "queue_get_consumer": (POINTER, (POINTER,)),
    "queue_destroy": (None, (POINTER,)),
    "topic_partition_list_new": (POINTER, (_INT,)),
    "topic_partition_list_add": (POINTER, (POINTER, _TEXT, ctypes.c_int32)),
    "topic_partition_list_set_offset": (_INT, (POINTER, _TEXT, ctypes.c_int32, ctypes.c_int64)),
    "topic_partition_list_destroy": (None, (POINTER,)),
    "assign": (_INT, (POINTER, POINTER)),
    "pause_partitions": (_INT, (POINTER, POINTER)),
    "resume_partitions": (_INT, (POINTER, POINTER)),
    "topic_new": (POINTER, (POINTER, _TEXT, POINTER)),
    "topic_destroy": (None, (POINTER,)),
    "metadata": (_INT, (POINTER, _INT, POINTER, POINTER, _INT)),
    "metadata_destroy": (None, (POINTER,)),
    "consumer_close": (_INT, (POINTER,)),
    "destroy": (None, (POINTER,)),
    "last_error": (_INT, ()),
}
"""What each function of librdkafka returns and takes."""


class Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("keys", "values", "headers", "names", "contents")]


class Columns(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p)
        for name in (
            *("key_offsets", "value_offsets", "header_offsets", "name_offsets", "content_offsets", "keys", "values", "names", "contents"),
            *("key_valid", "value_valid", "header_valid", "content_valid"),
            *("partitions", "errors", "time_kinds", "offsets", "times"),
        )
    ]


class _TopicMetadata(ctypes.Structure):
    _fields_ = [("topic", _TEXT), ("partitions", _INT), ("of_partitions", POINTER), ("error", _INT)]


class Metadata(ctypes.Structure):
    _fields_ = [("brokers", _INT), ("of_brokers", POINTER), ("topics", _INT), ("of_topics", ctypes.POINTER(_TopicMetadata))]


class KafkaLibrary:
    """The library, and the librdkafka of this process. `call` has the functions of _CALLS."""

    def __init__(self, library: ctypes.CDLL, client: ctypes.CDLL) -> None:
        """Raise AttributeError for a librdkafka that lacks a function."""
        found = (POINTER * len(_OF_MESSAGES))(*(ctypes.cast(getattr(client, f"rd_kafka_{name}"), POINTER).value for name in _OF_MESSAGES))
        library.tallyflow_kafka_bind(found)
        self.call = {}
        for name, (returned, taken) in _CALLS.items():
            function = self.call[name] = getattr(client, f"rd_kafka_{name}")
            function.restype, function.argtypes = returned, taken
        self.poll, self._sizes = library.tallyflow_kafka_poll, library.tallyflow_kafka_sizes
        self.fill, self.drop = library.tallyflow_kafka_fill, library.tallyflow_kafka_drop
        self.poll.argtypes, self.poll.restype = [POINTER, _INT, POINTER, _SIZE], ctypes.c_ssize_t
        self._sizes.argtypes, self._sizes.restype = [POINTER, _SIZE, ctypes.POINTER(Sizes)], _SIZE
        self.fill.argtypes, self.drop.argtypes = [POINTER, _SIZE, ctypes.POINTER(Columns)], [POINTER, _SIZE]

    def sizes(self, at: int, count: int) -> tuple[int, Sizes]:
        """Return how many messages fit into columns, and their sizes."""
        found = Sizes()
        return int(self._sizes(at, count, ctypes.byref(found))), found


@cache
def kafka_library(maps: Path = _MAPS) -> KafkaLibrary | None:
    """Return the library; None if it is not built, or this process has no librdkafka with what it takes. `maps`: what it has mapped."""
    library, client = KAFKA_READER.load(), _librdkafka(maps)
    if library is None or client is None:
        return None
    try:
        return KafkaLibrary(library, client)
    except AttributeError:
        return None


def _librdkafka(maps: Path) -> ctypes.CDLL | None:
    """Return the librdkafka that confluent-kafka has loaded; None where it is part of another library, or the system tells of none."""
    try:
        mapped = maps.read_text(encoding="utf-8", errors="replace").splitlines()
        paths = {line.split(maxsplit=5)[5] for line in mapped if "/librdkafka" in line}
        # Not that of a wheel which was replaced meanwhile: its path ends in " (deleted)".
        return ctypes.CDLL(paths.pop()) if len(paths) == 1 else None
    except OSError:
        return None
