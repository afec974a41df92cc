"""The wheel holds what a run needs, and what the pages say is there: nothing that pyproject.toml lists by hand is forgotten."""

import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.wheel import build_wheel, packaged_directories, tree_files

from pipelines.shipped import shipped


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with ZipFile(build_wheel(tmp_path_factory.mktemp("wheel"))) as wheel:
        return set(wheel.namelist())


def test_the_wheel_has_every_file_of_its_packages_and_no_other(members: set[str]) -> None:
    code = {name for name in members if "dist-info/" not in name and ".data/" not in name}
    assert code == {path for directory in packaged_directories() for path in tree_files(directory)}


def test_the_wheel_has_the_examples_and_the_pages(members: set[str]) -> None:
    kept = {name.partition(".data/data/share/tallyflow/")[2] for name in members if ".data/" in name}
    pages = {path for path in tree_files("docs") if path.endswith(".md")}
    assert kept == {*tree_files("examples"), *pages}
    assert {"examples/clickstream/pipeline.yaml", "docs/quickstart.md"} <= kept


def test_a_checkout_uses_its_own_pages(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    assert shipped("docs", tmp_path) == tmp_path / "docs"
    assert (shipped("docs") / "quickstart.md").is_file()


def test_installed_code_takes_no_directory_of_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, site_packages = tmp_path / "environment", tmp_path / "site-packages"
    default = sysconfig.get_default_scheme()
    monkeypatch.setattr(sysconfig, "get_path", lambda _, scheme: str(environment if scheme == default else sys.prefix))
    (site_packages / "docs").mkdir(parents=True)
    (environment / "share" / "tallyflow" / "docs").mkdir(parents=True)
    assert shipped("docs", site_packages) == environment / "share" / "tallyflow" / "docs"
