"""A pipeline whose frames leave their bodies on several streams: as any other, also when it is purged, killed, full and rebuilt."""

import shutil
from typing import Any

import pytest
from support.dedup_case import copies, keyed_by
from support.pipeline_case import PipelineCase, wait_until

from pipelines.protocol.failpoints import VARIABLE
from pipelines.protocol.frame_bodies import HEADER_BODY
from pipelines.protocol.naming import all_roles
from pipelines.protocol.purge import read_purged

pytestmark = pytest.mark.integration


def dealt(document: dict[str, Any], streams: int = 2, **stream: str) -> None:
    document["streams"] = streams
    document["resources"] = {"nats": {"stream": stream}}


def held(case: PipelineCase, role: str) -> dict[str, int]:
    """How many messages the streams of a role hold, by the stream's own role."""
    log = case.log()
    roles = [each for each in all_roles(2) if each.partition("-")[0] == role]
    states = {each: log.state(case.names.stream(each)) for each in roles}
    log.close()
    return {each: state.messages for each, state in states.items() if state}


@pytest.fixture
def made(case: PipelineCase) -> PipelineCase:
    case.write_file(dealt)
    case.create_topic()
    return case


def test_every_record_passes_through_the_body_streams(made: PipelineCase) -> None:
    made.send_events(6_000, bad_every=50, name_bytes=800)
    made.warm_run()
    made.check()
    log = made.log()
    for role in ("raw", "out"):
        stream = made.names.stream(role)
        frames = log.scan(stream, 0, log.state(stream).last_sequence)
        assert {message.headers[HEADER_BODY].split()[0] for message in frames} == {"1", "2"}
        whole = list(log.fetch(stream, made.names.subjects(role), 0, frames[-1].sequence))
        assert [message.sequence for message in whole] == [message.sequence for message in frames]
        assert all(message.payload and HEADER_BODY not in message.headers for message in whole)
    log.close()
    assert made.invoke("audit", str(made.file)).exit_code == 0
    assert made.invoke("verify", str(made.file)).exit_code == 0
    assert made.invoke("delete", str(made.file), "--yes").exit_code == 0
    assert held(made, "raw") == held(made, "out") == {}


def test_bodies_go_with_their_frames(made: PipelineCase) -> None:
    made.write_file(lambda document: dealt(document, max_age="1s"))
    runner = made.warm_runner(until_caught_up=False)
    thread = made.in_background(runner)
    with made.load():
        wait_until(lambda: min(below(made, "raw"), below(made, "out")) > 30, "a purge of both streams")
    wait_until(lambda: made.count() + len(made.dead_letters()) == made.sent, "the end of the load")
    for role in ("raw", "out"):
        wait_until(lambda: is_one_each(held(made, role)), "one body for each frame that stays")  # noqa: B023
    runner.request_stop()
    thread.join()
    made.check()
    made.send_events(500)
    made.warm_run()
    made.check()


def is_one_each(messages: dict[str, int]) -> bool:
    frames, *bodies = sorted(messages.values(), reverse=True)
    return frames == sum(bodies)


def below(case: PipelineCase, role: str) -> int:
    log = case.log()
    found = read_purged(log, case.names, role).below
    log.close()
    return found


@pytest.mark.crash
@pytest.mark.parametrize("nth", [1, 5])
def test_a_kill_between_body_and_frame_is_repaired(made: PipelineCase, nth: int) -> None:
    made.send_events(6_000, bad_every=100, name_bytes=800)
    killed = made.run_plain(**{VARIABLE: f"frame.after-body:{nth}"})
    assert killed.returncode == -9, killed.stderr
    made.warm_run()
    made.check()


def test_a_full_body_stream_makes_its_writer_wait(case: PipelineCase) -> None:
    case.write_file(lambda document: dealt(document, max_bytes="14.4MB"))
    case.create_topic()
    case.send_events(16_000, name_bytes=1000)
    case.wait_ready(case.start_plain("--leg", "ingest", "--leg", "process"))

    def is_stuck() -> bool:
        now = case.ask()
        # Ready before the streams were looked at.
        return now is not None and "raw" in now["streams"] and now["streams"]["raw"]["is_full"]

    wait_until(is_stuck, "a full stream")
    now = case.ask()
    assert now is not None
    advice = now["streams"]["raw"]["advice"]
    assert f"raw stream {case.names.stream('raw-1')}, " in advice
    assert "of 7,200,000 bytes, is full: its writer waits, nothing is lost" in advice
    sink = case.warm_runner(until_caught_up=False, legs=("sink",))
    case.in_background(sink)
    case.wait_count(16_000)
    case.check()


@pytest.mark.crash
def test_dealt_frames_rebuild_a_lost_key_store(case: PipelineCase) -> None:
    def change(document: dict[str, Any]) -> None:
        keyed_by("id")(document)
        document["streams"] = 2

    case.write_file(change)
    case.create_topic()
    case.send(copies(2_000))
    case.warm_run()
    rows = case.count()
    shutil.rmtree(case.names.directory(case.home) / "state")
    assert case.invoke("rebuild-state", str(case.file)).exit_code == 0
    case.send(copies(2_000))
    case.warm_run()
    assert case.count() == rows


def test_another_number_of_streams_is_refused(made: PipelineCase) -> None:
    made.send_events(10)
    made.warm_run()
    made.write_file(lambda document: dealt(document, streams=3))
    refused = made.invoke("run", str(made.file), "--until-caught-up")
    assert (refused.exit_code, "streams was 2, the file has 3" in refused.output) == (1, True), refused.output
    made.write_file()
    refused = made.invoke("run", str(made.file), "--until-caught-up")
    assert (refused.exit_code, "streams was 2, the file has 1" in refused.output) == (1, True), refused.output
