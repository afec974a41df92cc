"""What alerts go to, on loopback: a web server that takes webhooks, and a mail server with TLS and logins as real ones have them."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

USER, PASSWORD = "tallyflow", "only-for-the-mail-server"


@dataclass
class Webhook:
    """`url` takes what is posted into `got`; any other path of the server answers 500."""

    server: str
    got: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.server}/services/secret"


@contextmanager
def webhook() -> Iterator[Webhook]:
    class Receive(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.got.append(posted["text"])
            self.send_response(200 if self.path == "/services/secret" else 500)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Receive)
    made = Webhook(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


class Mailbox:
    """Keeps what a mail server was given: (who had logged in, over TLS or not, the mail)."""

    def __init__(self) -> None:
        self.got: list[tuple[str | None, bool, str]] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        is_encrypted = session.ssl is not None or server.transport.get_extra_info("ssl_object") is not None
        login = session.auth_data.login.decode() if session.authenticated else None
        self.got.append((login, is_encrypted, (envelope.original_content or b"").decode()))
        return "250 ok"


def _login(server: SMTP, session: Session, envelope: Envelope, mechanism: str, login: Any) -> AuthResult:
    is_right = isinstance(login, LoginPassword) and (login.login, login.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=is_right, handled=False, auth_data=login)


@dataclass(frozen=True)
class MailServer:
    """A mail server: its port, the file with the certificate to trust, and what it was given."""

    port: str
    ca_file: str
    box: Mailbox


class _OnAnyPort(Controller):
    def _trigger_server(self) -> None:
        # Looks whether the server answers, at the port that was asked for: 0.
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextmanager
def mail_server(security: str, directory: Path) -> Iterator[MailServer]:
    """`starttls`: offered, and asked for before the login; `tls` from the first byte; both want a login. `none`: neither, and no login."""
    authority, box = trustme.CA(), Mailbox()
    ca_file = directory / "mail-ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    tls: dict[str, Any] = {
        "starttls": {"tls_context": context, "require_starttls": True},
        # Its own word for a session that is encrypted from the start is not set by ssl_context: logins are allowed all the same.
        "tls": {"ssl_context": context, "auth_require_tls": False},
        "none": {},
    }[security]
    login = {"authenticator": _login, "auth_required": True} if security != "none" else {}
    controller = _OnAnyPort(box, hostname="127.0.0.1", port=0, **tls, **login)
    controller.start()
    try:
        yield MailServer(str(controller.port), str(ca_file), box)
    finally:
        controller.stop()
