"""Alerts as a Dagster resource: to a Slack-compatible webhook, by e-mail, or both. A failed alert is logged and fails nothing."""

import asyncio
import logging
import smtplib
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import EmailMessage
from typing import ClassVar

import httpx
from pydantic import Field

from pipelines.errors import ConfigurationError, Fault, TallyflowError
from resources.connection import ConnectionResource

_PORTS = {"starttls": "587", "tls": "465", "none": "25"}
"""Usual ports of a mail server, by how the connection is secured."""
SEND_TIMEOUT_SECONDS = 2.0
"""Limit of each step of sending: connecting, a piece that is sent or received."""
WEBHOOK_SECONDS = 5.0
"""Limit of a webhook in total, so that a slowly dripping answer holds nothing up any longer."""
# The address of a webhook is a secret, and httpx logs the address of each request.
logging.getLogger("httpx").setLevel(logging.WARNING)
_LOG = logging.getLogger("tallyflow.alerts")


@dataclass(frozen=True)
class Alert:
    """An alert: the pipeline, its fault (which names the leg), and the next step."""

    pipeline: str
    what: str
    remedy: str

    @property
    def subject(self) -> str:
        return f"Tallyflow: pipeline {self.pipeline}: {self.what.splitlines()[0][:120]}"

    @property
    def text(self) -> str:
        return f"pipeline {self.pipeline}: {self.what}\nwhat to do: {self.remedy}"


class AlertsResource(ConnectionResource):
    """The receivers of alerts. Without a webhook and without receivers alerts are only logged. Give secrets as `dg.EnvVar`."""

    variables: ClassVar[dict[str, str]] = {
        "webhook_urls": "TALLYFLOW_ALERT_WEBHOOKS",
        "smtp_host": "TALLYFLOW_ALERT_SMTP_HOST",
        "smtp_port": "TALLYFLOW_ALERT_SMTP_PORT",
        "smtp_security": "TALLYFLOW_ALERT_SMTP_SECURITY",
        "smtp_ca_file": "TALLYFLOW_ALERT_SMTP_CA_FILE",
        "smtp_user": "TALLYFLOW_ALERT_SMTP_USER",
        "smtp_password": "TALLYFLOW_ALERT_SMTP_PASSWORD",
        "sender": "TALLYFLOW_ALERT_SENDER",
        "receivers": "TALLYFLOW_ALERT_RECEIVERS",
    }

    webhook_urls: str = Field(default="", repr=False, description="Slack-compatible webhooks, separated by spaces; they are secrets.")
    smtp_host: str = Field(default="", description="Mail server.")
    smtp_port: str = Field(default="", description="Its port. Default: 587 with `starttls`, 465 with `tls`, 25 with `none`.")
    smtp_security: str = Field(
        default="", description="`starttls` (default; a server that does not offer it gets nothing), `tls`, or `none`: all in the clear."
    )
    smtp_ca_file: str = Field(default="", description="PEM file with the certificates to trust. Default: the system's.")
    smtp_user: str = Field(default="", description="User, where the server wants a login.")
    smtp_password: str = Field(default="", repr=False, description="Password of the user, as `dg.EnvVar`.")
    sender: str = Field(default="", description="Address that mails come from.")
    receivers: str = Field(default="", description="Addresses that mails go to, separated by spaces.")

    def send(self, alert: Alert) -> list[str]:
        """Send to all receivers in parallel; return the failures, without addresses that are secrets. Never raise."""
        _LOG.warning(alert.text)
        ways: list[tuple[str, Callable[[], None]]] = [
            (f"webhook {number}", lambda url=url: self._post(url, alert))  # type: ignore[misc]
            for number, url in enumerate(self.value("webhook_urls").split(), start=1)
        ]
        if self.value("receivers"):
            ways.append(("mail", lambda: self._mail(alert)))
        if not ways:
            return []
        with ThreadPoolExecutor(len(ways), "alert") as pool:
            sent = [(name, pool.submit(way)) for name, way in ways]
            failed = [f"{name}: {_shown(error)}" for name, one in sent if (error := one.exception()) is not None]
        for one in failed:
            _LOG.error("an alert of pipeline %s was not sent: %s", alert.pipeline, one)
        return failed

    def _post(self, url: str, alert: Alert) -> None:
        asyncio.run(asyncio.wait_for(_posted(url, alert.text), WEBHOOK_SECONDS))

    def _mail(self, alert: Alert) -> None:
        message = EmailMessage()
        message["Subject"], message["From"] = alert.subject, self.value("sender")
        message["To"] = ", ".join(self.value("receivers").split())
        message.set_content(alert.text)
        security = self.value("smtp_security") or "starttls"
        if security not in _PORTS:
            raise ConfigurationError("alerts", [Fault("smtp_security", f"must be one of {', '.join(_PORTS)}")])
        host, port = self.value("smtp_host"), int(self.value("smtp_port") or _PORTS[security])
        context = ssl.create_default_context(cafile=self.value("smtp_ca_file") or None)
        connection = (
            smtplib.SMTP_SSL(host, port, timeout=SEND_TIMEOUT_SECONDS, context=context)
            if security == "tls"
            else smtplib.SMTP(host, port, timeout=SEND_TIMEOUT_SECONDS)
        )
        with connection:
            if security == "starttls":
                connection.starttls(context=context)
            if self.value("smtp_user"):
                connection.login(self.value("smtp_user"), self.value("smtp_password"))
            connection.send_message(message)


async def _posted(url: str, text: str) -> None:
    """Post to a webhook. Raise httpx.HTTPError. Only the head of the answer is read: the body may be of any length."""
    async with httpx.AsyncClient(timeout=SEND_TIMEOUT_SECONDS) as client, client.stream("POST", url, json={"text": text}) as answer:
        answer.raise_for_status()


def _shown(error: BaseException) -> str:
    """Return the text of a failure: a driver's own message may hold addresses that are secrets, ours hold none."""
    return str(error) if isinstance(error, TallyflowError) else type(error).__name__
