"""What a start writes down before its first leg: the stage configuration on the ledger, and the run file for all of its processes."""

import os
from typing import TYPE_CHECKING

from pipelines.config import codes_of, version_of
from pipelines.config.variables import open_variables
from pipelines.engine.run_spec import RUN_FILE, RunSpec, resolved_digest
from pipelines.process import stage_config
from pipelines.process.compile import compile_program
from pipelines.protocol.bodies import PROCESS_CHAIN
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.topology import SINK
from pipelines.runner.preflight import Prepared
from pipelines.sink.waiting import check_waiting

if TYPE_CHECKING:
    from pipelines.runner.runner import Runner


def write_run(runner: "Runner", prepared: Prepared) -> RunSpec:
    """Store the stage configuration and the run file of a start. Raise HaltError if its table does not take the rows that wait."""
    config, log, names, topology = runner.config, runner.log, runner.names, runner.topology
    stages = compile_program(config, [*prepared.tables.values()])
    for leg, table in prepared.tables.items():
        if leg in runner.options.legs and leg.kind == SINK:
            check_waiting(log, names, stages.seen_from(leg), table, topology.option(leg))
    version = stage_config.store(log, names, stages)
    run = RunSpec(
        runner.text,
        f"pipeline {config.pipeline_id}",
        prepared.stream_ids,
        {topology.file_id(leg): facts.identity for leg, facts in prepared.sources.items()},
        version,
        names.state_storage(runner.directory, config.state_uri),
        _planned_config(runner) or version if runner.options.accept else "",
        version_of(config),
        resolved_digest(config),
        _targets_by_source(runner),
        open_variables(runner.text, os.environ),
        codes=codes_of(config),
    )
    run.save(runner.own_directory / RUN_FILE)
    return run


def _targets_by_source(runner: "Runner") -> dict[str, dict[str, int]] | None:
    if runner.targets is None:
        return None
    return {runner.topology.file_id(leg): {str(p): end for p, end in ends.items()} for leg, ends in runner.targets.items()}


def _planned_config(runner: "Runner") -> str:
    """Return the config version of the open plan of process; empty if there is none."""
    plan = read_chain(runner.log, runner.names, PROCESS_CHAIN).plan
    return plan.body.config if plan else ""
