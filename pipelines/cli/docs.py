"""The command that looks a word up in the documentation that was shipped with this release."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.arguments import err, out
from pipelines.shipped import shipped

_HEADING = re.compile(r"^(#{1,4}) (.+)$", re.MULTILINE)
_OTHERS_SHOWN = 12


@dataclass(frozen=True)
class Section:
    """A part of a page below one heading, up to the next heading of any level. `depth`: 1 for the page's title."""

    page: str
    heading: str
    depth: int
    text: str

    def rank(self, words: list[str]) -> int:
        """Return how well it fits: 0 if a word is missing, most for words in its heading or several as they stand."""
        heading, text = self.heading.lower(), " ".join(self.text.lower().split())
        if any(word not in text and word not in heading for word in words):
            return 0
        in_heading = sum(bool(re.search(rf"\b{re.escape(word)}", heading)) for word in words)
        phrase = " ".join(words)
        in_text = min(sum(text.count(word) for word in words), 99) + 40 * min(text.count(phrase), 20)
        as_they_stand = len(words) if len(words) > 1 and phrase in text else 0
        return 1000 * (in_heading + (phrase in heading) + as_they_stand) + 10 * in_text + (5 - self.depth)


def sections(directory: Path) -> Iterator[Section]:
    """Yield the sections of all pages of a directory, by the names of the pages."""
    for page in sorted(directory.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        found = [*_HEADING.finditer(_without_code(text))]
        for one, following in zip(found, [*found[1:], None], strict=True):
            end = following.start() if following else len(text)
            yield Section(page.name, one[2].strip(), len(one[1]), text[one.end() : end].strip())


def _without_code(text: str) -> str:
    """Return the text with blanks in place of fenced code, of the same length: a comment of a shell is no heading."""
    return re.sub(r"^```.*?^```$", lambda code: re.sub(r"[^\n]", " ", code[0]), text, flags=re.MULTILINE | re.DOTALL)


def docs(
    words: Annotated[list[str], typer.Argument(help="Words to look for; all must stand in a section.")],
) -> None:
    """Look words up in the documentation: shows the section that fits best, and names the others. Connects to nothing."""
    from rich.markdown import Markdown

    wanted = [word.lower() for word in words]
    directory = shipped("docs")
    ranked = [(rank, section) for section in sections(directory) if (rank := section.rank(wanted))]
    if not ranked:
        err.print(f"no section of {directory} has {' and '.join(words)}; docs/README.md lists the pages", markup=False, highlight=False)
        raise typer.Exit(1)
    ranked.sort(key=lambda one: -one[0])
    best = ranked[0][1]
    out.print(Markdown(f"{'#' * best.depth} {best.heading}\n\n{best.text}"))
    out.print(f"\n{directory / best.page}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if others := [section for _, section in ranked[1 : 1 + _OTHERS_SHOWN]]:
        out.print("also: " + ", ".join(f"{section.page} ({section.heading})" for section in others), markup=False, highlight=False)
