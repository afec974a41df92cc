"""Status of a running pipeline, over HTTP on loopback: `/status` (JSON), `/healthz`, Prometheus `/metrics`; `/reload` takes settings.

The system chooses the port; it is written to `status.json` in the runner's directory, where the command line finds it
(`pipelines.control.control`).
"""

import json
import os
import secrets
import socket
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipelines.config.text import MAX_CHARACTERS
from pipelines.control.control import STATUS_FILE
from pipelines.control.processes import start_mark
from pipelines.control.reload import RELOAD_PATH
from pipelines.errors import TallyflowError
from pipelines.loopback import LoopbackServer
from pipelines.private import write_whole
from pipelines.protocol.positions import SourcePartition
from pipelines.protocol.topology import LegId
from pipelines.runner.pace import LegPace
from pipelines.runner.reloads import reload

if TYPE_CHECKING:
    from pipelines.engine.coordinator import LegView
    from pipelines.runner.runner import Runner

STATES = ("starting", "running", "waiting", "halted", "stopped")
_CLOSE_SECONDS = 2
_KAFKA_ANSWERS_WITHIN_SECONDS = 3.0
_MAX_FILE_BYTES = 4 * MAX_CHARACTERS


def snapshot(runner: "Runner") -> dict[str, Any]:
    """Return the runner's state now, as JSON values.

    Legs with their last batch and totals, lag and rate of each leg (`pace`), lanes, settings, lag per Kafka partition, what the runner
    waits for; if the file asks for a ledger table, how far it is copied; the look-up tables, with the age of their snapshots.
    """
    lag, kafka_away = _lag(runner)
    legs = {name: _leg(runner.legs[name]) if name in runner.legs else _leg_to_come(runner, name) for name in runner.options.legs}
    for name, facts in legs.items():
        facts.update(asdict(runner.pace.legs.get(name, LegPace()) if runner.pace else LegPace()))
    for name, message in kafka_away.items():
        if legs[name]["state"] in ("starting", "running"):
            # Its input sees no new records, so no batch shows that it waits.
            legs[name] |= {"state": "waiting", "message": message}
    return {
        "pipeline": runner.config.pipeline_id,
        "ready": runner.is_ready,
        "healthy": is_healthy(runner),
        "at": round(time.time(), 3),
        "uptime_seconds": round(time.time() - runner.started_at, 3),
        "legs": legs,
        "lanes": _lanes(runner),
        "settings": _settings(runner),
        "lag": lag,
        **({"ledger_tables": {leg: asdict(copier.status) for leg, copier in runner.copiers.items()}} if runner.copiers else {}),
        **({"lookup_tables": runner.lookups.facts()} if runner.lookups else {}),
        **_streams(runner),
    }


def _lanes(runner: "Runner") -> dict[str, int]:
    """Return how many lanes there may be, the run keeps, and work; the legs' own processes count as one."""
    coordinator = runner.coordinator
    kept, working = (coordinator.kept_lanes, coordinator.lanes) if coordinator else (0, 0)
    return {"most": runner.config.lanes, "wanted": 1 + kept, "working": 1 + working}


def _settings(runner: "Runner") -> dict[str, Any]:
    """Return the digest of the settings of the file as it is in force, and when they were reloaded (UTC, ISO 8601), None for never."""
    reloads = runner.reloads
    at = reloads.at if reloads else None
    return {"digest": reloads.digest if reloads else "", "reloaded_at": at.isoformat(timespec="seconds") if at else None}


def _streams(runner: "Runner") -> dict[str, Any]:
    """Return the streams of the runner's legs by role, and why the last purge failed; refreshed every two seconds."""
    retention = runner.retention
    facts = retention.facts if retention else ()
    streams = {
        one.role: {
            "stream": one.stream,
            "bytes": one.bytes,
            "max_bytes": one.max_bytes,
            "is_full": one.is_full,
            "purged_below": one.purged.below,
            "purged_before": one.purged.since.isoformat(timespec="milliseconds") if one.purged.since else None,
            "purged_early": one.purged.is_early,
            "advice": one.advice,
        }
        for one in facts
    }
    return {"streams": streams, "purge_failure": retention.failure if retention else ""}


