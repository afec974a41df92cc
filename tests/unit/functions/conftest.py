"""Functions written to a directory of the test, and their hosts, which end with the test, or with the module."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelines.functions.calls import Hosts
from pipelines.functions.code import pack
from pipelines.functions.host import Host, Limits
from pipelines.functions.spec import Function

Write = Callable[..., Function]


def written(
    directory: Path,
    source: str,
    mode: Any = "batch",
    inputs: Any = (("id", "int64"),),
    outputs: Any = (("x", "int64"),),
    ms: int = 20_000,
) -> Function:
    (directory / "own.py").write_text("import pyarrow as pa\nimport pyarrow.compute as pc\n" + source)
    return Function("own:f", pack(directory, "own", ()), mode, inputs, outputs, ms)


@contextmanager
def opened() -> Iterator[Hosts]:
    made = Hosts(partial(Host, limits=Limits(restart_bytes=300 * 1024 * 1024, address_bytes=2048 * 1024 * 1024)))
    yield made
    made.close()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the source of a function `f`; return it as a program names it."""
    return partial(written, tmp_path)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with opened() as made:
        yield made


@pytest.fixture(scope="module")
def shared(memory: Path) -> Iterator[tuple[Write, Hosts]]:
    """`write` and `hosts` of a module: tests with the same source share its host, which takes 0.2 s of CPU to start."""
    with opened() as made:
        yield partial(written, memory), made
