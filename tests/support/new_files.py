"""A tree of its own with a few new files, whose test runs there: shows what a new kind of something needs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_with(name: str, files: Mapping[str, str], tree: Path) -> str:
    """The output of the test among the files of `tests/support/<name>`, each at its place in a copy of the program."""
    for package in ("pipelines", "sql"):
        # With its byte code, which stays good: a copied file keeps its time.
        shutil.copytree(ROOT / package, tree / package)
    source = ROOT / "tests" / "support" / name
    assert {path.name for path in source.iterdir() if path.is_file()} == files.keys()
    for file, place in files.items():
        assert not (tree / place).exists()
        shutil.copy(source / file, tree / place)
    test = next(place for place in files.values() if place.startswith("test_"))
    # In the directory of all sessions it would remove what earlier ones have left there: 68,000 files, 26 s at the end of a run.
    quiet = ["-q", "-p", "no:cacheprovider", "--basetemp", str(tree / "tmp"), "--rootdir", str(tree), "-c", os.devnull]
    environment = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{ROOT / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *quiet, test]
    ended = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout
