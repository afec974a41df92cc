"""The Dockerfile by hadolint, the compose file by the schema of Compose, and both of one piece with the rest. Nothing is built."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from pipelines.native_library import JSON_READER, KAFKA_READER

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deployment" / "image" / "Dockerfile"
COMPOSE = ROOT / "deployment" / "compose" / "compose.yaml"
PIPELINE = yaml.safe_load(COMPOSE.read_text())["services"]["pipeline"]


def linted(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The answer of a program of the extra `dev`."""
    return subprocess.run([str(Path(sys.executable).parent / program), *arguments], capture_output=True, text=True, check=False)


def compose_faults(path: Path) -> str:
    checked = linted("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))
    return "" if checked.returncode == 0 else checked.stdout + checked.stderr


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    found = linted("hadolint", str(DOCKERFILE))
    assert found.returncode == 0, found.stdout + found.stderr


def test_hadolint_finds_a_planted_fault(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        DOCKERFILE.read_text().replace("--no-cache-dir ", "", 1).replace("\nWORKDIR /opt", "\nWORKDIR opt")
    )
    assert "DL3000" in linted("hadolint", str(tmp_path / "Dockerfile")).stdout


def test_every_reader_in_c_is_built_into_the_image() -> None:
    (made,) = [step for step in DOCKERFILE.read_text().split("\nRUN ") if "tallyflow prepare" in step]
    assert made.index("--yes gcc") < made.index("tallyflow prepare") < made.index("purge --yes --auto-remove gcc")
    assert all(f"/usr/local/share/tallyflow/{library.name}-*.so" in made for library in (JSON_READER, KAFKA_READER))


def test_compose_takes_the_file() -> None:
    assert compose_faults(COMPOSE) == ""


def test_compose_refuses_a_misspelt_setting(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text().replace("stop_grace_period", "stop_grace_time"))
    assert "stop_grace_time" in compose_faults(wrong)


def test_what_the_compose_file_names_is_there() -> None:
    context = COMPOSE.parent / PIPELINE["build"]["context"]
    assert (context / PIPELINE["build"]["dockerfile"]).resolve() == DOCKERFILE
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert PIPELINE["image"] == f"tallyflow:{version}"
    copied = [line.split()[1:-1] for line in DOCKERFILE.read_text().splitlines() if line.startswith("COPY ")]
    assert all((context / name).exists() for names in copied for name in names if not name.startswith("dist/"))


@pytest.mark.parametrize("variable", ["PIPELINE", "HOME"])
def test_the_paths_in_the_container_are_mounted(variable: str) -> None:
    image = dict(word.split("=") for word in DOCKERFILE.read_text().split() if word.startswith("TALLYFLOW_") and "=" in word)
    path = {**image, **PIPELINE["environment"]}[f"TALLYFLOW_{variable}"]
    assert path in [volume.split(":")[1] for volume in PIPELINE["volumes"]]


def test_compose_and_systemd_give_the_same_addresses_and_logins() -> None:
    named = [
        {line.partition("=")[0] for line in path.read_text().splitlines() if not line.startswith(("#", "TALLYFLOW_"))}
        for path in (COMPOSE.parent / "environment", ROOT / "deployment" / "environment")
    ]
    assert named[0] == named[1]
