"""Examples for the `--help` of every command: the one table of them, each a command that parses."""

from collections.abc import Iterator

import typer
from typer.models import CommandInfo

EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": ("tallyflow init --topic clicks --yes", "tallyflow init clicks.yaml --from-file sample.ndjson --dedup-key click_id"),
    "validate": ("tallyflow validate orders.yaml", "tallyflow validate orders.yaml --connect"),
    "doctor": ("tallyflow doctor orders.yaml", "tallyflow doctor orders.yaml --json"),
    "ddl": ("tallyflow ddl orders.yaml",),
    "prepare": ("tallyflow prepare",),
    "schema": ("tallyflow schema > pipeline.schema.json",),
    "run": (
        "tallyflow run orders.yaml",
        "tallyflow run orders.yaml --until-caught-up",
        "tallyflow run orders.yaml --leg sink --log-format json",
    ),
    "logs": ("tallyflow logs orders.yaml --follow", "tallyflow logs orders.yaml --leg sink --lines 50"),
    "stop": ("tallyflow stop orders.yaml", "tallyflow stop orders.yaml --leg sink"),
    "status": ("tallyflow status orders.yaml --watch", "tallyflow status orders.yaml --json", "tallyflow status"),
    "tap": (
        "tallyflow tap orders.yaml --at out --limit 5",
        "tallyflow tap orders.yaml --at dlq --from start --json",
        "tallyflow tap orders.yaml --at raw --from start --until-now --key order-17",
    ),
    "types": ("tallyflow types", "tallyflow types string --column DateTime64"),
    "docs": ("tallyflow docs watermark", "tallyflow docs dead letter"),
    "lint": ("tallyflow lint orders.yaml", "tallyflow lint orders.yaml --fix"),
    "preview": (
        "tallyflow preview orders.yaml --input sample.ndjson",
        "tallyflow preview orders.yaml --from-topic 100 --explain 3",
        "tallyflow preview orders.yaml --from-raw 1h",
    ),
    "diff": (
        "tallyflow diff orders.yaml",
        "tallyflow diff orders.yaml --from-raw 1h",
        "tallyflow diff orders.yaml edited.yaml --from-raw 1h",
    ),
    "apply": ("tallyflow apply orders.yaml", "tallyflow apply orders.yaml --dry-run", "tallyflow apply orders.yaml --yes --no-start"),
    "reload": ("tallyflow reload orders.yaml",),
    "test": ("tallyflow test orders.yaml", "tallyflow test orders.yaml orders.tests.yaml --junit results.xml"),
    "dagster": ("tallyflow dagster",),
    "dashboard": ("tallyflow dashboard orders.yaml --port 8080",),
    "tally": ("tallyflow tally orders.yaml", "tallyflow tally orders.yaml --since 1h --json"),
    "audit": ("tallyflow audit orders.yaml",),
    "verify": ("tallyflow verify orders.yaml", "tallyflow verify orders.yaml --hour 2026-01-31T12"),
    "state": ("tallyflow state orders.yaml",),
    "why": ("tallyflow why orders.yaml order-17",),
    "compact": ("tallyflow compact orders.yaml",),
    "rebucket": ("tallyflow rebucket orders.yaml",),
    "rebuild-state": ("tallyflow rebuild-state orders.yaml",),
    "reset-clock": ("tallyflow reset-clock orders.yaml",),
    "delete": ("tallyflow delete orders.yaml --keep-table",),
    "produce": ("tallyflow produce orders.yaml --count 1000 --rate 100",),
    "demo": ("tallyflow demo", "tallyflow demo --example fraud --kill"),
    "up": ("tallyflow up", "tallyflow up --new-ports"),
    "down": ("tallyflow down", "tallyflow down kafka", "tallyflow down --purge --yes"),
    "env": ('eval "$(tallyflow env)"', "tallyflow env --json"),
    "dlq groups": ("tallyflow dlq groups orders.yaml", "tallyflow dlq groups orders.yaml --stage parse --since 1h"),
    "dlq list": ("tallyflow dlq list orders.yaml --group 0123456789ab --limit 5",),
    "dlq show": ("tallyflow dlq show orders.yaml 17.3",),
    "dlq reprocess": (
        "tallyflow dlq reprocess orders.yaml --group 0123456789ab --dry-run",
        "tallyflow dlq reprocess orders.yaml --all",
    ),
    "dlq discard": ('tallyflow dlq discard orders.yaml --stage parse --since 1h --reason "a test of the producer"',),
    "dlq export": ("tallyflow dlq export orders.yaml parsed.jsonl --stage parse",),
    "dlq import": ("tallyflow dlq import orders.yaml edited.jsonl",),
    "plan show": ("tallyflow plan show orders.yaml",),
    "plan abandon": ('tallyflow plan abandon orders.yaml --leg sink --reason "the table was dropped" --dry-run',),
}
"""The examples of each command, by all its words."""


def add_examples(app: typer.Typer) -> None:
    """Put the examples below the help of the commands of `app`."""
    for words, command in commands_of(app):
        if examples := EXAMPLES.get(words):
            command.epilog = "\n".join(["Examples:", *(f"  {line}" for line in examples)])


def commands_of(app: typer.Typer, before: str = "") -> Iterator[tuple[str, CommandInfo]]:
    """Yield every command of `app`, by all its words."""
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__.replace("_", "-") if command.callback else "")
        yield f"{before}{name}", command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from commands_of(group.typer_instance, f"{before}{group.name} ")
