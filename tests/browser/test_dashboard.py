"""The dashboard in a real Chromium: what an owner reads equals DuckDB over the records; its empty and broken states; small screens."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from support.browser_page import Page
from support.pipeline_case import PipelineCase
from support.rollup_case import RollupCase

from pipelines.config import load
from pipelines.demo.events import Recipe
from pipelines.demo.examples import WindowFigures, example_file, load_example, variables
from pipelines.demo.windows import served

RECIPE, ORDERS = Recipe(seed=4, duplicate_share=0.1, bad_share=0.01), 9000
BUTTONS = {"1h": "Last hour", "24h": "Last 24 hours", "168h": "Last 7 days"}


@contextmanager
def window(url: str, pictures: Path | None) -> Iterator[Page]:
    page = Page(url, pictures, "--lang=en")
    page.driver.set_window_size(1280, 940)
    yield page
    print("the page showed:", page.text)
    assert [entry for entry in page.driver.get_log("browser") if "favicon" not in entry["message"] and "503" not in entry["message"]] == []
    page.close()


@pytest.fixture
def example(case: PipelineCase, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[tuple[Page, WindowFigures]]:
    """The page of the example's pipeline, which has run over its orders, and what DuckDB says of these."""
    file, names = str(example_file("restaurants")), variables("restaurants", case.topic[-10:])
    for name, value in case.environment(**names).items():
        monkeypatch.setenv(name, value)
    options = ("--example", "restaurants", "--count", str(ORDERS), "--seed", "4", "--duplicate-share", "0.1", "--bad-share", "0.01")
    for arguments in (("produce", file, *options), ("run", file, "--until-caught-up", "--accept")):
        ended = case.invoke(*arguments, **names)
        assert ended.exit_code == 0, ended.output
    made = load_example("restaurants")
    assert made.windows is not None
    with served(load(Path(file))) as url, window(url, request.config.getoption("--screenshots")) as page:
        yield page, made.windows(made.generator.events(RECIPE, ORDERS))


def shown(page: Page, measure: str) -> str:
    return page.driver.find_element(By.CSS_SELECTOR, f"[data-measure={measure}]").text


def euros(digits: str) -> str:
    return f"€{float(digits):,.2f}"


def is_one_of(page: Page, figures: dict[str, Any]) -> bool:
    """Whether the page shows these figures, all of which are exact: digit by digit, and the items of the top in their order."""
    items = [element.text for element in page.driver.find_elements(By.CSS_SELECTOR, "[data-measure=top_dishes] .item")]
    amounts = [element.text for element in page.driver.find_elements(By.CSS_SELECTOR, "[data-measure=top_dishes] .amount")]
    return (
        shown(page, "orders") == f"{int(figures['orders']):,}"
        and shown(page, "sales") == euros(figures["sales"])
        and shown(page, "customers") == f"{int(figures['customers']):,}"
        and shown(page, "large_order") == euros(figures["large_order"])
        and items == [one["item"] for one in figures["top_dishes"]]
        and [text.split()[0] for text in amounts] == [f"{int(one['amount']):,}" for one in figures["top_dishes"]]
    )


def test_the_three_buttons_show_what_duckdb_counts_in_kafka(example: tuple[Page, WindowFigures]) -> None:
    page, wanted = example
    page.open(window="24h", restaurant="Da Enzo")
    page.wait_for("Da Enzo", "Total sales", "Top 3 dishes")
    for restaurant in ("Da Enzo", "Rincón"):
        Select(page.driver.find_element(By.ID, "group")).select_by_visible_text(restaurant)
        for name, button in BUTTONS.items():
            page.click(button)
            page.wait(lambda: is_one_of(page, wanted[name, (restaurant,)]), f"the figures of {restaurant}, {name}")  # noqa: B023
            assert page.driver.find_element(By.TAG_NAME, "h1").text == restaurant
            pressed = page.driver.find_elements(By.CSS_SELECTOR, "#windows [aria-pressed=true]")
            assert [one.text for one in pressed] == [button]
    assert "window=168h&restaurant=Rinc%C3%B3n" in page.driver.current_url
    assert "≈" not in page.text


def test_the_bars_of_the_chart_add_up_to_the_figure(example: tuple[Page, WindowFigures]) -> None:
    page, wanted = example
    for name in BUTTONS:
        page.open(window=name, restaurant="Chez Ana")
        page.wait(lambda: is_one_of(page, wanted[name, ("Chez Ana",)]), "the figures")  # noqa: B023
        cells = page.driver.find_elements(By.CSS_SELECTOR, "#chart-table td")
        values = [cell.get_attribute("textContent") or "" for cell in cells]
        assert len(values) == len(page.driver.find_elements(By.CSS_SELECTOR, ".bar-of-chart")) in (12, 24, 28)
        assert euros(str(sum(float(value.strip("€").replace(",", "")) for value in values))) == shown(page, "sales")
    page.click("Orders")
    page.wait_for("Orders per 6 hours")


