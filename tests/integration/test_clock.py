"""NATS's clock was ahead and stepped back: the pipeline says so, and goes on after `reset-clock`, and every reader of raw agrees."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from support.dedup_case import check_first_of_keys, copies, key_state, keyed_by
from support.pipeline_case import PipelineCase

from pipelines.errors import HaltError
from pipelines.maintenance.rebuild import rebuild
from pipelines.maintenance.reset_clock import reset_clock
from pipelines.protocol.bodies import PROCESS_CHAIN
from pipelines.protocol.ledger import Chain, read_chain

AHEAD = timedelta(hours=2)
"""Shorter than the window, and than what raw is kept for, both by the arrivals."""


def was_ahead(case: PipelineCase) -> None:
    """As if the last frame had come while the server's clock was ahead."""
    log, names = case.log(), case.names
    chain = Chain(log, names, PROCESS_CHAIN, read_chain(log, names, PROCESS_CHAIN).epoch)
    chain.open()
    done = chain.state.done
    assert done is not None
    chain.restate(replace(done.body, clock_us=done.body.clock_us + AHEAD // timedelta(microseconds=1)))
    log.close()


@pytest.mark.crash
def test_arrivals_that_are_ahead_halt_and_go_on_after_a_reset(case: PipelineCase, way: None) -> None:
    case.write_file(keyed_by("id", window="12h"))
    case.create_topic()
    case.send(copies(600))
    case.warm_run()
    state = key_state(case)
    assert reset_clock(state).arrival <= reset_clock(state).server, "nothing is ahead"
    was_ahead(case)
    case.send(copies(600, first=600))
    with pytest.raises(HaltError, match=r"the arrival of the last record is 1h5\dm.* ahead of NATS's clock.*reset-clock"):
        case.run_in_turn()
    found = reset_clock(state)
    assert AHEAD / 2 < found.arrival - found.server < AHEAD
    case.warm_run()
    check_first_of_keys(case)
    rebuild(state)
    state.close()
    log = case.log()
    done = read_chain(log, case.names, PROCESS_CHAIN).done
    log.close()
    assert done is not None
    assert len(done.body.clock_resets) == 1
    assert case.invoke("verify", str(case.file)).exit_code == 0


def test_a_warning_is_in_the_status(case: PipelineCase) -> None:
    def warns(document: dict[str, Any]) -> None:
        keyed_by("id")(document)
        document["resources"] = {"nats": {"clock_ahead": "warn"}}

    case.write_file(warns)
    case.create_topic()
    case.send(copies(300))
    case.warm_run()
    was_ahead(case)
    case.send(copies(300, first=300))
    runner = case.warm_run()
    assert "ahead of NATS's clock" in runner.legs["process"].status.warning
    check_first_of_keys(case)
