"""The library that reads JSON, and the reader without it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipelines.native_library import JSON_READER
from pipelines.process.parse import json_reader as reader_module
from support.packages import program


def build_library() -> None:
    """Builds the library of the present sources; skips the test where no compiler is."""
    program("cc", package="gcc")
    assert JSON_READER.build() == ""
    assert JSON_READER.load() is not None


@contextmanager
def without_library() -> Iterator[None]:
    """Readers that are made meanwhile have none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "native_reader", lambda fields: None)
        reader_module.json_reader.cache_clear()
        yield
    reader_module.json_reader.cache_clear()
