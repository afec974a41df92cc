"""Pipelines that reach their servers through proxies, while the oracle goes to the servers themselves."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pipelines.runner.runner import Runner
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until
from support.proxy import HOST, Proxy


def through(case: PipelineCase, nats: Proxy | None = None, clickhouse: Proxy | None = None) -> Callable[[dict[str, Any]], None]:
    """A change of the pipeline file: its addresses are those of the proxies."""

    def change(document: dict[str, Any]) -> None:
        if nats is not None:
            document["nats"] = {"url": case.addresses.nats_url.replace(case.addresses.nats_address, f"{HOST}:{nats.port}")}
        if clickhouse is not None:
            document["sink"]["connection_params"] |= {"host": HOST, "port": str(clickhouse.port)}

    return change


@contextmanager
def proxies(case: PipelineCase) -> Iterator[tuple[Proxy, Proxy]]:
    """(before NATS, before ClickHouse)."""
    with ExitStack() as opened:
        ports = int(case.addresses.nats_url.rpartition(":")[2]), case.addresses.clickhouse_port
        nats, clickhouse = (opened.enter_context(Proxy(port)) for port in ports)
        yield nats, clickhouse


Proxied = tuple[PipelineCase, Proxy, Proxy]
"""What the fixture `proxied` gives: a case whose file goes through a proxy before NATS and one before ClickHouse."""


@contextmanager
def running(case: PipelineCase, **options: Any) -> Iterator[Runner]:
    """A runner in the background; at the end every event has arrived, nothing has halted, and the oracle agrees."""
    runner = case.warm_runner(until_caught_up=False, **options)
    thread = case.in_background(runner)
    yield runner
    wait_until(lambda: case.count() >= case.good or not thread.is_alive(), "all rows")
    wait_until(lambda: len(case.dead_letters()) >= case.sent - case.good or not thread.is_alive(), "all dead letters")
    stop(case, runner)
    assert {name: str(leg.failure) for name, leg in runner.legs.items() if leg.failure} == {}
    case.check()


def stop(case: PipelineCase, runner: Runner) -> None:
    runner.request_stop()
    thread = next(thread for one, thread in case._warm if one is runner)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "a stopped runner has not ended"


def waits(runner: Runner, leg: str, *reasons: str) -> None:
    """Until the leg says that it waits, and one of these reasons."""

    def is_reported() -> bool:
        status = runner.legs[leg].status
        return status.state == "waiting" and any(reason in status.message for reason in reasons)

    wait_until(is_reported, f"{leg} that waits because of {' or '.join(reasons)}")


def halts(runner: Runner, leg: str) -> str:
    """The message with which the leg halts."""
    failure = wait_until(lambda: runner.legs[leg].failure, f"a halt of {leg}")
    return str(failure)
