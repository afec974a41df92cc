"""What the browser tests share: one Dagster per test session, and a window on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser_page import Page, browser
from support.dagster_deployment import Deployment


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", type=Path, help="directory that takes the pictures of the docs")


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    browser()
    made = Deployment(tmp_path_factory.mktemp("home"))
    yield made
    made.end()


@pytest.fixture
def page(deployment: Deployment, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Page]:
    """A window; what it shows at the end, and the runs that have not succeeded, are printed, which pytest shows of a test that failed."""
    window = Page(deployment.url, request.config.getoption("--screenshots") or tmp_path / "pictures")
    yield window
    print("the page showed:", window.text, "runs that failed or have not ended:", *deployment.troubles(), sep="\n")
    window.close()
