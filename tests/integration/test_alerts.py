"""Alerts over real sockets: a web server and a mail server of this process."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from resources.alerts import Alert, AlertsResource

pytestmark = pytest.mark.integration
ALERT = Alert("orders", "halted: sink: the table is missing", "create the table, then launch restart_pipeline")


@contextmanager
def served(server: socketserver.BaseServer) -> Iterator[int]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]  # type: ignore[index]
    server.shutdown()
    server.server_close()


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, str]]]]:
    got: list[dict[str, str]] = []

    class Receive(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if self.path == "/services/secret" else 500)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with served(HTTPServer(("127.0.0.1", 0), Receive)) as port:
        yield f"http://127.0.0.1:{port}", got


class MailServer(socketserver.StreamRequestHandler):
    """As much of RFC 5321 as a client needs that does not log in."""

    got: list[str]

    def handle(self) -> None:
        self.wfile.write(b"220 local\r\n")
        while line := self.rfile.readline():
            word = line.split()[0].upper() if line.split() else b""
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                text = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.got.append(text.decode())
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


@pytest.fixture
def mail() -> Iterator[tuple[int, list[str]]]:
    MailServer.got = []
    with served(socketserver.ThreadingTCPServer(("127.0.0.1", 0), MailServer)) as port:
        yield port, MailServer.got


def test_every_receiver_gets_the_pipeline_what_is_wrong_and_the_remedy(
    webhook: tuple[str, list[dict[str, str]]], mail: tuple[int, list[str]]
) -> None:
    url, posted = webhook
    port, mails = mail
    alerts = AlertsResource(
        webhook_urls=f"{url}/services/secret {url}/services/secret",
        smtp_host="127.0.0.1",
        smtp_port=port,
        smtp_security="none",
        sender="tallyflow@example.org",
        receivers="one@example.org two@example.org",
    )
    assert alerts.send(ALERT) == []
    text = "pipeline orders: halted: sink: the table is missing\nwhat to do: create the table, then launch restart_pipeline"
    assert posted == [{"text": text}] * 2
    assert len(mails) == 1
    assert "To: one@example.org, two@example.org" in mails[0]
    assert "Subject: Tallyflow: pipeline orders: halted: sink: the table is missing" in mails[0]


def test_a_receiver_that_fails_is_told_without_its_address_and_the_others_get_the_alert(
    webhook: tuple[str, list[dict[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    url, posted = webhook
    alerts = AlertsResource(webhook_urls=f"{url}/wrong/secret {url}/services/secret http://127.0.0.1:1/secret")
    assert alerts.send(ALERT) == ["webhook 1: HTTPStatusError", "webhook 3: ConnectError"]
    assert len(posted) == 2
    assert "secret" not in caplog.text
    assert "secret" not in repr(alerts)


def test_a_mail_server_that_offers_no_tls_gets_nothing(mail: tuple[int, list[str]]) -> None:
    port, mails = mail
    alerts = AlertsResource(smtp_host="127.0.0.1", smtp_port=port, sender="a@example.org", receivers="b@example.org", smtp_password="x")
    assert alerts.send(ALERT) == ["mail: SMTPNotSupportedError"]
    assert mails == []


def test_without_receivers_an_alert_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert AlertsResource().send(ALERT) == []
    assert "the table is missing" in caplog.text
