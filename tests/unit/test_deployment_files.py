"""The files of deployment/ as an administrator copies them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

FILES = Path(__file__).parents[2] / "deployment"
UNITS = sorted(FILES.glob("*.service"))
MOST_EXPOSED = 4.0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_hardened(unit: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    answer = subprocess.run([analyze, "security", "--offline=true", "--no-pager", str(unit)], capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", answer.stdout)
    assert found, answer.stdout + answer.stderr
    assert float(found[1]) <= MOST_EXPOSED, answer.stdout


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
