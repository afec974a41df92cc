"""The process leg: raw frames to typed out frames and dead letters. A work item is some buckets' share of a range of raw sequences."""

import json
import sys
import time
from collections import Counter
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from pipelines.config import format_duration
from pipelines.connectors.jetstream import check_contiguous
from pipelines.connectors.ranges import MAX_FRAMES_PER_BATCH
from pipelines.errors import HaltError, RetryableError
from pipelines.ledger import Entry
from pipelines.legs.arrivals import Arrived, arrival_by, arrivals, bucket_of, clock_resets, microseconds
from pipelines.legs.buckets import Listing
from pipelines.legs.execute import Item, Report, run_in_tasks, run_with_exchange
from pipelines.legs.frames import after_exchange, before_exchange, process, process_frames
from pipelines.legs.leg import Leg, check_input, input_mark
from pipelines.records import Message
from pipelines.state.store import made_for

DRIVER_FRAMES = 16
"""Ranges of at most this many frames are processed in the driver, unless the run says otherwise."""
OFFER_SECONDS = 1.0
CLOCK_SECONDS = 1.0
"""How often the clocks are compared: it takes a request."""


class ProcessLeg(Leg):
    """Offset is {"sequence": last raw sequence}."""

    name = "process"
    _next_offer = 0.0
    _seen_offer = 0
    _next_clock = 0.0

    def _start_offset(self) -> dict[str, int]:
        check_input(self.connections.log, self.connections.names.stream("raw"), self.chain.state.done)
        self._check_buckets()
        if self.chain.state.plan is None:
            self._check_clock()
        self._sweep()
        return {"sequence": self.chain.state.to or 0}

    def _check_buckets(self) -> None:
        done, buckets = self.chain.state.done, self.connections.stage_config(self.connections.run.stage_config).buckets
        if done is not None and done.body["buckets"] != buckets:
            raise HaltError(
                f"starting process: its state lies in {done.body['buckets']} buckets, the file says {buckets}: a change was begun and is "
                "not finished; run `tallyflow rebucket` again"
            )

    def _check_clock(self) -> None:
        """Where dedup goes by arrival, which never steps back: tells that it is ahead of the server's clock, as the file asks for.

        A range that was planned is done before, so that `reset-clock` finds none.
        """
        done, log = self.chain.state.done, self.connections.log
        config = self.connections.stage_config(self.connections.run.stage_config)
        if done is None or not config.dedup_key or config.dedup_time_field or time.monotonic() < self._next_clock:
            return
        self._next_clock = time.monotonic() + CLOCK_SECONDS
        limits = self.connections.config.resources.nats
        now_us = microseconds(log.clock(self.connections.names.stream("raw")))
        ahead = timedelta(microseconds=done.body["clock_us"] - arrival_by(clock_resets(done.body), sys.maxsize, now_us))
        self.status.warning = ""
        if ahead > limits.max_clock_ahead:
            told = (
                f"the arrival of the last record is {format_duration(ahead)} ahead of NATS's clock, which was ahead and stepped back: "
                "until it is there again the windows of dedup stand still, and records are dropped as copies of older ones; set the "
                "clock of the server right, stop the pipeline and run `tallyflow reset-clock`"
            )
            if limits.clock_ahead == "halt":
                raise HaltError(f"judging by arrival: {told}; or wait, or say `clock_ahead: warn` in resources.nats")
            self.status.warning = told

    def _finish(self, session: SparkSession, plan: Entry) -> None:
        """As every leg's; then deletes the runs that the new `done` does not list any more."""
        before = self._listed()
        super()._finish(session, plan)
        now = self._listed()
        for bucket, names in before.items():
            for name in names - now.get(bucket, set()):
                self.connections.dedup_store(int(bucket)).place.delete(name)

    def _listed(self) -> dict[str, set[str]]:
        """Names of the live runs, by bucket."""
        runs = self.chain.state.done.body.get("runs", {}) if self.chain.state.done else {}
        return {bucket: {listed[0] for listed in listing} for bucket, listing in runs.items()}

    def _sweep(self) -> None:
        """Deletes runs that no `done` lists and no open plan may still want: what killed attempts have left."""
        config = self.connections.stage_config(self.connections.run.stage_config)
        if not config.dedup_key:
            return
        listed, done_to = self._listed(), self.chain.state.to or 0
        for bucket in range(config.buckets):
            place = self.connections.dedup_store(bucket).place
            for name in place.names():
                if name not in listed.get(str(bucket), set()) and made_for(name) <= done_to:
                    place.delete(name)

    def covers(self, end: dict[str, int]) -> bool:
        return (self.chain.state.to or 0) >= end["sequence"]

    def propose(self, end: dict[str, int]) -> tuple[Any, Any, dict[str, Any]]:
        self._check_clock()
        start = self.chain.state.to or 0
        return start, min(end["sequence"], start + MAX_FRAMES_PER_BATCH), {"config": self.connections.run.stage_config}

    def execute(self, session: SparkSession, plan: Entry) -> tuple[dict[str, int], dict[str, Any]]:
        done = self.chain.state.done
        log, stream = self.connections.log, self.connections.names.stream("raw")
        check_input(log, stream, done)
        start, to = plan.body["from"], plan.body["to"]
        before = done.body if done else {}
        item = {"from": start, "to": to, "config": plan.body["config"], "tails": before.get("tails", {})}
        item |= {"runs": before.get("runs", {}), "clock_us": before.get("clock_us", 0), "watermarks": before.get("watermarks")}
        item["clock_resets"] = before.get("clock_resets", [])
        run = self._in_driver if to - start <= self.connections.run.driver_frames else self._in_tasks
        reports, arrived, last = run(session, item)
        counts: Counter[str] = Counter()
        tails, runs = dict(item["tails"]), dict(item["runs"])
        for report in reports:
            counts.update(report["counts"])
            tails.update(report["tails"])
            runs.update(report["runs"])
        runs = self._adopted(runs)
        return dict(counts), {
            "config": plan.body["config"],
            "buckets": self.connections.stage_config(plan.body["config"]).buckets,
            "clock_us": arrived[-1].arrival_us,
            "clock_resets": item["clock_resets"],
            "watermarks": next((report["watermarks"] for report in reports if report["watermarks"]), item["watermarks"]),
            "input": input_mark(last),
            "tails": tails,
            "runs": runs,
            "arrivals": [[frame.message.sequence, frame.arrival_us] for frame in arrived],
        }

    def _adopted(self, runs: dict[str, Listing]) -> dict[str, Listing]:
        """`runs` with what a compaction has offered in place of the oldest of them, where all that it was made of is still listed.

        Looked for once in OFFER_SECONDS. When it is taken does not matter: every look-up gives the same answer before and after.
        """
        if not runs or time.monotonic() < self._next_offer:
            return runs
        self._next_offer = time.monotonic() + OFFER_SECONDS
        offer = self.connections.log.last(self.connections.names.stream("ledger"), self.connections.names.compaction())
        if offer is None or offer.sequence <= self._seen_offer:
            return runs
        adopted = dict(runs)
        for bucket, (inputs, outputs) in json.loads(offer.payload)["buckets"].items():
            present = runs.get(bucket, [])
            place = self.connections.dedup_store(int(bucket)).place
            if [listed[0] for listed in present[: len(inputs)]] == inputs and all(place.size(listed[0]) for listed in outputs):
                adopted[bucket] = [*outputs, *present[len(inputs) :]]
        self._seen_offer = offer.sequence
        return adopted

    def _in_driver(self, session: SparkSession, item: Item) -> tuple[list[Report], list[Arrived], Message]:
        log, names = self.connections.log, self.connections.names
        config = self.connections.stage_config(item["config"])
        messages = list(log.fetch(names.stream("raw"), names.subjects("raw"), item["from"], item["to"]))
        check_contiguous(names.stream("raw"), [m.sequence for m in messages], item["from"], item["to"])
        arrived = list(arrivals(messages, item["clock_us"], clock_resets(item)))
        # All buckets at once: a step through the stages costs 9 ms, however few rows it has.
        return [process_frames(self.connections, config, item, arrived)], arrived, messages[-1]

    def _in_tasks(self, session: SparkSession, item: Item) -> tuple[list[Report], list[Arrived], Message]:
        log, stream = self.connections.log, self.connections.names.stream("raw")
        config = self.connections.stage_config(item["config"])
        arrived = list(arrivals(log.scan(stream, item["from"], item["to"]), item["clock_us"], clock_resets(item)))
        shares = {
            str(bucket): {
                "subjects": sorted({frame.message.subject for frame in frames}),
                "frames": [[frame.message.sequence, frame.arrival_us] for frame in frames],
            }
            for bucket, frames in _by_bucket(arrived, config.buckets).items()
        }
        items = [{**item, "buckets": group} for group in _balanced(shares, session.sparkContext.defaultParallelism)]
        if config.dedup_key:
            reports = run_with_exchange(session, self.run_path, before_exchange, items, after_exchange, item, config.buckets)
        else:
            found = run_in_tasks(session, self.run_path, process, items)
            reports = [report for reports_of_item in found for report in reports_of_item.values()]
        last = log.get(stream, item["to"])
        if last is None:
            raise RetryableError(f"reading {stream}: sequence {item['to']} is not there")
        return reports, arrived, last


def _by_bucket(arrived: list[Arrived], buckets: int) -> dict[int, list[Arrived]]:
    grouped: dict[int, list[Arrived]] = {}
    for frame in arrived:
        grouped.setdefault(bucket_of(frame.message, buckets), []).append(frame)
    return grouped


def _balanced(shares: dict[str, dict[str, Any]], tasks: int) -> list[dict[str, dict[str, Any]]]:
    """The buckets in at most `tasks` groups, the largest first into the emptiest group."""
    groups: list[dict[str, dict[str, Any]]] = [{} for _ in range(min(tasks, len(shares)))]
    loads = [0] * len(groups)
    for bucket, share in sorted(shares.items(), key=lambda entry: -len(entry[1]["frames"])):
        lightest = loads.index(min(loads))
        groups[lightest][bucket] = share
        loads[lightest] += len(share["frames"])
    return groups
