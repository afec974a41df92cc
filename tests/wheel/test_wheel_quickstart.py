"""A user without a checkout: the wheel in an empty environment, and docs/quickstart.md in a shell, with the real servers and Spark."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.packages import program
from support.quickstart import assert_shown, steps
from support.wheel import ROOT, build_wheel

pytestmark = pytest.mark.integration

MOST_INSTALL_LINES = 10
_NEXT = "--- next ---"


def run(command: list[str], environment: Mapping[str, str], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=directory, env=dict(environment), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900, check=False
    )


def pins(directory: Path) -> Path:
    """The versions that this tree is tested with. Hashes are left out: they would be asked of the wheel, too."""
    found = re.findall(r"^[^ #\\]+==[^ \\]+(?: ; [^\\\n]*[^\\\n ])?", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    path = directory / "pins.txt"
    path.write_text("\n".join(found))
    return path


def install(wheel: Path, place: Path) -> tuple[Path, str]:
    """(the environment, what the install printed). uv takes its cache as it is; what that lacks comes from the package index."""
    venv, wanted = place / "environment", [f"{wheel}[local]", "-c", str(pins(place))]
    if uv := os.environ.get("UV") or shutil.which("uv"):
        made = run([uv, "venv", "--quiet", "--no-python-downloads", "--python", sys.executable, str(venv)], os.environ, place)
        with_uv = [uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), *wanted]
        installs = [[*with_uv, "--offline"], with_uv]
    else:
        made = run([sys.executable, "-m", "venv", str(venv)], os.environ, place)
        installs = [[str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]]
    assert made.returncode == 0, made.stdout
    for command in installs:
        ended = run(command, os.environ, place)
        if ended.returncode == 0:
            return venv, ended.stdout
    pytest.fail(f"the wheel cannot be installed: {ended.stdout}", pytrace=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    place = tmp_path_factory.mktemp("wheel")
    return install(build_wheel(place), place)


@pytest.fixture
def environment(installed: tuple[Path, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """What a user's shell has, with the environment activated and a home of its own. Ends the servers that were started in it."""
    venv, _ = installed
    ours = {"TALLYFLOW_HOME": str(tmp_path / "home"), "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "160"}
    made = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TALLYFLOW_", "VIRTUAL_ENV"))} | ours
    yield made
    run(["tallyflow", "down"], made, tmp_path)


def test_the_quickstart_works_from_the_wheel(installed: tuple[Path, str], environment: dict[str, str], tmp_path: Path) -> None:
    program("curl", package="curl")
    assert len(installed[1].splitlines()) <= MOST_INSTALL_LINES, installed[1]
    place = tmp_path / "user"
    place.mkdir()
    known = [("tallyflow up", []), *steps()]
    # One shell, because `eval` and `export` are for the commands behind them.
    lines = [line for command, _ in known for line in (command, f"echo '{_NEXT}'")]
    # A program that bash reads from a file descriptor would share it with the commands.
    (place / "session.sh").write_text("\n".join(["set -euo pipefail", "exec </dev/null", *lines]))
    ended = run(["bash", "session.sh"], environment, place)
    assert ended.returncode == 0, ended.stdout
    for (command, shown), answer in zip(known, ended.stdout.split(f"{_NEXT}\n"), strict=False):
        assert_shown(command, shown, answer)


def test_the_code_is_that_of_the_wheel(installed: tuple[Path, str], environment: dict[str, str], tmp_path: Path) -> None:
    shown = run(["python", "-c", "import pipelines; print(pipelines.__file__)"], environment, tmp_path)
    assert Path(shown.stdout.strip()).is_relative_to(installed[0])
