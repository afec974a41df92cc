"""Releases in turns: each figure of this tree and, where one is named, of the release before it, run by run in the same hour."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from rich.table import Table

from bench.release import HERE, Release


class Measured(Protocol):
    def figures(self) -> dict[str, float]:
        """What is compared, by name."""
        ...


One = TypeVar("One", bound=Measured)


def in_turns(
    releases: Sequence[Release], runs: int, measure: Callable[[Release], One], tell: Callable[[str], None]
) -> dict[str, list[One]]:
    """Return the runs of each release; `tell` hears of each when it has ended."""
    made: dict[str, list[One]] = {release.name: [] for release in releases}
    for number in range(runs):
        for release in releases:
            made[release.name].append(measure(release))
            first = ", ".join(f"{name} {_shown(figure)}" for name, figure in made[release.name][-1].figures().items())
            tell(f"{release.name}, run {number + 1}: {first}")
    return made


def ratios(found: Mapping[str, Mapping[str, Measured]]) -> Table:
    """Of each case what this tree has, the other release, and the ratio of both."""
    table = Table("case", "figure", HERE.name, "before", "ratio")
    for case, by_release in found.items():
        now, before = (one.figures() for one in by_release.values())
        for figure, value in now.items():
            ratio = f"{value / before[figure]:.2f}" if before[figure] else ""
            table.add_row(case, figure, _shown(value), _shown(before[figure]), ratio)
    return table


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
