"""Processes of functions that start before their functions are known."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipelines.functions.host import open_early
from pipelines.functions.spec import Function

Write = Callable[..., Function]
_PROGRAM = """
import os, sys
from pathlib import Path
import psutil, pyarrow as pa
from pipelines.functions.calls import HOSTS
from pipelines.functions.code import pack
from pipelines.functions.host import open_early
from pipelines.functions.spec import Function

function = Function("own:f", pack(Path(sys.argv[1]), "own", ()), "batch", (("id", "int64"),), (("x", "int64"),), 20_000)
open_early(2)
early = {child.pid for child in psutil.Process().children()}
if (fork := os.fork()) == 0:
    sys.exit()  # with its exit functions, as a worker of Spark's daemon would
assert os.waitpid(fork, 0)[1] == 0
found = HOSTS.call(function, pa.table({"id": [7]})).outputs.column("x").to_pylist()
now = {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}
print(found, len(early), now == early, len(os.listdir(os.environ["TMPDIR"])))
"""


def test_the_next_function_takes_an_early_process(write: Write, tmp_path: Path) -> None:
    """Its fork ends none; and the one that no function took ends with its caller, and leaves no files."""
    write("def f(batch):\n    return pa.record_batch({'x': batch['id']})\n")
    kept = tmp_path / "temporary"
    kept.mkdir()
    environment = {**os.environ, "TMPDIR": str(kept)}
    answer = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert answer.stdout.split("\n")[0] == "[7] 2 True 2"
    assert not list(kept.iterdir())


def test_a_process_whose_pipes_the_system_refuses_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An unprivileged user has pages for so many pipes of this size only."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(PermissionError):
        open_early(1)
    assert {child.pid for child in psutil.Process().children()} <= before
    assert not list(tmp_path.iterdir())
