"""The errors of Spark in short words that are the same in every run: without stages, tasks, paths and the stack of the JVM."""

import re
from typing import Any

NO_ACTION = "a transform describes a DataFrame and may run no action on it: no count, collect, show, take, isEmpty, write"
LOST = "lost"
"""The code of an answer that halts the leg: the positions of records were lost."""
_MAX_TEXT = 300
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(: .*)?$")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_WORKER_DIED = ("Python worker exited unexpectedly", "Python worker failed to connect", "java.io.EOFException")


def described_spark(error: Any) -> tuple[str, str]:
    """Return the code and the message of an error of Spark, as `child.described` does for one of Python."""
    text = _root(error)
    first = next((line for line in text.split("\n") if line.strip()), "")
    # An error of an analysis has the plan, with these words in it, in its further lines.
    if NO_ACTION in first:
        return "python_rows", NO_ACTION
    if any(sign in text for sign in _WORKER_DIED):
        return "python_died", "ends the process of a UDF"
    if "Traceback (most recent call last)" in text:
        return ("python_died" if "MemoryError" in text else "python_error"), _cut(f"raises {_raised(text)}")
    sentence = re.sub(r"\s*SQLSTATE: \w+.*$", "", re.sub(r"^.*?(?=\[[A-Z_.]+\])", "", first, count=1))
    return "python_error", _cut(f"raises {sentence.strip()}")


def _root(error: Any) -> str:
    """Return the text of what a task has raised, not of the job that was given up for it."""
    caused = getattr(error, "java_exception", None)
    while caused is not None and caused.getCause() is not None:
        caused = caused.getCause()
    return str(caused.toString() if caused is not None else error)


def _raised(text: str) -> str:
    """Return the exception that ends a traceback of Python."""
    lines = [line for line in text.rstrip().split("\n") if _RAISED.match(line) and not line.startswith((" ", "Traceback"))]
    return _ADDRESS.sub("0x...", lines[-1] if lines else "an exception")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."
