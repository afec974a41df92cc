"""A real Chromium, and what a person does on Dagster's pages: opens, reads, clicks, types, looks.

Elements are found by the words that a person sees; Dagster's class names change with every release.
"""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    StaleElementReferenceException,
    TimeoutException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from support.packages import program

PATIENCE_SECONDS = 180.0
"""For whatever is awaited: it costs time only when it does not come."""


def browser() -> tuple[str, str]:
    """Chromium and its driver."""
    return program("chromium", "chromium-browser", package="chromium"), program("chromedriver", package="chromium-driver")


class Page:
    """One window on the web server at `url`. Screenshots go to `pictures`, if that is given. `arguments` are Chromium's own."""

    def __init__(self, url: str, pictures: Path | None, *arguments: str) -> None:
        chromium, driver = browser()
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        # No sandbox: CI is root in a container, and the only pages are our own.
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--window-size=1500,950",
            "--hide-scrollbars",
            *arguments,
        ):
            options.add_argument(argument)
        self._url, self._pictures = url.rstrip("/"), pictures
        self.driver = webdriver.Chrome(options=options, service=Service(driver))

    def close(self) -> None:
        self.driver.quit()

    def open(self, *path: str, **parameters: str) -> None:
        """Opens the page at a path of plain words."""
        query = "&".join(f"{name}={quote(value)}" for name, value in parameters.items())
        self.driver.get("/".join([self._url, *(quote(part) for part in path)]) + (f"?{query}" if query else ""))

    @property
    def text(self) -> str:
        """All words that the page shows."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Until `condition` gives something true."""

        def holds(_: object) -> bool:
            try:
                return bool(condition())
            except StaleElementReferenceException:
                return False

        try:
            WebDriverWait(self.driver, PATIENCE_SECONDS).until(holds)
        except TimeoutException:
            pytest.fail(f"{what} did not come; the page shows: {self.text}")

    def wait_for(self, *words: str) -> None:
        """Until the page shows all of these."""
        self.wait(lambda: all(one in self.text for one in words), f"the words {words}")

    def click(self, words: str) -> None:
        """Clicks the button or link that says exactly this, as soon as it can be clicked."""

        def clicked() -> bool:
            for found in self._clickable(words):
                try:
                    found.click()
                    return True
                except (ElementClickInterceptedException, ElementNotInteractableException):
                    continue
            return False

        self.wait(clicked, f"a button or link {words!r}")

    def _clickable(self, words: str) -> list[WebElement]:
        found = self.driver.find_elements(By.XPATH, f"//*[self::button or self::a][normalize-space(.)='{words}']")
        return [one for one in found if one.is_displayed() and one.is_enabled() and one.get_attribute("aria-disabled") != "true"]

    def write_config(self, text: str) -> None:
        """Replaces what stands in the launchpad's editor, once that is there."""
        self.wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, ".CodeMirror"), "the editor")
        script = "document.querySelector('.CodeMirror').CodeMirror.setValue(arguments[0])"
        self.wait(lambda: self.driver.execute_script(f"{script}; return true", text), "an editor that takes text")

    def picture(self, name: str) -> None:
        """A screenshot for the docs."""
        if self._pictures is not None:
            self._pictures.mkdir(parents=True, exist_ok=True)
            assert self.driver.save_screenshot(str(self._pictures / f"{name}.png"))
