"""What a person does in Dagster on the first day: looks, starts, checks, breaks the table, sees it, mends it, reprocesses."""

import json

from support.browser_page import Page
from support.dagster_deployment import Deployment
from support.pipeline_case import wait_until

LOCATION = "dagster_project.definitions"
TABLE = ("assets", "orders_demo", "clickhouse_table")
ORDERS = "examples/orders/pipeline.yaml"


def launch(page: Page, job: str, config: str) -> None:
    """Starts a job from its launchpad and waits for its run's end."""
    page.open("locations", LOCATION, "jobs", job, "playground")
    page.write_config(f"ops:\n  {job}_op:\n    config:\n      pipeline: orders-demo\n{config}")
    page.wait_for("No errors")
    page.picture(job)
    page.click("Launch Run")
    page.wait(lambda: "/runs/" in page.driver.current_url and "Success" in page.text, f"a run of {job} that succeeds")


def check_page(page: Page, *expected: str) -> None:
    """Executes all checks of the table; waits until each has an answer, that of the dead letters with the `expected` words.

    The page shows the answers of the run before until it has heard of this one: `expected` must not be in those.
    """
    page.open(*TABLE, view="checks", checkDetail="dead_letters")
    page.click("Execute all")
    page.wait_for("Launched run")

    def is_answered() -> bool:
        text = page.text
        return all(words in text for words in expected) and "In Progress" not in text and "Not Evaluated" not in text

    page.wait(is_answered, f"an answer of every check, with the words {expected}")


def is_caught_up(deployment: Deployment) -> bool:
    """Nothing waits before any leg, and ingest has reached the topic's end."""
    status, tally = (deployment.tallyflow(command, ORDERS, "--json") for command in ("status", "tally"))
    if status.returncode or tally.returncode:
        return False
    return not sum(json.loads(status.stdout)["lag"].values()) and not any(leg["waiting"] for leg in json.loads(tally.stdout)["legs"])


def test_a_first_day(deployment: Deployment, page: Page) -> None:
    page.open("locations", LOCATION, "asset-groups", "orders_demo")
    page.wait_for("raw_stream", "dedup_store", "out_stream", "clickhouse_table", "dead_letters", "verification", "published")
    page.picture("graph")

    launch(page, "start_pipeline", "")
    wait_until(lambda: is_caught_up(deployment), "a table that holds what Kafka holds")
    rows = int(deployment.ask("SELECT count() FROM orders"))
    assert rows > 15_000

    # Within a minute a sensor tells Dagster that the table is there; checks made before that would count as not evaluated.
    page.open(*TABLE, view="overview")
    page.wait(lambda: "Latest materialization" in page.text and "Never materialized" not in page.text, "a materialization of the table")
    page.open(*TABLE, view="overview")
    page.wait_for("Row count")

    check_page(page, "records are open dead letters (0.")
    assert "Failed" not in page.text
    page.picture("checks")

    deployment.ask("ALTER TABLE orders ADD CONSTRAINT no_snacks CHECK price > 8")
    assert deployment.tallyflow("produce", ORDERS, "--count", "3000", "--seed", "2").returncode == 0
    wait_until(lambda: is_caught_up(deployment), "judged orders")
    check_page(page, "Failed", "records are open dead letters (1.")
    page.picture("checks_red")

    deployment.ask("ALTER TABLE orders DROP CONSTRAINT no_snacks")
    launch(page, "reprocess_dead_letters", "      everything: true\n")
    wait_until(lambda: is_caught_up(deployment), "letters that entered again")
    check_page(page, "records are open dead letters (0.")
    assert "Failed" not in page.text
    assert "Unsynced" not in page.text
    page.picture("healed")
    assert int(deployment.ask("SELECT count() FROM orders")) == rows + 3000
    assert deployment.tallyflow("audit", ORDERS).returncode == 0
