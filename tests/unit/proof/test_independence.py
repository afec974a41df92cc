"""Proofs that say they share nothing with the path they check: what their modules import, directly and through others.

The walk stops at a module of EXCEPTIONS, from which only the listed names may be taken.
"""

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.sources import tree_of

ROOT = Path(__file__).resolve().parents[3]

DATA_PATH = (
    *("pipelines.ingest", "pipelines.process", "pipelines.sink", "pipelines.engine", "pipelines.runner", "pipelines.key_store"),
    *("pipelines.maintenance", "pipelines.dead_letters", "pipelines.connectors.kafka.client", "pipelines.connectors.clickhouse.client"),
    *("pipelines.connectors.sources", "pipelines.connectors.sinks", "pipelines.connectors.tables"),
    *("pipelines.lookups.snapshot", "pipelines.lookups.columns", "pipelines.lookups.storage"),
)
"""What writes and reads the records of a running pipeline."""

EXCEPTIONS = {
    "pipelines.process.program": ({"Lane", "Program"}, "how a range was processed is a fact of the ledger; it holds names, no step"),
    "pipelines.process.steps.dedup": ({"Dedup"}, "the settings of the step, read from the ledger"),
    "pipelines.process.steps": ({"Step"}, "the type of a step's settings; the statement of a step is found by its name"),
    "pipelines.process.watermarks": (
        {"IDLE_RECORDS", "PARTITIONS_OF_A_SOURCE"},
        "constants of the definition of watermarks; the reference computes its own in SQL",
    ),
    "pipelines.connectors.kafka.client": ({"map_error"}, "the class of an error, no record"),
}

PROOFS = (
    "pipelines.proof.report",
    *("pipelines.proof.readers.kafka", "pipelines.proof.readers.table"),
    *("pipelines.proof.verification.reference", "pipelines.proof.verification.steps", "pipelines.proof.verification.values"),
    "pipelines.proof.audit.account",
)

READS_WITH_THE_PATH = {
    "pipelines.proof.put_back": "computes rows by the stages that made them, and verifies them afterwards",
    "pipelines.proof.made_ranges": "compares programs, and proves nothing",
    "pipelines.proof.remakable": "looks at the table through the connectors, and proves nothing",
    "pipelines.proof.rows_anew": "computes rows by the stages that made them; a verification proves them",
    "pipelines.proof.reprocess": "replaces rows through the connectors; a verification proves them",
    "pipelines.proof.checks.run": "asks ClickHouse and Kafka through the connectors: a check is a look, no proof",
}
"""Modules of the room that claim no independence, and say so."""


@cache
def taken(module: str) -> dict[str, set[str]]:
    """By module of `pipelines` that `module` imports, the names that it takes from it; all of it is `*`."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    names: dict[str, set[str]] = {}
    for node in ast.walk(tree_of(Path(spec.origin))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.setdefault(alias.name, set()).add("*")
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                of_module = f"{node.module}.{alias.name}"
                if is_module(of_module):
                    names.setdefault(of_module, set()).add("*")
                else:
                    names.setdefault(node.module, set()).add(alias.name)
    return {name: of for name, of in names.items() if name.startswith("pipelines.")}


@cache
def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return name.startswith("pipelines.") and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


def reached(module: str) -> Iterator[tuple[str, str]]:
    """(importer, module of the data path) for all that `module` reaches outside of EXCEPTIONS."""
    seen, left = {module}, [module]
    while left:
        importer = left.pop()
        for name, of in taken(importer).items():
            allowed, _ = EXCEPTIONS.get(name, (set(), ""))
            if of <= allowed:
                continue
            if any(name == path or name.startswith(f"{path}.") for path in DATA_PATH):
                yield importer, name
            elif name not in seen:
                seen.add(name)
                left.append(name)


@pytest.mark.parametrize("module", PROOFS)
def test_a_proof_shares_nothing_with_the_path_it_checks(module: str) -> None:
    assert list(reached(module)) == []


@pytest.mark.parametrize("module", READS_WITH_THE_PATH)
def test_a_module_without_that_claim_is_seen_to_share_something(module: str) -> None:
    assert list(reached(module))


def test_the_account_of_a_join_from_outside_imports_none_of_ours() -> None:
    source = (ROOT / "tests/support/outside_join.py").read_text()
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name if isinstance(node, ast.Import) else f"{node.module}" for node in imports for alias in node.names}
    assert not {name for name in names if name.partition(".")[0] in ("pipelines", "tallyflow", "resources", "support")}
    assert {"nats", "confluent_kafka"} <= names


def test_every_exception_is_needed() -> None:
    used: dict[str, set[str]] = {}
    for importer in PROOFS:
        for name, of in taken(importer).items():
            used.setdefault(name, set()).update(of)
    assert {name: names for name, (names, _) in EXCEPTIONS.items()} == {name: used.get(name, set()) for name in EXCEPTIONS}


def test_the_audit_takes_no_stage_or_reader_of_the_data_path() -> None:
    shared = {name for _, name in reached("pipelines.proof.audit.run")}
    steps = ("pipelines.process.steps.parse", "pipelines.process.steps.mapping.", "pipelines.process.dedup")
    writers = ("pipelines.ingest", *steps, "pipelines.sink")
    assert not {name for name in shared if name.startswith((*writers, "pipelines.process.frames", "pipelines.connectors.kafka"))}
