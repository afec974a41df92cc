"""What the documents claim and a program can check: commands, options, links, halt messages, metrics, failpoints, tests."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import typer
from support.failpoints import failpoints
from support.sources import tree_of

from pipelines import errors
from pipelines.cli.app import app
from pipelines.config import parse, unsupported
from pipelines.dead_letters.triage import REMEDIES
from pipelines.error_classes import table
from pipelines.errors import HaltError
from pipelines.expressions.evaluate import EXPRESSION_ERROR, NOT_FINITE
from pipelines.functions.spec import CODES
from pipelines.process.isolation import INTERNAL_ERROR

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
GENERATED = {"errors.md", "expr-lang.md", "functions.md", "lint.md", "pipeline-file.md", "types.md"}
HALT_PAGES = [path for path in PAGES if path.name.startswith("halts")]
LONGEST_PAGE = 250
LONGEST_LINE = 200
_TOP: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
COMMANDS = {
    " ".join(path): command
    for name, top in _TOP.items()
    for path, command in ([((name, sub), one) for sub, one in top.commands.items()] if hasattr(top, "commands") else [((name,), top)])
}
"""By all their words: `dlq list`."""
HALT_CLASSES = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HaltError)}
GENERIC_LETTERS = 12


def identity(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """The text below a heading of level 2, up to the next one."""
    return re.split(r"^## ", page.split(f"\n## {heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def prose(page: str) -> str:
    """The page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {"".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_") for heading in headings}


def local_links(path: Path) -> Iterator[tuple[Path, str]]:
    """(file, anchor or nothing) of each link of a page that stays in the repository."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text(encoding="utf-8"))):
        if not target.startswith("https://"):
            name, _, anchor = target.partition("#")
            yield (path.parent / name).resolve() if name else path, anchor


@pytest.mark.parametrize("path", PAGES, ids=identity)
def test_links_resolve(path: Path) -> None:
    for target, anchor in local_links(path):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), f"{target}#{anchor}"


def test_every_page_is_listed_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {target for target, _ in local_links(index)}
    assert {path for path in PAGES if path.parent == index.parent} - {index} <= listed
    assert index in {target for target, _ in local_links(ROOT / "README.md")}


@pytest.mark.parametrize("path", [path for path in PAGES if path.parent.name == "docs"], ids=identity)
def test_pages_are_short_enough_to_read(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert path.name in GENERATED or len(page.splitlines()) <= LONGEST_PAGE
    lines = [line for line in prose(page).splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize("path", PAGES, ids=identity)
def test_code_that_a_page_names_exists(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    for name in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", page):
        assert (ROOT / name).exists() or (ROOT / "pipelines" / name).exists(), name
    for name in re.findall(r"`((?:pipelines|dagster_project)\.[A-Za-z_.]+)[`(]", page):
        resolve_name(name)


def test_docs_that_the_code_names_exist() -> None:
    """Messages, docstrings, units and pages of Dagster send readers to a page, or to a section of it."""
    named = re.compile(r"docs/([a-z-]+\.md)(?:#([a-z0-9-]+))?")
    places = ("pipelines", "dagster_project", "resources", "bench", "deployment", "examples", "sql", "tests/support")
    kinds = {"", ".py", ".service", ".conf", ".yaml", ".sql", ".toml"}
    files = [path for place in places for path in (ROOT / place).rglob("*") if path.suffix in kinds and path.is_file()]
    found = {match for path in files for match in named.findall(path.read_text(encoding="utf-8"))}
    assert ("halts.md", "") in found
    for name, anchor in found:
        page = ROOT / "docs" / name
        assert page.exists(), name
        assert not anchor or anchor in anchors(page.read_text(encoding="utf-8")), f"{name}#{anchor}"


def test_readme_has_exactly_three_set_up_commands() -> None:
    blocks = re.findall(r"```\n(.*?)```", section(text("README.md"), "Set up"), re.DOTALL)
    assert [block.split("\n") for block in blocks] == [["make demo", "make test", "make dagster", ""]]


def test_the_pipeline_file_of_the_readme_can_run() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", text("README.md"), re.DOTALL)
    config = parse(example, name="README", environment={"CLICKHOUSE_PASSWORD": "secret"})
    assert unsupported(config) == []


def documented_commands(page: str) -> Iterator[tuple[str, set[str]]]:
    """(command, its options) of every `tallyflow ...` on a page; `up | down` names two, `dlq list | show` as well."""
    groups = "|".join(name for name, top in _TOP.items() if hasattr(top, "commands"))
    for group, names, rest in re.findall(rf"\btallyflow ((?:(?:{groups}) )?)((?:[a-z]+ \| )*[a-z]+(?:-[a-z]+)?)\b([^`\n]*)", page):
        for name in (group + name for name in names.split(" | ")):
            yield name, set(re.findall(r"--[a-z-]+", rest))


@pytest.mark.parametrize("path", PAGES, ids=identity)
def test_documented_commands_and_options_exist(path: Path) -> None:
    for name, options in documented_commands(path.read_text(encoding="utf-8")):
        assert name in COMMANDS
        assert options <= {option for parameter in COMMANDS[name].params for option in parameter.opts}, name


def test_every_command_is_listed() -> None:
    assert set(COMMANDS) == {name for name, _ in documented_commands(text("docs/commands.md"))}


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    for path in PAGES:
        assert set(re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)) <= targets, path.name


def rejection_codes() -> set[str]:
    """The code of every rejection that a stage notes: the second argument of `note` and `note_each`, and of a fault of a conversion."""
    calls = [node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [(call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", ""), call.args) for call in calls]
    codes = [arguments[1] for name, arguments in named if name in ("note", "note_each", "Fault", "_fault") and len(arguments) > 1]
    # A fault of a pipeline file has a sentence there.
    return {str(code.value) for code in codes if isinstance(code, ast.Constant) and re.fullmatch("[a-z_]+", str(code.value))}


def test_every_rejection_has_its_remedy_in_code_and_documents() -> None:
    table = section(text("docs/dead-letter-codes.md"), "Codes")
    rows = re.findall(r"^\| `([a-z_]+)` \| ([^|]+) \|$", table, re.MULTILINE)
    assert rejection_codes() | {INTERNAL_ERROR, EXPRESSION_ERROR, NOT_FINITE, *CODES} == set(REMEDIES)
    assert dict(rows) == REMEDIES


def documented_halts() -> list[str]:
    """The quoted parts of messages: what stands in backticks before the colon of each list item."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in HALT_PAGES)
    items = re.findall(r"^- ((?:(?!\n- ).)*?`): ", pages, re.MULTILINE | re.DOTALL)
    return [part for item in items for part in re.findall(r"`([^`]+)`", item) if len(part) > 5]


def literal(node: ast.expr) -> str:
    """The constant text of a string expression; a line break stands where a value goes in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "\n" for part in node.values)
    return ""


def trees() -> Iterator[ast.Module]:
    for path in (ROOT / "pipelines").rglob("*.py"):
        yield tree_of(path)


def halt_messages() -> set[str]:
    """The constant text of the message of every halt that the code makes."""
    calls = (node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return {literal(call.args[0]) for call in calls if call.func.id in HALT_CLASSES and call.args}  # type: ignore[attr-defined]


def test_documented_halt_messages_are_in_the_code() -> None:
    strings = {literal(node) for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr)}
    strings |= {text for row in table() for text in (row.meaning, row.remedy)}
    assert [part for part in documented_halts() if not any(part in string for string in strings)] == []


def test_every_halt_message_is_documented() -> None:
    """A message that is made of values alone, such as a driver's own words, needs no entry."""
    known = documented_halts()
    telling = {message for message in halt_messages() if sum(map(str.isalpha, message)) >= GENERIC_LETTERS}
    missing = [message for message in telling if not any(part in message for part in known)]
    assert missing == [], "say in one of docs/halts*.md what these mean and what to do"


def test_every_halt_class_has_a_section() -> None:
    headings = [name for page in HALT_PAGES for name in re.findall(r"^## .*\(`(\w+)`\)$", page.read_text(encoding="utf-8"), re.MULTILINE)]
    assert sorted(headings) == sorted(HALT_CLASSES)


def test_metrics_table_names_the_metrics() -> None:
    made = re.findall(r'(Counter|Gauge)MetricFamily\("(tallyflow_\w+)"', text("pipelines/runner/status.py"))
    names = {f"{name}_total" if kind == "Counter" else name for kind, name in made}
    assert set(re.findall(r"^\| `(tallyflow_\w+)` ", text("docs/monitoring.md"), re.MULTILINE)) == names


def test_every_failpoint_says_what_the_next_start_does() -> None:
    points = section(text("docs/crash-recovery.md"), "Kill points")
    rows = re.findall(r"^\| (`[^|]+`) \| [^|]+ \| [^|]+ \|$", points, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`([a-z.-]+)`", row)) == failpoints()


def test_tests_named_in_the_failure_matrix_exist() -> None:
    matrix = section(text("CONTRIBUTING.md"), "Failure matrix")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert set(re.findall(r"`(test_\w+)`", matrix)) <= set(re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE))
    assert all((ROOT / path).exists() for path in re.findall(r"`(tests/[^`]+)`", matrix))


def test_every_crash_test_is_run_by_make_crash() -> None:
    paths = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    marked = {path for path in paths if re.search(r"pytest\.mark\.crash\b", (ROOT / path).read_text(encoding="utf-8"))}
    assert {path for path in paths if path.parts[1] == "crash"} <= marked
    run = subprocess.run(["make", "--dry-run", "crash"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert [path for path in marked if path.parts[1] != "crash" and str(path) not in run] == []
