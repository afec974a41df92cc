"""A connection to NATS, driven from ordinary threads, and what it offers without a stream: requests and notes."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import NoRespondersError

from pipelines.config import NatsConnection
from pipelines.connectors.nats.errors import TABLE_CLASSES, map_error, too_large
from pipelines.connectors.nats.loop_work import LoopWork
from pipelines.connectors.nats.settings import NoTlsError, connection_options, new_client
from pipelines.connectors.nats.wire import Exchange, Wire, is_plain, taken_over
from pipelines.error_classes import ErrorClasses
from pipelines.errors import HaltError, RetryableError, TallyflowError

T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 5.0
REQUEST_TIMEOUT_SECONDS = 5.0
_LAST_TASKS_SECONDS = 1.0
# A connection silenced by a firewall or a lost host is replaced within 12 s. The client's own defaults: 6 min.
_PINGS = {"ping_interval": 4.0, "max_outstanding_pings": 2}


class Connection:
    """A connection to one NATS server; thread-safe.

    `classes`: overrides of the error classes; without it the error table applies.

    Every method raises RetryableError if the server is away or the outcome is unknown (after REQUEST_TIMEOUT_SECONDS; the client reconnects
    by itself), ConflictError for a lost compare-and-set, and HaltError for the rest.
    """

    def __init__(self, settings: NatsConnection, name: str = "tallyflow", classes: ErrorClasses = TABLE_CLASSES) -> None:
        self._settings = settings
        self._name = name
        self._classes = classes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats", daemon=True)
        self._thread.start()
        self._client: Client | None = None
        self._closed: asyncio.Future[None]
        """Done once the client is closed: nothing more is answered."""
        self._connecting = threading.Lock()
        self._wire: Wire | None = None
        self._wiring = threading.Lock()
        self._wire_failures, self._wire_failure = 0, ""

    def connect(self) -> Self:
        """Connect now, so that a wrong address or password is noticed before anything starts. Idempotent."""
        with self._connecting:
            if self._client is None:
                self._client = self._wait(self._doing, self._connect(), CONNECT_TIMEOUT_SECONDS + 1)
        return self

    @property
    def _doing(self) -> str:
        return f"connecting to NATS at {self._settings.url}"

    def _plain_wire(self) -> Wire | None:
        """Return the connection for frames and requests, made anew if it was lost; None if this one encrypts."""
        client, failures = self._connected, self._wire_failures
        with self._wiring:
            if self._wire is not None and not self._wire.is_closed:
                return self._wire
            if not is_plain(client):
                return None
            if self._wire_failures > failures:
                # Another thread has tried while this one waited: where nobody answers, each would wait for all before it.
                raise RetryableError(self._wire_failure)
            try:
                self._wire = self._wait(self._doing, self._open_wire(), CONNECT_TIMEOUT_SECONDS + 1)
            except RetryableError as error:
                self._wire_failures, self._wire_failure = self._wire_failures + 1, str(error)
                raise
            return self._wire

    async def _open_wire(self) -> Wire:
        async def ignore() -> None:
            pass

        return await taken_over(await self._open(f"{self._name} frames", ignore))

    def check_payload(self, least_bytes: int) -> None:
        """Raise an error, a HaltError unless the file says otherwise, if the server takes no message of so many bytes, headers included."""
        taken_bytes = self._connected.max_payload
        if taken_bytes < least_bytes:
            raise too_large(f"asking for messages of {least_bytes} bytes, where NATS takes {taken_bytes}", self._classes)

    def close(self) -> None:
        """Close the connection. Raise nothing: the caller has its result, or a more useful error."""
        if self._wire is not None:
            self._wire.close()
        if self._client is not None:
            with suppress(TallyflowError):
                self._wait("closing the NATS connection", _end(self._client))
            self._client = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=REQUEST_TIMEOUT_SECONDS)

    async def _connect(self) -> Client:
        self._closed = closed = asyncio.get_running_loop().create_future()

        async def on_closed() -> None:
            closed.set_result(None)

        return await self._open(self._name, on_closed)

    async def _open(self, name: str, on_closed: Callable[[], Awaitable[None]]) -> Client:
        doing = self._doing
        try:
            options = connection_options(self._settings)
        except OSError as error:
            raise HaltError(f"{doing}: {error}; check the files that `nats` names in the pipeline file") from error
        refused: list[Exception] = []
        all_refused = asyncio.Event()

        async def on_error(error: Exception) -> None:
            if not connecting.done():
                refused.append(error)
            if len(refused) >= len(self._settings.servers):
                all_refused.set()

        client = new_client(self._settings)
        connecting = asyncio.ensure_future(
            client.connect(
                list(self._settings.servers),
                name=name,
                connect_timeout=CONNECT_TIMEOUT_SECONDS,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,
                error_cb=on_error,
                closed_cb=on_closed,
                **_PINGS,
                **options,
            )
        )
        # The client itself would try its servers forever: once each has refused, the caller waits and reports why.
        giving_up = asyncio.ensure_future(all_refused.wait())
        await asyncio.wait({connecting, giving_up}, timeout=CONNECT_TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        giving_up.cancel()
        if connecting.done():
            connecting.result()
            return client
        connecting.cancel()
        if any(isinstance(error, NoTlsError) for error in refused):
            raise HaltError(
                f"{doing}: the server offers no TLS, and nothing was sent to it; turn TLS on at the server, or ask for none in the "
                "pipeline file: neither `nats.tls` nor a tls:// URL"
            )
        if any("authorization" in str(error).lower() for error in refused):
            raise HaltError(f"{doing}: the server refused the credentials; check `nats` in the pipeline file")
        reason = refused[-1] if refused else f"no answer within {CONNECT_TIMEOUT_SECONDS:.0f} s"
        raise RetryableError(f"{doing}: NATS did not answer ({reason})")

    def _wait(self, doing: str, work: Coroutine[Any, Any, T], timeout: float = 2 * REQUEST_TIMEOUT_SECONDS) -> T:
        return self._result(doing, LoopWork(self._loop, work), timeout)

    def _result(self, doing: str, work: LoopWork[T] | Exchange[T], timeout: float = 2 * REQUEST_TIMEOUT_SECONDS) -> T:
        try:
            return work.result(timeout)
        except TallyflowError:
            raise
        except Exception as error:
            work.cancel()
            raise map_error(doing, error, self._classes) from error

    @property
    def _connected(self) -> Client:
        self.connect()
        assert self._client is not None
        return self._client

    def on_message(self, subject: str, callback: Callable[[], None], containing: bytes = b"") -> Callable[[], None]:
        """Call `callback` (from the connection's thread) on every publish to `subject` that contains these bytes.

        Return the function that stops it.

        A plain subscription: it may miss messages around a reconnect, so callers also poll now and then.
        """

        async def received(message: Msg) -> None:
            if containing in message.data:
                callback()

        return self._subscribed(subject, received)

    def _subscribed(self, subject: str, received: Callable[[Msg], Awaitable[None]]) -> Callable[[], None]:
        client = self._connected

        async def subscribe() -> Subscription:
            made = await client.subscribe(subject, cb=received)
            # What a wire sends from now on comes behind it.
            await client.flush(REQUEST_TIMEOUT_SECONDS)
            return made

        subscription = self._wait(f"subscribing to {subject}", subscribe())
        return lambda: self._wait(f"unsubscribing from {subject}", subscription.unsubscribe())

    def request(self, subject: str, payload: bytes, seconds: float = REQUEST_TIMEOUT_SECONDS) -> bytes:
        """Return the answer of the connection that serves `subject`. Raise RetryableError if none comes within `seconds`."""
        client = self._connected

        async def ask() -> Msg:
            try:
                return await client.request(subject, payload, timeout=seconds)
            except NoRespondersError as error:
                raise RetryableError(f"asking {subject}: nobody answers there") from error

        return bytes(self._wait(f"asking {subject}", ask()).data)

    def serve(self, subject: str, answer: Callable[[bytes], bytes]) -> Callable[[], None]:
        """Answer requests to `subject` until the connection is closed; return the function that ends it before.

        `answer` runs on a thread of its own, beside those of other requests, and raises nothing.
        """
        answering: set[asyncio.Task[None]] = set()

        async def respond(message: Msg) -> None:
            # An answer that cannot be sent is one that does not come.
            with suppress(Exception):
                await message.respond(await asyncio.get_running_loop().run_in_executor(None, answer, message.data))

        async def received(message: Msg) -> None:
            # The client hands over the next request when this returns.
            task = asyncio.create_task(respond(message))
            answering.add(task)
            task.add_done_callback(answering.discard)

        return self._subscribed(subject, received)

    def notify(self, subject: str) -> None:
        """Publish an empty message outside every stream, for `on_message` elsewhere; it may be lost."""
        client = self._connected

        async def send() -> None:
            await client.publish(subject)
            await client.flush()

        self._wait(f"notifying {subject}", send())


async def _end(client: Client) -> None:
    """Close the client; let what is under way end with it, for a moment: behind the end of the loop its caller would wait all its time."""
    await client.close()
    if under_way := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(under_way, timeout=_LAST_TASKS_SECONDS)
