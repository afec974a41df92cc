"""Waits of a run, a line when a server goes and a line when it comes back: legs that wait for one server are one wait. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipelines.runner.events import Event

ANNOUNCED_AFTER_SECONDS = 1.0
"""A shorter wait is a retry, and no news."""
OVER_AFTER_SECONDS = 2.0
"""A server works again when nobody has waited for it for so long: what comes back may refuse once more."""
_WORDS = {"ClickHouse": "ClickHouse", "JetStream": "NATS", "NATS": "NATS", "the brokers are running": "Kafka", "Kafka": "Kafka"}
"""The words by which the connectors' messages name a server."""


class StoppedInStartError(Exception):
    """The run was stopped before its legs worked; what its start has taken is given back, and no fault is told."""


def system_of(message: str) -> str:
    """Return the server that a message of a connector names, the first one if it names several; empty if it names none."""
    places = {system: at for word, system in _WORDS.items() if (at := message.find(word)) >= 0}
    return min(places, key=places.__getitem__) if places else ""


@dataclass
class _Wait:
    since: float
    last: float
    message: str
    is_announced: bool = False


class Waits:
    """The waits at present, by server, or by leg where the message names none."""

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}

    @property
    def subjects(self) -> list[str]:
        """The servers, or legs, that are waited for and have been announced."""
        return [subject for subject, wait in self._waits.items() if wait.is_announced]

    def look(self, now: float, waiting: Mapping[str, str]) -> Iterator[Event]:
        """Take the message of each leg that waits, at `now` of a monotonic clock; yield what is new."""
        for leg, message in waiting.items():
            subject = system_of(message) or leg
            wait = self._waits.setdefault(subject, _Wait(now, now, f"{leg}: {message}"))
            wait.last = now
        for subject, wait in list(self._waits.items()):
            if not wait.is_announced and now - wait.since >= ANNOUNCED_AFTER_SECONDS and wait.last == now:
                wait.is_announced = True
                yield Event("waiting", f"waiting: {wait.message}", {"for": subject})
            elif now - wait.last >= OVER_AFTER_SECONDS:
                del self._waits[subject]
                if wait.is_announced:
                    seconds = wait.last - wait.since
                    yield Event("back", f"{subject} works again after {seconds:,.0f} s", {"for": subject, "seconds": round(seconds, 1)})