def _leg(leg: "LegView") -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "worker": str(leg.process) if leg.process else "",
        "epoch": leg.lease.holder.epoch,
        "state": leg.status.state,
        "message": leg.status.message or leg.status.warning,
        "retries": leg.status.retries,
        "batches": leg.status.batches,
        "lane_parts": leg.status.lane_parts,
        "seconds_busy": round(leg.status.seconds_busy, 3),
        "last_batch": leg.status.last_batch,
        "totals": leg.status.totals,
        "settings": leg.status.settings,
    }


def _leg_to_come(runner: "Runner", name: LegId) -> dict[str, Any]:
    """Return the state of a leg before it is built.

    The first leg shows what the start waits for.
    """
    message = runner.waits_for if name == runner.options.legs[0] else ""
    state = "waiting" if message else "starting"
    nothing = {"worker": "", "epoch": 0, "retries": 0, "batches": 0, "lane_parts": 0, "seconds_busy": 0.0, "last_batch": {}, "totals": {}}
    return {"pid": os.getpid(), "state": state, "message": message, **nothing, "settings": ""}


def is_healthy(runner: "Runner") -> bool:
    """Return True if the runner is ready and no leg has halted.

    A leg that waits for a system is healthy: it continues by itself.
    """
    return runner.is_ready and all(leg.failure is None for leg in runner.legs.values()) and not runner.is_fenced


def _lag(runner: "Runner") -> tuple[dict[str, int], dict[LegId, str]]:
    """Return the offsets per partition that the ingest legs of the runner have not confirmed, and by leg why the source gives no ends."""
    lag: dict[str, int] = {}
    away: dict[LegId, str] = {}
    for name, source in runner.sources.items():
        leg = runner.legs.get(name)
        if leg is None or not leg.status.reached:
            continue
        reached = {int(p): offset for p, offset in leg.status.reached.items()}
        try:
            ends, silent = source.known_ends(sorted(reached), _KAFKA_ANSWERS_WITHIN_SECONDS)
        except TallyflowError as error:
            # Even an error that halts ingest, such as a deleted topic: the status must report it, and not fail itself.
            away[name] = str(error)
            continue
        keys = {p: SourcePartition(runner.topology.file_id(name), p).among(runner.config.sources) for p in ends}
        lag |= {keys[p]: max(0, end - reached.get(p, 0)) for p, end in ends.items()}
        if silent:
            away[name] = "; ".join(map(str, silent.values()))
    return lag, away


class _Metrics:
    """Prometheus collector over the same snapshot."""

    def __init__(self, runner: "Runner") -> None:
        self._runner = runner

    def collect(self) -> list[Metric]:
        now = snapshot(self._runner)
        labels = ["pipeline", "leg"]
        pipeline = now["pipeline"]
        rows = CounterMetricFamily("tallyflow_rows", "Rows by leg and outcome since the pipeline began", labels=[*labels, "outcome"])
        batches = CounterMetricFamily("tallyflow_batches", "Plans done since this start", labels=labels)
        retries = CounterMetricFamily("tallyflow_retries", "Times a leg waited for a system since this start", labels=labels)
        busy = CounterMetricFamily("tallyflow_busy_seconds", "Seconds of work since this start", labels=labels)
        state = GaugeMetricFamily("tallyflow_leg_state", "1 for the current state of the leg", labels=[*labels, "state"])
        lag = GaugeMetricFamily("tallyflow_lag_offsets", "Offsets of a Kafka partition not yet confirmed", labels=["pipeline", "partition"])
        for leg, facts in now["legs"].items():
            for outcome, count in facts["totals"].items():
                rows.add_metric([pipeline, leg, outcome], count)
            batches.add_metric([pipeline, leg], facts["batches"])
            retries.add_metric([pipeline, leg], facts["retries"])
            busy.add_metric([pipeline, leg], facts["seconds_busy"])
            for name in STATES:
                state.add_metric([pipeline, leg, name], float(facts["state"] == name))
        waiting = GaugeMetricFamily("tallyflow_waiting_records", "Records (before ingest: offsets) a leg has not confirmed", labels=labels)
        age = GaugeMetricFamily("tallyflow_waiting_seconds", "How long the oldest of them has waited", labels=labels)
        for leg, facts in now["legs"].items():
            waiting.add_metric([pipeline, leg], facts["waiting"])
            age.add_metric([pipeline, leg], facts["waiting_seconds"])
        for partition, count in now["lag"].items():
            lag.add_metric([pipeline, partition], count)
        lanes = GaugeMetricFamily("tallyflow_lanes", "Lanes that work, the legs' own processes counted as one", labels=["pipeline"])
        lanes.add_metric([pipeline], now["lanes"]["working"])
        healthy = GaugeMetricFamily("tallyflow_healthy", "1 when ready and no leg has halted", labels=["pipeline"])
        healthy.add_metric([pipeline], float(now["healthy"]))
        size = GaugeMetricFamily("tallyflow_stream_bytes", "Bytes that a stream holds", labels=["pipeline", "role"])
        limit = GaugeMetricFamily("tallyflow_stream_limit_bytes", "Its limit, if it has one", labels=["pipeline", "role"])
        for role, facts in now["streams"].items():
            size.add_metric([pipeline, role], facts["bytes"])
            if facts["max_bytes"] > 0:
                limit.add_metric([pipeline, role], facts["max_bytes"])
        return [rows, batches, retries, busy, state, lag, waiting, age, size, limit, lanes, healthy, *_of_tables(now)]


