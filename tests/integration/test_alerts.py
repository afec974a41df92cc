"""Alerts over real sockets: a web server and mail servers of this process, with certificates and logins."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.alert_servers import PASSWORD, USER, MailServer, Webhook, mail_server, webhook

from resources import alerts
from resources.alerts import Alert, AlertsResource

pytestmark = [
    pytest.mark.integration,
    # The test's mail server, where TLS is there from the first byte and it need not ask for it.
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS:UserWarning"),
]
ALERT = Alert("orders", "halted: sink: the table is missing", "create the table, then launch restart_pipeline")


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


def mail(server: MailServer, security: str, **fields: str) -> AlertsResource:
    """To a server that wants a login over TLS with a certificate of its own."""
    place = {"smtp_host": "127.0.0.1", "smtp_port": server.port, "smtp_security": security, "smtp_ca_file": server.ca_file}
    people = {"sender": "tallyflow@example.org", "receivers": "one@example.org two@example.org"}
    return AlertsResource(**{**place, **people, "smtp_user": USER, "smtp_password": PASSWORD, **fields})


def test_every_receiver_gets_the_pipeline_cause_and_remedy(hook: Webhook, tmp_path: Path) -> None:
    with mail_server("none", tmp_path) as server:
        alerts = mail(server, "none", smtp_user="", webhook_urls=f"{hook.url} {hook.url}")
        assert alerts.send(ALERT) == []
    text = "pipeline orders: halted: sink: the table is missing\nwhat to do: create the table, then launch restart_pipeline"
    assert hook.got == [text, text]
    ((login, is_encrypted, sent),) = server.box.got
    assert (login, is_encrypted) == (None, False)
    assert "To: one@example.org, two@example.org" in sent
    assert "Subject: Tallyflow: pipeline orders: halted: sink: the table is missing" in sent
    assert "what to do: create the table" in sent


def test_a_failing_receiver_is_reported_without_its_address(hook: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    resource = AlertsResource(webhook_urls=f"{hook.server}/wrong/secret {hook.url} http://127.0.0.1:1/secret")
    assert resource.send(ALERT) == ["webhook 1: HTTPStatusError", "webhook 3: ConnectError"]
    assert len(hook.got) == 2
    assert "secret" not in caplog.text
    assert "secret" not in repr(alerts)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_goes_over_tls_after_a_login(security: str, tmp_path: Path) -> None:
    with mail_server(security, tmp_path) as server:
        assert mail(server, security).send(ALERT) == []
    ((login, is_encrypted, sent),) = server.box.got
    assert (login, is_encrypted) == (USER, True)
    assert "what to do: create the table" in sent


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_wrong_password_is_logged_without_it(security: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mail_server(security, tmp_path) as server:
        alerts = mail(server, security, smtp_password="not-the-password")
        assert alerts.send(ALERT) == ["mail: SMTPAuthenticationError"]
    assert server.box.got == []
    assert "an alert of pipeline orders was not sent: mail: SMTPAuthenticationError" in caplog.text
    assert "not-the-password" not in caplog.text + repr(alerts)


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_an_untrusted_certificate_gets_no_login_and_no_mail(security: str, tmp_path: Path) -> None:
    with mail_server(security, tmp_path) as server:
        assert mail(server, security, smtp_ca_file="").send(ALERT) == ["mail: SSLCertVerificationError"]
    assert server.box.got == []


def test_a_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    with mail_server("starttls", tmp_path) as server:
        assert mail(server, "starttls", smtp_host="localhost").send(ALERT) == ["mail: SSLCertVerificationError"]
    assert server.box.got == []


def test_a_mail_server_that_offers_no_tls_gets_nothing(tmp_path: Path) -> None:
    with mail_server("none", tmp_path) as server:
        assert mail(server, "", smtp_user="").send(ALERT) == ["mail: SMTPNotSupportedError"]
    assert server.box.got == []


def test_the_environment_says_how_to_reach_the_mail_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mail_server("tls", tmp_path) as server:
        for name, value in (("PORT", server.port), ("SECURITY", "tls"), ("CA_FILE", server.ca_file), ("PASSWORD", PASSWORD)):
            monkeypatch.setenv(f"TALLYFLOW_ALERT_SMTP_{name}", value)
        assert mail(server, "", smtp_port="", smtp_ca_file="", smtp_password="").send(ALERT) == []
    assert len(server.box.got) == 1


def test_an_unknown_security_is_named_and_sends_no_plain_text(tmp_path: Path) -> None:
    with mail_server("none", tmp_path) as server:
        (failed,) = mail(server, "ssl").send(ALERT)
    assert "smtp_security: must be one of starttls, tls, none" in failed
    assert server.box.got == []


def test_without_receivers_an_alert_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert AlertsResource().send(ALERT) == []
    assert "the table is missing" in caplog.text


@pytest.mark.parametrize(
    ("beginning", "drops", "reported"),
    [
        (b"HTTP/1.1 200 ", [b"O", b"K"], ["webhook 1: TimeoutError"]),
        (b"HTTP/1.1 200 OK\r\n", [b"X", b": y\r\n"], ["webhook 1: TimeoutError"]),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n", [b"x" * 65536], []),
    ],
    ids=["a status in drops", "a head in drops", "a body without end"],
)
def test_a_webhook_that_answers_without_end_holds_nobody(
    monkeypatch: pytest.MonkeyPatch, beginning: bytes, drops: list[bytes], reported: list[str]
) -> None:
    # An answer whose head is whole is no failure, however busy the machine.
    monkeypatch.setattr(alerts, "WEBHOOK_SECONDS", 1.0 if reported else 60.0)
    is_left = threading.Event()

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(beginning)
            for piece in itertools.cycle(drops):
                connection.sendall(piece)
                time.sleep(0.05)
        is_left.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/secret"
        assert AlertsResource(webhook_urls=url).send(ALERT) == reported
        # The connection is ended, and no more of the answer is taken.
        thread.join(60)
        assert is_left.is_set()
