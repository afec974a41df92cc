"""The wheel of this tree, built aside: setuptools leaves files beside what it builds."""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "screenshots")


def packaged_directories() -> list[str]:
    """The top-level directories of the packages that pyproject.toml names."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    return sorted({package.partition(".")[0] for package in packages})


def tree_files(directory: str) -> Iterator[str]:
    """The files below a directory of the tree, as paths from the root."""
    for path in sorted((ROOT / directory).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix()


def copy_tree(copy: Path) -> Path:
    """Copy what the wheel is built from to `copy`, and return it."""
    for name in (*packaged_directories(), "docs", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=_LEFT_OUT)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def build_wheel(place: Path) -> Path:
    """Build the wheel into `place` from a copy of the tree, and return its path."""
    code = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(place)]
    built = subprocess.run(command, cwd=copy_tree(place / "tree"), capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return place / built.stdout.splitlines()[-1]
