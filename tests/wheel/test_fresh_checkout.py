"""The first `make venv` of a checkout prints what a person reads, and the whole error where it fails."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.wheel import ROOT, copy_tree

MOST_LINES = 10


def make_venv(tree: Path) -> subprocess.CompletedProcess[str]:
    uv = os.environ.get("UV") or shutil.which("uv") or ""
    command = ["make", "--no-print-directory", "venv", f"UV={uv}"]
    # `make` hands its own options down to whoever calls it from a recipe, as `make test-wheel` does.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "VIRTUAL_ENV")}
    return subprocess.run(
        command, cwd=tree, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    tree = copy_tree(tmp_path / "tree")
    for name in ("Makefile", "constraints.txt", "constraints-build.txt"):
        shutil.copy(ROOT / name, tree / name)
    return tree


def test_an_install_prints_at_most_ten_lines_and_compiles(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    made = make_venv(checkout)
    assert made.returncode == 0, made.stdout
    assert (checkout / ".venv" / "bin" / "tallyflow").exists()
    assert 0 < len(made.stdout.splitlines()) <= MOST_LINES, made.stdout
    assert [*checkout.glob(".venv/lib/*/site-packages/dagster/__pycache__/__init__.*")] != []
    assert make_venv(checkout).stdout == "", "there is nothing left to do"


def test_an_install_that_fails_shows_the_whole_error(checkout: Path) -> None:
    (checkout / "constraints-build.txt").write_text(f"setuptools==80.0.0 \\\n    --hash=sha256:{'0' * 64}\n")
    made = make_venv(checkout)
    assert made.returncode != 0
    assert "setuptools" in made.stdout and "hash" in made.stdout.lower(), made.stdout
