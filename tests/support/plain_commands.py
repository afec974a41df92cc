"""The `tallyflow` commands that ours start as processes (the drain of `apply`, the runners of `demo`): forked, and without Spark.

A command of its own takes 1.2 s of CPU, one with Spark 9; a fork takes 0.2 s (forked.py), and is killed in the same way.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from types import TracebackType
from typing import IO, Any, Self

from support.forked import Forked


class PlainCommand(Forked):
    """In place of the `subprocess.Popen` of a command `python -m pipelines.cli ...`."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, stdout: IO[Any] | int = PIPE, stderr: IO[Any] | int = PIPE
    ) -> None:
        assert command[:3] == [sys.executable, "-m", "pipelines.cli"], command
        super().__init__(["support.plain_runner:main", *command[3:]], os.environ if env is None else env, Path.cwd(), stdout, stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.wait()


class PlainDrain(PlainCommand):
    """In place of the `subprocess.Popen` of `apply`'s drain; what it says goes to ours at its end."""

    def __init__(self, command: Sequence[str], stdin: int) -> None:
        assert stdin == PIPE
        # A forked command has no input that could stay open.
        super().__init__([word for word in command if word != "--end-with-input"])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        out, err = self.communicate()
        print(out)
        print(err, file=sys.stderr)
