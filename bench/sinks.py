"""One table against two: CPU of the whole pipeline per event, without dedup, in turns, all servers on this machine."""

from statistics import median

import yaml

from bench.pipeline import MeasuredPipeline
from bench.throughput import Throughput, measured
from resources.local.stack import LocalStack

_SECOND = "second"


class SeveralTables(MeasuredPipeline):
    """The example pipeline without dedup, into so many tables with the same columns; all records go to each."""

    def __init__(self, stack: LocalStack, topic: str, tables: int) -> None:
        super().__init__(stack, topic, with_dedup=False)
        self.legs = ("ingest", "process", "sink", *([f"sink:{_SECOND}"] if tables > 1 else []))
        document = yaml.safe_load(self.file.read_text())
        sink = document.pop("sink")
        more = [{**sink, "id": _SECOND, "table": "${ORDERS_TABLE}_second"}] if tables > 1 else []
        self.file.write_text(yaml.safe_dump({**document, "sinks": [{**sink, "id": "first"}, *more]}))


def measure(stack: LocalStack, topic: str, events: int, runs: int) -> dict[int, list[Throughput]]:
    """Return the runs with one table and with two, which take turns."""
    found: dict[int, list[Throughput]] = {1: [], 2: []}
    for _ in range(runs):
        for tables, made in found.items():
            with SeveralTables(stack, topic, tables) as pipeline:
                made.append(measured(stack, pipeline, events, events, pipeline.legs))
    return found


def cpu_us(run: Throughput) -> float:
    """Return the CPU microseconds of an event: of the pipeline and of ClickHouse."""
    return run.pipeline_cpu_us + run.cpu_us_per_event["clickhouse"]


def cost_of_the_second(found: dict[int, list[Throughput]]) -> float:
    """Return what the second table adds to the cost of the pipeline with one, as a share of it."""
    one, two = (median(cpu_us(run) for run in found[tables]) for tables in (1, 2))
    return two / one - 1
