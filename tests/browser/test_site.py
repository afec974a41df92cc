"""The site of docs/ in a Chromium that reaches no host but its own: the pictures are drawn, and nothing is asked of another."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from selenium.webdriver.common.by import By
from support.browser_page import Page, browser

ROOT = Path(__file__).parents[2]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    browser()
    made = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(made)))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(made))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _drawn(page: Page) -> bool:
    """Whether a picture has a size: the theme puts each into a closed shadow root, and no more of it can be seen."""
    return any(one.size["height"] > 50 for one in page.driver.find_elements(By.CSS_SELECTOR, "div.mermaid"))


def test_pictures_are_drawn_without_a_network(site: str) -> None:
    with_picture = [one.stem for one in sorted((ROOT / "docs").glob("*.md")) if "```mermaid" in one.read_text()]
    assert "how-it-works" in with_picture
    page = Page(site, None, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    try:
        for name in with_picture:
            page.open(name, "")
            page.wait(lambda: _drawn(page), f"the picture of {name}")
            loaded = page.driver.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
            assert f"{site}/assets/javascripts/mermaid.min.js" in loaded
            assert [one for one in loaded if not one.startswith(site)] == []
    finally:
        page.close()
