"""The pipeline file of a command that names none: that of TALLYFLOW_PIPELINE, else the only one in the working directory."""

import re
from collections.abc import Iterator
from pathlib import Path

import typer

VARIABLE = "TALLYFLOW_PIPELINE"
_SUFFIXES = (".yaml", ".yml", ".json")
_PIPELINE = re.compile(r"""^pipeline_id\s*:|"pipeline_id"\s*:|^["']pipeline_id["']\s*:""", re.MULTILINE)
_MAX_BYTES = 1024 * 1024
"""The loader refuses larger files, too."""


def only_pipeline_file() -> Path:
    """Return the only pipeline file of the working directory. Raise BadParameter if there is none, or more than one."""
    found = sorted(pipeline_files(Path()))
    if len(found) == 1:
        return found[0]
    names = ", ".join(map(str, found))
    problem = f"name one of {names}" if found else "name the pipeline file: there is none in this directory"
    raise typer.BadParameter(f"{problem}, or set {VARIABLE}", param_hint="FILE")


def pipeline_files(directory: Path) -> Iterator[Path]:
    """Yield the files of a directory that have a pipeline's id; files of cases have none of their own."""
    for path in directory.iterdir():
        if path.suffix not in _SUFFIXES or path.stem.endswith(".tests") or not path.is_file() or path.stat().st_size > _MAX_BYTES:
            continue
        if _PIPELINE.search(path.read_text(encoding="utf-8", errors="replace")):
            yield path
