"""Functions written to a directory of the test, and their hosts, which end with the test."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelines.functions.calls import Hosts
from pipelines.functions.code import pack
from pipelines.functions.host import Host, Limits
from pipelines.functions.spec import Function

Write = Callable[..., Function]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the source of a function `f`; return it as a program names it."""

    def write(
        source: str, mode: Any = "batch", inputs: Any = (("id", "int64"),), outputs: Any = (("x", "int64"),), ms: int = 20_000
    ) -> Function:
        (tmp_path / "own.py").write_text("import pyarrow as pa\nimport pyarrow.compute as pc\n" + source)
        return Function("own:f", pack(tmp_path, "own", ()), mode, inputs, outputs, ms)

    return write


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts(partial(Host, limits=Limits(restart_bytes=300 * 1024 * 1024, address_bytes=2048 * 1024 * 1024)))
    yield made
    made.close()
