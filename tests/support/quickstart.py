"""docs/quickstart.md as steps: each command, and the lines of output that it shows."""

import re
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"
CHANGING = ((r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d+( UTC)?", "TIME"), (r"[0-9.]+ s\b", "SECONDS"))
"""What differs from one run to the next."""


def steps() -> Iterator[tuple[str, list[str]]]:
    """(command, lines that it shows) of the page's console blocks, in order."""
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            yield command, [line for line in shown if line.strip()]


def assert_shown(command: str, lines: list[str], answer: str) -> None:
    """Fail unless the answer has these lines in their order, whatever their blanks and times are."""
    rest = _plain(answer)
    for line in lines:
        assert _plain(line) in rest, f"{command} did not show {line!r} but {answer}"
        rest = rest[rest.index(_plain(line)) + len(_plain(line)) :]


def _plain(text: str) -> str:
    text = " ".join(text.split())
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text)
    return text
