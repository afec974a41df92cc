"""The demo: real servers, the records of an example, the real command over them, and a check of every position against the table.

A composition root like cli/: it may know the local servers. It does what a user would do: the pipeline runs as `tallyflow run
examples/NAME/pipeline.yaml --until-caught-up --accept` in a process of its own. Every run has a topic, a pipeline and a table of its own.
"""

import os
import sys
from datetime import UTC, datetime
from secrets import token_hex

from rich.console import Console
from rich.markup import escape

from pipelines.config import load
from pipelines.demo.acts import Acts, headline
from pipelines.demo.events import Recipe
from pipelines.demo.examples import example_file, load_example, variables
from pipelines.home import default_home
from resources.local.errors import LocalServerError
from resources.local.stack import STATE_VARIABLE, Addresses, LocalStack

_PLAIN_WIDTH = 120


def demo(name: str, recipe: Recipe, count: int, on_cluster: bool = False, with_kill: bool = False) -> int:
    """Run the demo of an example, print its progress on standard output and return the exit code.

    `on_cluster`: on a Spark cluster of a master and two workers, which are processes of their own. `with_kill`: the first runner is killed
    right after ClickHouse has stored a chunk, and a second one continues.

    Exit code 0: every produced record became what the example's own account says, exactly once, with the right contents; the tally has no
    residue and the runner exited with 0. Exit code 1: anything else, such as servers that do not start. The servers keep running.
    Raises TallyflowError when a system fails the demo itself, or there is no such example.
    """
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    file, example = example_file(name), load_example(name)
    stack = LocalStack(default_home())
    try:
        addresses = _start_servers(console, stack, on_cluster)
        run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}"
        environment = {**os.environ, **addresses.environment(), **variables(name, run), "TALLYFLOW_HOME": str(stack.home)}
        if on_cluster:
            environment[STATE_VARIABLE] = stack.state_uri
        acts = Acts(console, file, load(file, environment), environment, addresses.spark_master if on_cluster else "")
        is_exact = acts.play(example, recipe, count, with_kill)
        console.print("The servers keep running with these records; `tallyflow down` stops them.")
    except LocalServerError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    return 0 if is_exact else 1


def _start_servers(console: Console, stack: LocalStack, with_spark: bool) -> Addresses:
    """Start the servers that do not run.

    Progress is one changing line on a terminal, and a line per change elsewhere.
    """
    headline(console, 1, f"Starting Kafka, NATS{',' if with_spark else ' and'} ClickHouse{' and a Spark cluster' if with_spark else ''}")
    doing: dict[str, str] = {}
    with console.status("looking for running servers") as line:

        def show(server: str, text: str) -> None:
            # Counting texts differ in their numbers only; a log needs the first of them.
            is_new = doing.get(server, "").split(":")[0] != text.split(":")[0]
            doing[server] = text
            line.update(escape("; ".join(f"{name}: {now}" for name, now in sorted(doing.items()))))
            if is_new and not console.is_terminal:
                console.print(f"   {server}: {text}", markup=False, highlight=False, soft_wrap=True)

        addresses = stack.up(show, with_spark=with_spark)
    console.print(
        f"   Kafka {addresses.kafka_bootstrap}, NATS {addresses.nats_address}, ClickHouse http://{addresses.clickhouse_host}:{addresses.clickhouse_port}"
    )
    return addresses