def test_the_bars_are_read_by_the_arrow_keys(example: tuple[Page, WindowFigures]) -> None:
    page, wanted = example
    page.open(window="24h", restaurant="Chez Ana")
    page.wait(lambda: is_one_of(page, wanted["24h", ("Chez Ana",)]), "the figures")
    rows = page.driver.find_elements(By.CSS_SELECTOR, "#chart-table tr")
    bars = [": ".join(cell.get_attribute("textContent") or "" for cell in row.find_elements(By.CSS_SELECTOR, "th, td")) for row in rows]
    chart, reading = page.driver.find_element(By.CSS_SELECTOR, "#chart svg"), page.driver.find_element(By.ID, "reading")
    for key, bar in (
        (Keys.ARROW_RIGHT, 0),
        (Keys.ARROW_RIGHT, 1),
        (Keys.END, -1),
        (Keys.ARROW_RIGHT, -1),
        (Keys.ARROW_LEFT, -2),
        (Keys.HOME, 0),
    ):
        chart.send_keys(key)
        assert reading.text == bars[bar]
        assert len(page.driver.find_elements(By.CSS_SELECTOR, "#chart .read")) == 1
    # Drawn again, as with new figures, the chart keeps the focus and the bar.
    page.driver.set_window_size(1000, 940)
    page.wait(lambda: page.driver.find_element(By.CSS_SELECTOR, "#chart svg") != chart, "another drawing")
    page.wait(lambda: reading.text == bars[0], "the bar that was read")
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert reading.text == bars[1]


def test_pictures_for_the_docs_and_a_small_screen(example: tuple[Page, WindowFigures]) -> None:
    page, _ = example
    page.open(window="24h", restaurant="Da Enzo")
    page.wait_for("Total sales per hour", "Most: ")
    page.picture("dashboard")
    page.open(window="168h", restaurant="Da Enzo")
    page.wait_for("Total sales per 6 hours")
    for width in (320, 390, 600, 1000):
        page.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": width, "height": 1180, "deviceScaleFactor": 1, "mobile": width < 600}
        )
        page.wait(lambda: page.driver.execute_script("return innerWidth") == width, f"a window of {width}")  # noqa: B023
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= width
        if width == 390:
            page.picture("dashboard_phone")


def test_nothing_is_loaded_from_elsewhere_or_run_from_a_row(case: PipelineCase) -> None:
    orders = RollupCase(case)
    name = "<img src=x onerror=\"document.title='taken'\">"
    row = {
        "id": 1,
        "restaurant": name,
        "dish": "<b>soup</b>",
        "customer": 1,
        "quantity": 1,
        "total": "5.00",
        "ordered_at": "2026-03-01T10:00:00Z",
    }
    case.send([json.dumps(row).encode()])
    case.warm_run()
    assert orders.rollup
    with served(load(case.file)) as url, window(url, None) as page:
        page.open()
        page.wait_for(name, "<b>soup</b>")
        assert page.driver.title.startswith(name)
        assert page.driver.find_elements(By.TAG_NAME, "img") == []
        loaded = page.driver.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
        assert len(loaded) >= 4
        assert [one for one in loaded if not one.startswith(url)] == []


def test_a_rollup_without_rows_and_a_server_away_are_said(case: PipelineCase) -> None:
    orders = RollupCase(case)
    case.warm_run()
    with served(load(case.file)) as url, window(url, None) as page:
        page.open()
        page.wait_for("Nothing to show yet", "The first figures appear within 5 minutes of the first row.")
        orders.send(500)
        case.warm_run()
        assert orders.differences() == []
        page.open(restaurant="Enzo", window="168h")
        page.wait_for("Enzo", "Portions", "Most: ")
        measures = ("orders", "sales", "customers", "customers_exact", "p95", "p90_exact")
        assert [name for name in measures if shown(page, name).startswith("≈")] == ["customers", "p95"]
        assert "≈ marks an estimate" in page.text
        case.stack.server("clickhouse").kill()
        page.click("Last hour")
        page.wait_for("The figures cannot be read", "ClickHouse did not answer", "Shown are the figures of")
        case.stack.server("clickhouse").start()
        page.click("Last 7 days")
        page.wait(lambda: "cannot be read" not in page.text, "figures without a notice")
