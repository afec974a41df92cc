"""The files of deployment/ as an administrator copies them."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from pipelines.cli.app import app

FILES = Path(__file__).parents[2] / "deployment"
UNITS = sorted(FILES.glob("*.service"))
PIPELINE = FILES / "systemd" / "tallyflow@.service"
MOST_EXPOSED = 4.0


@pytest.mark.parametrize("unit", [*UNITS, PIPELINE], ids=lambda unit: unit.stem)
def test_a_unit_is_hardened(unit: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    answer = subprocess.run([analyze, "security", "--offline=true", "--no-pager", str(unit)], capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", answer.stdout)
    assert found, answer.stdout + answer.stderr
    assert float(found[1]) <= MOST_EXPOSED, answer.stdout


def pipeline_service() -> configparser.SectionProxy:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(PIPELINE)
    return unit["Service"]


@pytest.mark.parametrize(("fault", "message"), [("", ""), ("KillMode=mixed", "kill mode")])
def test_systemd_understands_the_unit_of_a_pipeline(tmp_path: Path, fault: str, message: str) -> None:
    """Of a command systemd asks that it is there."""
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    text = PIPELINE.read_text().replace("/opt/tallyflow/.venv/bin/tallyflow", sys.executable)
    unit = tmp_path / "tallyflow@orders.service"
    unit.write_text(text.replace(fault, f"{fault}?") if fault else text)
    answer = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    about_it = [line for line in (answer.stdout + answer.stderr).splitlines() if unit.name in line]
    assert bool(about_it) == bool(message)
    assert message in "".join(about_it)


def test_a_pipeline_runs_with_options_that_the_command_has() -> None:
    program, command, file, *options = shlex.split(pipeline_service()["ExecStart"])
    assert (Path(program).name, file) == ("tallyflow", "/etc/tallyflow/pipelines/%i.yaml")
    run = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    taken = run.make_context(command, [str(FILES / "kubernetes" / "pipeline.yaml"), *options])
    assert taken.params["log_format"] == "text"


def test_a_pipeline_that_fails_starts_again_a_bad_file_does_not() -> None:
    service = pipeline_service()
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert (service["User"], service["EnvironmentFile"]) == ("tallyflow", "/etc/tallyflow/environment")
    assert service["KillMode"] == "mixed", "Spark's processes would end under the batches in work"
    assert int(service["TimeoutStopSec"]) >= 60


def test_only_the_code_server_gets_what_leads_to_the_records() -> None:
    given = {unit.stem: re.findall(r"^EnvironmentFile=(\S+)$", unit.read_text(), re.MULTILINE) for unit in UNITS}
    assert len(given) == 4
    assert {unit for unit, files in given.items() if "/etc/tallyflow/environment" in files} == {"tallyflow-code"}
    assert all("/etc/tallyflow/dagster" in files for files in given.values())
    named = {line.partition("=")[0] for line in (FILES / "dagster").read_text().splitlines() if not line.startswith("#")}
    assert named == {"DAGSTER_HOME", "DAGSTER_POSTGRES_URL"}


def test_pipelines_outlive_their_unit_and_its_temporary_files() -> None:
    settings = (FILES / "tallyflow-code.service").read_text().splitlines()
    assert "KillMode=process" in settings
    assert "PrivateTmp=yes" not in settings, "it is deleted when the unit stops"


def test_every_file_that_is_installed_has_a_hash() -> None:
    for name in ("constraints.txt", "constraints-build.txt"):
        blocks = re.split(r"\n(?! )", (FILES.parent / name).read_text().strip())
        assert blocks and all("--hash=sha256:" in block for block in blocks)
        assert not re.search(r"https?://|--index-url|--find-links", "\n".join(blocks)), "a registry's name"
