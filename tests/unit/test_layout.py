"""The directions of the house: who may import whom, what no module may do. Read from the sources, nothing is imported."""

import ast
import builtins
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

from support.each import for_each
from support.sources import tree_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tallyflow", "pipelines", "resources", "dagster_project", "sql", "bench")
OWN = ("tallyflow", "pipelines", "resources", "dagster_project", "sql")

ROOMS = (
    *("types", "error_classes", "expressions", "functions", "protocol", "key_store", "lookups", "config", "connectors", "rollups"),
    *("control", "engine"),
    *("ingest", "process", "sink", "runner", "maintenance", "edits", "dead_letters", "proof", "preview", "lint", "init", "dashboard"),
    *("demo", "cli"),
)
"""Ground floor first: a room of `pipelines` imports only rooms before it, and the modules that stand beside the rooms."""

PURE_ROOMS = ("types", "error_classes", "expressions", "protocol", "key_store", "lookups")
"""Rooms that touch nothing outside: they work on tables, on files of their own, and on a `ledger.Log` that they are given."""

PURE_STEPS = (
    *("ingest.writer", "process.dedup", "process.dead_letter_rows", "process.rejections"),
    *("process.steps", "process.arrivals", "process.join"),
    *("process.fingerprints", "process.rejection_limit", "process.watermarks", "process.isolation", "sink.chunks", "sink.ledger_table"),
)
"""What the legs apply to tables: functions that open nothing. DuckDB engines are handed in."""

PURE_DECISIONS = (
    "control.job_state",
    "dead_letters.triage",
    "proof.audit.account",
    "proof.checks.evaluate",
    "proof.report",
)
"""Modules that decide, from facts that they are given."""

COMPOSITION_ROOTS = {
    "pipelines.cli.app",
    "pipelines.cli.dagster",
    "pipelines.demo.demo",
}

DRIVERS = {"confluent_kafka", "nats", "clickhouse_connect", "chdb", "psycopg"}
DRIVER_EXCEPTIONS = {
    ("pipelines.demo.produce", "confluent_kafka"): "a producer of sample records: the only writer to Kafka, and no part of the data path",
    ("pipelines.proof.readers.kafka", "confluent_kafka"): "reads Kafka with a client of its own, or it would repeat the data path's faults",
    ("pipelines.proof.readers.table", "clickhouse_connect"): "reads the table with a client of its own, for the same reason",
}

SPARK_EXCEPTIONS = {
    "pipelines.functions.spark_child": "a program of its own: the host of functions over DataFrames, with its session",
    "pipelines.functions.spark_daemon": "Spark's own daemon, with what UDFs need imported",
    "pipelines.functions.spark_rows": "part of that program",
    "pipelines.runner.epochs": "starts the query of a run on the session that it is given",
    "pipelines.runner.spark_tasks": "asks that session where its tasks run, and tells it where they are to",
    "pipelines.runner.runner": "type of the session that it has built",
    "pipelines.runner.spark_engine": "opens the session of a run, and asks how many slots it has",
    "pipelines.runner.task": "asks Spark for the number of its task",
    "pipelines.runner.worker_daemon": "Spark's own daemon, with our modules imported",
    "pipelines.spark_classes": "names the archive for the jars of this Spark",
}


FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_CALLS = {"yaml.load", "yaml.full_load", "yaml.unsafe_load", "os.system", "os.popen"}
FORBIDDEN_BUILTINS = {"eval", "exec", "compile"}


