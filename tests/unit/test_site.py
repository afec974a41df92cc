"""The site of docs/ builds without a warning: links, anchors, search and pictures. Each fault that strictness finds is planted once."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(tree: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a tree into its `site`."""
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tree / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "mkdocs.yml", made)
    for name in ("docs", "deployment/site"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    built = build(made)
    assert built.returncode == 0, built.stdout + built.stderr
    return made


def test_every_page_is_on_the_site_and_can_be_searched(tree: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    assert pages <= {path.parent.name for path in (tree / "site").glob("*/index.html")}
    index = json.loads((tree / "site" / "search" / "search_index.json").read_text())
    assert pages <= {entry["location"].partition("/")[0] for entry in index["docs"]}


def test_the_flow_is_a_picture_and_not_code(tree: Path) -> None:
    assert '<pre class="mermaid">' in (tree / "site" / "dagster-deployment" / "index.html").read_text()


def test_the_script_of_the_pictures_comes_with_the_site(tree: Path) -> None:
    """The digest is that of dist/mermaid.min.js in the npm package mermaid 11.16.0."""
    script = tree / "site" / "assets" / "javascripts" / "mermaid.min.js"
    assert hashlib.sha256(script.read_bytes()).hexdigest() == "74d7c46dabca328c2294733910a8aa1ed0c37451776e8d5295da38a2b758fb9b"
    asked = '<script src="../assets/javascripts/mermaid.min.js">'
    pages = {path.parent.name: path.read_text() for path in (tree / "site").glob("*/index.html")}
    drawn = {name for name, text in pages.items() if '<pre class="mermaid">' in text}
    assert "how-it-works" in drawn
    assert {name for name, text in pages.items() if asked in text} == drawn


def test_links_that_leave_the_pages_are_text(tree: Path) -> None:
    page = (tree / "site" / "index.html").read_text()
    assert "CONTRIBUTING" in page
    assert 'href="../' not in page


@pytest.mark.parametrize("link", ["[a](nowhere.md)", "[a](quickstart.md#nowhere)"])
def test_a_dead_link_fails_the_build(tree: Path, tmp_path: Path, link: str) -> None:
    copy = shutil.copytree(tree, tmp_path / "tree", ignore=shutil.ignore_patterns("site"))
    shutil.copytree(tree / "deployment" / "site", copy / "deployment" / "site", dirs_exist_ok=True)
    for page in (copy / "docs").glob("*.md"):
        if page.name not in ("quickstart.md", "README.md"):
            page.unlink()
    (copy / "docs" / "README.md").write_text(f"# Index\n\n{link}\n")
    (copy / "docs" / "quickstart.md").write_text("# Quickstart\n")
    built = build(copy)
    assert built.returncode != 0
    assert "nowhere" in built.stdout + built.stderr
