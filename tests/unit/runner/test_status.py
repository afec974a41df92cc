"""What several runners of one pipeline say, as one."""

from typing import Any

from pipelines.control.control import together


def snapshot(legs: list[str], lag: dict[str, int], uptime: float, healthy: bool = True) -> dict[str, Any]:
    answer = {name: {"state": "running"} for name in legs}
    streams = {role: {"bytes": 7} for leg, role in (("process", "raw"), ("sink", "out")) if leg in legs}
    reported = {"streams": streams, "purge_failure": ""}
    return {
        "pipeline": "orders",
        "ready": True,
        "healthy": healthy,
        "at": 1000.0,
        "uptime_seconds": uptime,
        "legs": answer,
        "settings": {"digest": "a" if "sink" in legs else "b", "reloaded_at": None if "process" in legs else "2026-01-01T00:00:00+00:00"},
        "lanes": {"wanted": 3, "working": 3 if "process" in legs else 1},
        "lag": lag,
        **reported,
    }


def test_a_single_runner_is_shown_as_it_is() -> None:
    alone = snapshot(["ingest", "process", "sink"], {"0": 3}, 60.0)
    assert together([alone]) == alone


def test_runners_of_different_legs_are_shown_as_one_pipeline() -> None:
    found = together([snapshot(["sink"], {}, 5.0), snapshot(["ingest", "process"], {"0": 3, "1": 4}, 60.0)])
    assert list(found["legs"]) == ["ingest", "process", "sink"]
    assert set(found["streams"]) == {"raw", "out"}
    assert found["lanes"] == {"wanted": 3, "working": 3}
    assert found["settings"] == {"digest": "", "reloaded_at": "2026-01-01T00:00:00+00:00"}
    assert (found["lag"], found["uptime_seconds"], found["healthy"]) == ({"0": 3, "1": 4}, 5.0, True)


def test_one_unhealthy_runner_makes_the_pipeline_unhealthy() -> None:
    assert not together([snapshot(["ingest"], {}, 1.0), snapshot(["sink"], {}, 1.0, healthy=False)])["healthy"]
