"""What a source's `connection_params` become for librdkafka."""

import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from pipelines.config import KafkaSource
from pipelines.connectors.kafka.client import KafkaTopic
from pipelines.connectors.kafka.settings import client_settings
from pipelines.errors import HaltError

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"


def source(**connection: Any) -> KafkaSource:
    document = {
        "type": "kafka",
        "topic": "orders",
        "connection_params": {"brokers": ["k1:9092", "k2:9092"], **connection},
        "schema_fields": [{"name": "id", "type": "int"}],
    }
    return KafkaSource.model_validate(document)


LOGIN = {"mechanism": "SCRAM-SHA-512", "username": "reader", "password": "secret-7d1f"}
SASL = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "reader", "sasl.password": "secret-7d1f"}

CONNECTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {"security.protocol": "PLAINTEXT"}),
    "a mechanism without a SASL protocol is not used": (LOGIN, {"security.protocol": "PLAINTEXT"}),
    "login": ({"protocol": "SASL_PLAINTEXT", **LOGIN}, {"security.protocol": "SASL_PLAINTEXT", **SASL}),
    "login over TLS": (
        {"protocol": "SASL_SSL", **LOGIN},
        {"security.protocol": "SASL_SSL", **SASL, "enable.ssl.certificate.verification": True},
    ),
    "PLAIN over unverified TLS": (
        {"protocol": "SASL_SSL", **LOGIN, "mechanism": "PLAIN", "skip_tls_verification": True},
        {"security.protocol": "SASL_SSL", **SASL, "sasl.mechanism": "PLAIN", "enable.ssl.certificate.verification": False},
    ),
    "TLS with a certificate as text": (
        {"protocol": "SSL", "root_ca": CERTIFICATE},
        {"security.protocol": "SSL", "enable.ssl.certificate.verification": True, "ssl.ca.pem": CERTIFICATE},
    ),
    "TLS with a certificate as a path": (
        {"protocol": "SSL", "root_ca": "ca.pem"},
        {"security.protocol": "SSL", "enable.ssl.certificate.verification": True, "ssl.ca.location": "ca.pem"},
    ),
    "TLS with a certificate as base64 of the text": (
        {"protocol": "SSL", "root_ca": b64encode(CERTIFICATE.encode()).decode()},
        {"security.protocol": "SSL", "enable.ssl.certificate.verification": True, "ssl.ca.pem": CERTIFICATE},
    ),
    "mutual TLS, text and path": (
        {"protocol": "SSL", "client_cert": "client.pem", "client_key": PRIVATE_KEY},
        {
            "security.protocol": "SSL",
            "enable.ssl.certificate.verification": True,
            "ssl.certificate.location": "client.pem",
            "ssl.key.pem": PRIVATE_KEY,
        },
    ),
    "Kerberos": (
        {
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "GSSAPI",
            "username": "reader@EXAMPLE.ORG",
            "kerberos_service_name": "brokers",
            "kerberos_keytab": "reader.keytab",
        },
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "brokers",
            "sasl.kerberos.principal": "reader@EXAMPLE.ORG",
            "sasl.kerberos.keytab": "reader.keytab",
        },
    ),
    "Kerberos, with the realm apart": (
        {
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "GSSAPI",
            "username": "reader",
            "kerberos_service_name": "brokers",
            "kerberos_keytab": "reader.keytab",
            "kerberos_realm": "EXAMPLE.ORG",
        },
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "brokers",
            "sasl.kerberos.principal": "reader@EXAMPLE.ORG",
            "sasl.kerberos.keytab": "reader.keytab",
        },
    ),
    "OIDC": (
        {
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "OAUTHBEARER",
            "oauth_token_endpoint_url": "https://login.example.org/token",
            "oauth_client_id": "tallyflow",
            "oauth_client_secret": "secret-7d1f",
            "oauth_scope": "kafka",
            "oauth_extensions": "logicalCluster=lkc-1",
        },
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token",
            "sasl.oauthbearer.client.id": "tallyflow",
            "sasl.oauthbearer.client.secret": "secret-7d1f",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1",
        },
    ),
}
USUAL = {"client.id", "socket.keepalive.enable", "reconnect.backoff.ms", "reconnect.backoff.max.ms"}


@pytest.mark.parametrize(("connection", "expected"), CONNECTIONS.values(), ids=CONNECTIONS.keys())
def test_connection_params_become_exactly_these_settings(connection: dict[str, Any], expected: dict[str, Any]) -> None:
    found = client_settings(source(**connection))
    assert {name: value for name, value in found.items() if name not in USUAL} == {"bootstrap.servers": "k1:9092,k2:9092", **expected}


@pytest.mark.parametrize("name", ["plain", "login", "login over TLS", "OIDC"])
def test_librdkafka_takes_the_settings(name: str) -> None:
    settings = client_settings(source(**CONNECTIONS[name][0]))
    Consumer({**settings, "group.id": "none", "log_level": 0}).close()


@pytest.mark.parametrize(
    "connection",
    [
        {"protocol": "SSL", "root_ca": "no-such-file.pem"},
        {"protocol": "SSL", "root_ca": CERTIFICATE},
        {"protocol": "SSL", "client_cert": CERTIFICATE, "client_key": PRIVATE_KEY},
    ],
    ids=["missing file", "no certificate in the text", "no key in the text"],
)
def test_settings_refused_by_librdkafka_halt_with_its_reason(connection: dict[str, Any]) -> None:
    with pytest.raises(HaltError, match=r"connecting to Kafka at k1:9092,k2:9092: .*; check `connection_params` of the source"):
        KafkaTopic(source(**connection))


def test_a_keytab_given_as_text_becomes_a_private_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRB5_CONFIG", raising=False)
    keytab, configuration = b"\x05\x02 entries", "[libdefaults]\n  default_realm = EXAMPLE.ORG\n"
    login = {"protocol": "SASL_PLAINTEXT", "mechanism": "GSSAPI", "username": "reader", "kerberos_service_name": "kafka"}
    given = source(**login, kerberos_keytab=b64encode(keytab).decode(), kerberos_config=configuration)
    path = Path(str(client_settings(given)["sasl.kerberos.keytab"]))
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (keytab, 0o600)
    assert Path(os.environ["KRB5_CONFIG"]).read_text() == configuration
    assert client_settings(given)["sasl.kerberos.keytab"] == str(path)


def test_a_secret_does_not_show_in_the_source() -> None:
    assert "secret-7d1f" not in repr(source(protocol="SASL_SSL", **LOGIN))
