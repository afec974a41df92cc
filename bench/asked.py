"""What the command line asks for, and where it is answered."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.release import Release

# Written to a file, a table of many figures has room for them.
console = Console(width=None if sys.stdout.isatty() else 160)


@dataclass(frozen=True)
class Asked:
    """The options of `python -m bench`; `releases`: this tree, and the one before where it is asked for."""

    home: Path
    events: int
    large_events: int
    runs: int
    only: str
    live_keys: Sequence[int]
    verified_events: int
    latency_seconds: float
    cluster: bool
    lanes: int
    streams: int
    releases: Sequence[Release]