def _of_tables(now: dict[str, Any]) -> list[Metric]:
    labels = ["pipeline", "table"]
    age = GaugeMetricFamily("tallyflow_lookup_age_seconds", "Age of the newest snapshot of a look-up table", labels=labels)
    rows = GaugeMetricFamily("tallyflow_lookup_rows", "Rows of that snapshot", labels=labels)
    failed = GaugeMetricFamily("tallyflow_lookup_failed", "1 if the last fetch of the table failed", labels=labels)
    for table, facts in now.get("lookup_tables", {}).items():
        age.add_metric([now["pipeline"], table], facts["age_seconds"])
        rows.add_metric([now["pipeline"], table], facts["rows"])
        failed.add_metric([now["pipeline"], table], float(bool(facts["failure"])))
    return [age, rows, failed]


class StatusServer:
    """Serves the status of one runner from its own thread."""

    def __init__(self, runner: "Runner") -> None:
        self._runner = runner
        # Every user of the host can reach the port, and only this one can read the file with the key.
        self._key = secrets.token_urlsafe(16)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Metrics(runner))

        def status(_: Request) -> Response:
            return JSONResponse(snapshot(runner))

        def healthz(_: Request) -> Response:
            healthy = is_healthy(runner)
            return JSONResponse({"healthy": healthy}, status_code=200 if healthy else 503)

        def metrics(_: Request) -> Response:
            return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

        application = Starlette(
            routes=[
                Route("/status", status),
                Route("/healthz", healthz),
                Route("/metrics", metrics),
                Route(RELOAD_PATH, self._reload, methods=["POST"]),
            ]
        )
        self._server = LoopbackServer(application, {"log_level": "error", "timeout_graceful_shutdown": _CLOSE_SECONDS})
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, name="status", daemon=True)

    async def _reload(self, request: Request) -> Response:
        """Take the text of an edited file; answer the digest of its settings, or why it is refused."""
        if not secrets.compare_digest(request.headers.get("authorization", ""), f"Bearer {self._key}"):
            return JSONResponse({"refused": "the key in the runner's status.json is needed"}, 401)
        if int(request.headers.get("content-length") or _MAX_FILE_BYTES + 1) > _MAX_FILE_BYTES:
            return JSONResponse({"refused": f"no length is named, or it is more than {_MAX_FILE_BYTES:,} bytes"}, 413)
        try:
            return JSONResponse({"settings": await run_in_threadpool(reload, self._runner, (await request.body()).decode())})
        except (TallyflowError, UnicodeDecodeError) as error:
            return JSONResponse({"refused": str(error)}, 409)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Start serving, and write port, pid and the pid's start mark, so that a reused pid is not taken for the runner."""
        self._thread.start()
        path = self._runner.own_directory / STATUS_FILE
        runner, pid = self._runner, os.getpid()
        known = {"pid": pid, "mark": start_mark(pid), "port": self.port, "key": self._key}
        facts = {**known, "legs": runner.options.legs, "log": runner.log_path}
        write_whole(path, json.dumps(facts))

    def close(self) -> None:
        self._server.end()
        self._thread.join(timeout=2 * _CLOSE_SECONDS)
        self._socket.close()
        (self._runner.own_directory / STATUS_FILE).unlink(missing_ok=True)
