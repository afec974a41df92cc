"""Bodies of frames on several streams in the protocol's model: the account stays right; and mistakes about bodies that it finds."""

from collections.abc import Callable, Iterable

import pytest
from support.protocol_chaos import play
from support.protocol_world import World

from pipelines.errors import RetryableError
from pipelines.protocol import frame_bodies
from pipelines.protocol.frame_bodies import Reference, Store
from pipelines.protocol.naming import body_number, body_subject
from pipelines.protocol.records import Message

pytestmark = pytest.mark.crash

HISTORIES = 40


def histories(count: int = HISTORIES) -> None:
    for seed in range(count):
        try:
            play(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    made = World.__init__

    def with_bodies(self: World, seed: int) -> None:
        made(self, seed)
        self.log.streams = 3

    monkeypatch.setattr(World, "__init__", with_bodies)


def test_every_record_is_accounted_for_with_dealt_bodies() -> None:
    histories()


def refers_to_a_body_without_an_answer(
    store: Store, streams: int, subject: str, payload: bytes, headers: dict[str, str], expected: int
) -> int:
    number = body_number(subject, streams)
    if not number:
        return store(subject, payload, headers, expected)
    try:
        sequence = store(body_subject(subject, number), payload, headers, None)
    except RetryableError:
        sequence = 1
    return store(subject, b"", {**headers, frame_bodies.HEADER_BODY: f"{number} {sequence} {len(payload)}"}, expected)


def purges_the_oldest_that_stays(kept: Iterable[Message], purge: Callable[[str, str, int], None]) -> None:
    reference = next((found for frame in kept if (found := Reference.of(frame))), None)
    if reference is not None:
        purge(reference.stream, reference.subject, reference.sequence + 1)


def purges_up_to_the_newest(kept: Iterable[Message], purge: Callable[[str, str, int], None]) -> None:
    for reference in filter(None, map(Reference.of, kept)):
        purge(reference.stream, reference.subject, reference.sequence)


@pytest.mark.parametrize(
    ("place", "mistake"),
    [
        ("publish", refers_to_a_body_without_an_answer),
        ("purge_bodies", purges_the_oldest_that_stays),
        ("purge_bodies", purges_up_to_the_newest),
    ],
)
def test_a_mistake_about_bodies_is_found(place: str, mistake: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_bodies, place, mistake)
    with pytest.raises(AssertionError, match="its body"):
        histories()