def sources(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*.py") if "__pycache__" not in path.parts)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for package in PACKAGES for path in sources(package)}


def tree(module: str) -> ast.Module:
    return tree_of(MODULES[module])


@cache
def imports(module: str) -> frozenset[str]:
    """Every module that `module` imports anywhere; `from a import b` counts as `a` and, where that is a module of ours, `a.b`."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} line {node.lineno}: relative import"
            assert node.module is not None
            found.add(node.module)
            found.update(name for alias in node.names if (name := f"{node.module}.{alias.name}") in MODULES)
    return frozenset(found)


def under(names: frozenset[str], *roots: str) -> list[str]:
    return sorted(name for name in names for root in roots if name == root or name.startswith(f"{root}."))


def modules(*packages: str) -> list[str]:
    return [name for name in MODULES if under(frozenset({name}), *packages)]


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(module: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call):
            yield node.lineno, dotted(node.func)


def room(module: str) -> str:
    """The room of `pipelines` that a module is in; empty beside the rooms and outside of `pipelines`."""
    package, _, rest = module.partition(".")
    first = rest.partition(".")[0]
    return first if package == "pipelines" and first in ROOMS else ""


def test_the_rooms_are_the_packages() -> None:
    assert set(ROOMS) == {path.parent.name for path in (ROOT / "pipelines").glob("*/__init__.py")}


def test_a_wheel_has_every_package_and_no_other() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    made = {path.parent for own in OWN for path in (ROOT / own).rglob("__init__.py")}
    made |= {path.parent for path in (ROOT / "sql").rglob("*.sql")}
    assert {*settings["packages"]} == {".".join(path.relative_to(ROOT).parts) for path in made}


def test_every_pure_module_is_there() -> None:
    assert {f"pipelines.{name}" for name in (*PURE_STEPS, *PURE_DECISIONS)} <= set(MODULES)


@for_each(modules("pipelines"))
def test_a_room_imports_only_the_rooms_before_it(module: str) -> None:
    own = room(module)
    seen = {room(name) for name in imports(module)} - {"", own}
    if module != "pipelines.testing":
        assert seen <= set(ROOMS[: ROOMS.index(own)] if own else ())


@for_each(modules("pipelines", "resources", "dagster_project"))
def test_only_tests_import_the_fakes(module: str) -> None:
    assert not under(imports(module), "pipelines.testing")


@for_each(modules("pipelines"))
def test_the_data_path_imports_no_dagster(module: str) -> None:
    assert not under(imports(module), "dagster", "dagster_project")


@for_each(["dagster_project.sensors.decisions", "dagster_project.numbers"])
def test_decisions_and_counts_know_no_dagster_and_no_resource(module: str) -> None:
    assert not under(imports(module), "dagster", "resources")


@for_each(modules("resources"))
def test_resources_do_not_import_the_project_that_uses_them(module: str) -> None:
    assert not under(imports(module), "dagster_project")


@for_each(modules("resources.local"))
def test_the_local_servers_know_no_dagster_and_no_data_path(module: str) -> None:
    assert not under(imports(module), "dagster")
    allowed = {
        "pipelines",
        *(f"pipelines.{name}" for name in ("errors", "home", "loopback", "private", "protocol.naming", "control.processes")),
    }
    assert set(under(imports(module), "pipelines")) <= allowed


@for_each(modules(*(f"pipelines.{name}" for name in PURE_ROOMS)))
def test_a_pure_room_imports_no_driver_and_no_spark(module: str) -> None:
    assert not under(imports(module), "pyspark", *DRIVERS)


@for_each(modules(*(f"pipelines.{name}" for name in (*PURE_STEPS, *PURE_DECISIONS))))
def test_steps_and_decisions_open_nothing(module: str) -> None:
    assert not under(imports(module), "pipelines.config", "pipelines.connectors", "pipelines.engine", "pyspark", *DRIVERS)


def test_a_program_is_compiled_and_run_without_spark_or_a_socket() -> None:
    """So that whoever previews one starts at once. Whatever it imports counts, in a process of its own."""
    code = "import sys, pipelines.process.program as p; p.kinds(); print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "duckdb" in loaded
    assert not {"pyspark", "py4j", "asyncio", *DRIVERS} & {*loaded}


@for_each(modules("pipelines.config"))
def test_the_pipeline_file_knows_nothing_of_what_runs_it(module: str) -> None:
    assert not under(imports(module), "pyspark", "duckdb", *DRIVERS)


@for_each([m for m in modules("pipelines") if m not in COMPOSITION_ROOTS])
def test_only_a_composition_root_imports_the_local_servers(module: str) -> None:
    assert not under(imports(module), "resources")


@for_each([m for m in modules("pipelines", "dagster_project") if not m.startswith("pipelines.connectors")])
def test_only_connectors_import_a_driver(module: str) -> None:
    used = {name.partition(".")[0] for name in under(imports(module), *DRIVERS)}
    assert used == {driver for exception, driver in DRIVER_EXCEPTIONS if exception == module}


@for_each([m for m in modules("pipelines") if room(m) != "engine"])
def test_spark_is_imported_where_sessions_are_made_or_passed_on(module: str) -> None:
    assert bool(under(imports(module), "pyspark")) == (module in SPARK_EXCEPTIONS)


@for_each(modules("pipelines", "dagster_project"))
def test_nothing_imports_the_program_with_a_session_of_its_own(module: str) -> None:
    assert not under(imports(module), "pipelines.functions.spark_child")


@for_each(modules("pipelines", "dagster_project"))
def test_only_the_engine_and_function_hosts_build_a_session(module: str) -> None:
    builds = any(isinstance(node, ast.Attribute) and dotted(node) == "SparkSession.builder" for node in ast.walk(tree(module)))
    assert builds == (module in ("pipelines.engine.session", "pipelines.functions.spark_child"))


@for_each(modules("pipelines", "dagster_project"))
def test_only_the_duckdb_connector_opens_an_engine(module: str) -> None:
    opens = any(name == "duckdb.connect" for _, name in calls(module))
    assert opens == (module == "pipelines.types.duckdb")


@for_each(list(MODULES))
def test_a_module_says_what_it_is_and_stays_readable(module: str) -> None:
    text = MODULES[module].read_text()
    assert len(text.splitlines()) <= 450
    if text.strip():
        assert ast.get_docstring(tree(module))


@for_each(list(MODULES))
def test_a_module_is_named_for_what_it_holds(module: str) -> None:
    assert not {"utils", "util", "helpers", "helper", "manager", "managers", "misc", "common"} & set(module.split("."))


@for_each(list(MODULES))
def test_nothing_runs_text_as_code(module: str) -> None:
    assert not under(imports(module), *FORBIDDEN_MODULES)
    for line, name in calls(module):
        assert name not in FORBIDDEN_CALLS, f"line {line}: {name}"
        assert name not in FORBIDDEN_BUILTINS, f"line {line}: {name}"
        assert name.removeprefix("builtins.") not in FORBIDDEN_BUILTINS, f"line {line}: {name}"


@for_each(list(MODULES))
def test_no_process_is_started_through_a_shell(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.keyword) and node.arg == "shell":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


def test_the_forbidden_builtins_exist() -> None:
    assert all(hasattr(builtins, name) for name in FORBIDDEN_BUILTINS)


def test_the_exceptions_are_still_there() -> None:
    listed = {*SPARK_EXCEPTIONS, *(module for module, _ in DRIVER_EXCEPTIONS), *COMPOSITION_ROOTS}
    assert listed <= set(MODULES)


def claimed(found: Distribution) -> set[str]:
    """The names at the top of what a distribution declares and holds: `packages_distributions` makes a path of each file, 1.5 s of CPU."""
    held = found.read_text("RECORD") or "\n".join(map(str, found.files or ()))
    lines = [*(found.read_text("top_level.txt") or "").split(), *held.splitlines()]
    return {re.split("[/,.]", line, maxsplit=1)[0] for line in lines}


def test_no_other_distribution_claims_our_import_names() -> None:
    for found in distributions():
        if names := claimed(found).intersection(OWN):
            assert found.name == "tallyflow", names


def test_statements_are_no_python_package() -> None:
    assert not list((ROOT / "sql").rglob("__init__.py"))
