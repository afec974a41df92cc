"""A reload from outside: the text of the edited file goes to the runners on this host, and their legs take its settings."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pipelines.control.control import ANSWER_WITHIN, ask, find_runners, http_client
from pipelines.control.processes import ProcessIdentity
from pipelines.errors import HaltError
from pipelines.protocol.topology import LegId

RELOAD_PATH = "/reload"
_LOOK_EVERY_SECONDS = 0.1


def reload_runners(directory: Path, text: str, patience: timedelta) -> dict[LegId, str]:
    """Send the text of an edited file to all runners of a pipeline, and wait until their legs work under its settings.

    Return the legs that did not within `patience`, and what each waits for: it takes them behind its batch. Raise HaltError if a runner
    refuses the file, or does not answer.
    """
    runners = find_runners(directory)
    if not runners:
        raise HaltError(f"reloading pipeline {directory.name}: no runner answers on this host; its next start takes the file as it is then")
    for runner in runners:
        _send(runner, text)
    deadline = time.monotonic() + patience.total_seconds()
    while (left := {leg: why for runner in runners for leg, why in _under_earlier_settings(runner)}) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_SECONDS)
    return left


def _send(runner: dict[str, Any], text: str) -> None:
    import httpx

    url, key = f"http://127.0.0.1:{runner['port']}{RELOAD_PATH}", {"Authorization": f"Bearer {runner.get('key')}"}
    doing, seconds = f"reloading {', '.join(runner['legs'])}", ANSWER_WITHIN.total_seconds()
    try:
        answer = http_client().post(url, content=text.encode(), headers=key, timeout=seconds)
    except httpx.HTTPError as error:
        raise HaltError(f"{doing}: its runner gives no answer within {seconds:.0f} s ({type(error).__name__}); ask again") from error
    if answer.status_code == httpx.codes.CONFLICT:
        raise HaltError(answer.json()["refused"])
    if not answer.is_success:
        raise HaltError(f"{doing}: its runner answers {answer.status_code}, as one of another release does; stop it and start it")


def _under_earlier_settings(runner: dict[str, Any]) -> Iterator[tuple[LegId, str]]:
    """Yield the legs of a runner that do not work under the settings of its file yet, and what each waits for; none if it has ended."""
    now = ask(runner, ANSWER_WITHIN)
    if now is None:
        if ProcessIdentity(runner["pid"], runner["mark"]).is_running():
            yield from ((leg, "its runner does not answer") for leg in runner["legs"])
        return
    for name, leg in now["legs"].items():
        if leg["settings"] != now["settings"]["digest"]:
            yield LegId.parse(name), leg["message"] or f"it is {leg['state']}"
