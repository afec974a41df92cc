"""The act of the demo that asks the dashboard: what it shows, against what the example says of its records."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import httpx

from pipelines.config import PipelineConfig
from pipelines.dashboard.server import Dashboard
from pipelines.demo.examples import WindowFigures
from pipelines.errors import HaltError

_ANSWER_SECONDS = 30.0
_LEEWAY = {"unique": Decimal("0.02"), "quantile": Decimal("0.0101")}
"""The error of an estimate, as docs/rollups.md states it."""


@contextmanager
def served(config: PipelineConfig) -> Iterator[str]:
    """Serve the dashboard of a file whose windows were just computed; yield its URL."""
    dashboard = Dashboard(config)
    dashboard.refresh()
    thread = threading.Thread(target=dashboard.serve, name="dashboard", daemon=True)
    thread.start()
    try:
        yield dashboard.url
    finally:
        dashboard.stop()
        thread.join(_ANSWER_SECONDS)


def window_differences(url: str, wanted: WindowFigures) -> Iterator[str]:
    """Yield what a dashboard shows otherwise than it must: each figure of each group and window."""
    with httpx.Client(base_url=url, timeout=_ANSWER_SECONDS, trust_env=False) as client:
        (rollup,) = _asked(client, "api/rollups")["rollups"]
        groups = [tuple(group) for group in _asked(client, "api/groups", rollup=rollup["name"])["groups"]]
        measures = {measure["name"]: measure for measure in rollup["measures"]}
        known = {group for _, group in wanted}
        yield from (f"{', '.join(group)}: is shown, and no record has it" for group in groups if group not in known)
        for (window, group), figures in wanted.items():
            shown = _asked(client, "api/figures", rollup=rollup["name"], window=window, group=group)["figures"]
            for name, value in figures.items():
                if not _is_same(measures[name], value, shown[name]):
                    yield f"{', '.join(group)}, {window}, {name}: must be {value}, is {shown[name]}"


def _asked(client: httpx.Client, path: str, **parameters: Any) -> dict[str, Any]:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parameters.items()}
    answer = client.get(path, params=texts)
    found: dict[str, Any] = answer.json()
    if answer.status_code != httpx.codes.OK:
        raise HaltError(f"asking the dashboard for {path}: {found.get('error')}")
    return found


def _is_same(measure: dict[str, Any], wanted: Any, shown: Any) -> bool:
    if not measure["is_estimated"]:
        return bool(wanted == shown)
    exact = Decimal(wanted)
    return bool(abs(Decimal(shown) - exact) <= max(Decimal(1), _LEEWAY[measure["kind"]] * exact))
