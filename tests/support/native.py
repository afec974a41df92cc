"""The libraries of our own C code, and what is used without them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipelines.native_library import JSON_READER, NativeLibrary
from pipelines.process.steps.parse import json_reader as reader_module
from support.packages import program


def build_library(library: NativeLibrary = JSON_READER) -> None:
    """Builds the library of the present sources; skips the test where no compiler is."""
    program("cc", package="gcc")
    assert library.build() == ""
    assert library.load() is not None


@contextmanager
def without_library() -> Iterator[None]:
    """Readers that are made meanwhile have none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "native_reader", lambda fields: None)
        reader_module.reader_of.cache_clear()
        yield
    reader_module.reader_of.cache_clear()
