"""How often a start asks NATS, counted beside it by another client, and which of several refusals it tells."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

import pytest
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase

from pipelines.config import load
from pipelines.connectors.nats.client import JetStream
from pipelines.errors import DataLossError, HaltError
from pipelines.protocol.naming import ROLES
from pipelines.runner.preflight import ensure_streams, existing_streams

pytestmark = pytest.mark.integration


@contextmanager
def counted(case: PipelineCase, log: JetStream) -> Iterator[Counter[str]]:
    """What is asked about each stream inside; whole when the block has ended."""
    asked: Counter[str] = Counter()
    begun, heard = Event(), Event()
    with closing(case.log()) as beside:
        for role in ROLES:
            beside.on_message(f"$JS.API.STREAM.*.{case.names.stream(role)}", partial(asked.update, [role]))
        beside.on_message(f"{case.pipeline}.end", heard.set)
        # The server reads a connection in order: what comes back shows that it knows the subscriptions before.
        beside.on_message(f"{case.pipeline}.begin", begun.set)
        beside.notify(f"{case.pipeline}.begin")
        assert begun.wait(PATIENCE_SECONDS)
        yield asked
        # Behind all that `log` has sent.
        log.notify(f"{case.pipeline}.end")
        assert heard.wait(PATIENCE_SECONDS)


def test_a_later_start_asks_each_stream_once(case: PipelineCase) -> None:
    case.create_topic()
    case.warm_run()
    with closing(case.log()) as log:
        with counted(case, log) as asked:
            config = load(case.file, case.environment())
            ids = ensure_streams(config, log, existing_streams(config, log))
        assert asked == dict.fromkeys(ROLES, 1)
        assert [*ids] == [*ROLES]


def test_the_first_of_several_refusals_is_told(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(30)
    case.warm_run()

    def refusal(kind: type[HaltError]) -> str:
        with pytest.raises(HaltError) as raised:
            existing_streams(load(case.file, case.environment()), log)
        assert type(raised.value) is kind
        return str(raised.value)

    def changed(document: dict[str, Any]) -> None:
        document["buckets"] = 16

    with closing(case.log()) as log:
        state = log.state(case.names.stream("raw"))
        assert state is not None
        log._wait("changing a stream", log._js.update_stream(replace(state.settings, max_age=3600)))
        assert refusal(HaltError).startswith(f"checking stream {state.name}: messages expire after 3600 s")
        log.delete_stream(case.names.stream("dlq"))
        assert f"of its streams {case.names.stream('dlq')} is missing" in refusal(DataLossError)
        case.write_file(changed)
        assert "buckets was 8, the file has 16" in refusal(HaltError)
