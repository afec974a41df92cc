"""docs/commands-*.md: the commands of a family with arguments, options, examples. `python -m pipelines.cli.option_pages` writes them.

What a page says is what `--help` says: it is read from the commands themselves.
"""

import re
import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import typer

from pipelines.cli.app import app
from pipelines.cli.examples import EXAMPLES

TARGET = Path("docs")
FAMILIES = {
    "check": ("Check and run", "validate doctor schema run logs apply reload stop delete prepare"),
    "try": ("Try before it runs", "init preview test diff lint ddl docs types"),
    "watch": ("Watch and prove", "status tap tally audit verify dashboard"),
    "dead-letters": ("Dead letters", "dlq"),
    "state": ("Key stores and plans", "state why compact rebucket rebuild-state reset-clock plan"),
    "local": ("Local servers, demo, Dagster", "up down env demo produce dagster"),
}
"""The families, in the order of docs/commands.md: the end of the page's name, its title, and the first words of its commands."""
_TYPE = re.compile(r"^list\[|\]$| range$")
"""The parts of a type's name that say more than the type of one value."""


def render(family: str) -> str:
    """Render the page of a family as Markdown."""
    title, words = FAMILIES[family]
    source = "This page is generated from the commands, as their `--help` is. [All commands](commands.md)."
    head = f"# Options: {title[0].lower()}{title[1:]}\n\n{source}\n"
    group: Any = typer.main.get_command(app)
    commands = (one for word in words.split() for one in _commands(word, group.commands[word]))
    return "\n".join([head, *(_section(name, command) for name, command in commands)])


def page_name(family: str) -> str:
    return f"commands-{family}.md"


def _commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield a command, or all of a group, by all its words."""
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            yield from _commands(f"{words} {name}", one)
    else:
        yield words, command


def _section(words: str, command: Any) -> str:
    shown = [param for param in command.params if param.name != "help" and not getattr(param, "hidden", False)]
    arguments = [param for param in shown if _is_argument(param)]
    usage = " ".join([f"tallyflow {words}", *(_usage(argument) for argument in arguments)])
    examples = EXAMPLES.get(words, ())
    rows = [_row(param) for param in (*arguments, *(param for param in shown if param not in arguments))]
    table = ["| Argument or option | Default | |", "|---|---|---|", *rows, ""] if rows else []
    code = ["```", *(examples or (usage,)), "```", ""]
    return "\n".join([f"## {usage}", "", cleandoc(command.help or ""), "", *code, *table])


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _usage(argument: Any) -> str:
    name = (argument.name or "").upper()
    many = " ..." if argument.nargs == -1 else ""
    return f"{name}{many}" if argument.required else f"[{name}{many}]"


def _row(param: Any) -> str:
    """Return the line of an argument or an option: how it is given, its default, what it means."""
    given = _usage(param) if _is_argument(param) else _given(param)
    default = param.default if isinstance(param.default, str | int | float) and not isinstance(param.default, bool) else ""
    meaning = " ".join((getattr(param, "help", None) or "").split())
    return f"| `{_cell(given)}` | {f'`{default}`' if default != '' else ''} | {_cell(meaning)} |"


def _given(option: Any) -> str:
    names = ", ".join(option.opts) + (f" / {', '.join(option.secondary_opts)}" if option.secondary_opts else "")
    if option.is_flag:
        return names
    choices = option.type_descriptor.choices
    value = option.metavar or "|".join(map(str, choices or ())) or _TYPE.sub("", option.bare_type()).upper()
    return f"{names} {'TEXT' if value == 'STR' else value}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the pages to docs/ under the working directory."""
    for family in FAMILIES:
        path = TARGET / page_name(family)
        path.write_text(render(family), encoding="utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
