"""A broker that encrypts and wants a login, as production has it: TLS with a certificate of its own, SASL PLAIN and SCRAM."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from support.pipeline_case import PipelineCase

from pipelines.errors import TallyflowError
from resources.local.java import find_java
from resources.local.kafka.broker import Kafka, render_properties
from resources.local.ports import choose_port
from resources.local.server import Endpoint
from resources.local.stack import Addresses, LocalStack

pytestmark = [pytest.mark.integration, pytest.mark.spark]

STORE_PASSWORD = "changeit"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required user_reader=right;"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


def keytool(*arguments: str) -> None:
    command = [str(find_java().executable.parent / "keytool"), *arguments, "-storepass", STORE_PASSWORD]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def broker(stack: LocalStack, brief_brokers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Addresses, str, Path]]:
    """(addresses with that in the clear, address with TLS and login, the certificate to trust) of a broker of our own."""
    directory = tmp_path_factory.mktemp("secure")
    store, certificate = directory / "broker.p12", directory / "broker.pem"
    name = ["-alias", "broker", "-keystore", str(store)]
    keytool("-genkeypair", *name, "-keyalg", "RSA", "-dname", "CN=127.0.0.1", "-ext", "SAN=IP:127.0.0.1", "-storetype", "PKCS12")
    keytool("-exportcert", "-rfc", *name, "-file", str(certificate))
    secure = f"127.0.0.1:{choose_port(())}"

    def with_login(endpoint: Endpoint, log_directory: Path, controller_port: int) -> str:
        plain = f"CLIENT://{endpoint.address}"
        text = render_properties(endpoint, log_directory, controller_port)
        text = text.replace(f"listeners={plain},", f"listeners={plain},SECURE://{secure},")
        text = text.replace(f"advertised.listeners={plain}", f"advertised.listeners={plain},SECURE://{secure}")
        text = text.replace("protocol.map=", "protocol.map=SECURE:SASL_SSL,")
        return text + (
            f"ssl.keystore.location={store}\nssl.keystore.password={STORE_PASSWORD}\n"
            "listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512\n"
            f"listener.name.secure.plain.sasl.jaas.config={PLAIN}\n"
            f"listener.name.secure.scram-sha-512.sasl.jaas.config={SCRAM}\n"
        )

    servers = LocalStack(directory / "home", kinds=[Kafka(with_login)])
    try:
        addresses = servers.up()
        user = UserScramCredentialUpsertion("reader", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"right")
        admin = AdminClient({**addresses.kafka_client, "log_level": 0})
        admin.alter_user_scram_credentials([user])["reader"].result(30)
        yield addresses, secure, certificate
    finally:
        servers.down()


@pytest.fixture
def secure_case(case: PipelineCase, broker: tuple[Addresses, str, Path]) -> PipelineCase:
    """A case whose records are on that broker; it sends and looks in the clear, the pipeline uses the other address."""
    case.addresses = replace(case.addresses, kafka_bootstrap=broker[0].kafka_bootstrap, kafka_password=broker[0].kafka_password)
    case.admin = AdminClient({"log_level": 0, **case.addresses.kafka_client})
    case.create_topic()
    return case


def connect(case: PipelineCase, broker: tuple[Addresses, str, Path], **changes: Any) -> None:
    _, address, certificate = broker
    login = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "reader", "password": "right", "root_ca": str(certificate)}
    case.write_file(lambda document: document["sources"][0].update(connection_params={"brokers": [address], **login, **changes}))


@pytest.mark.parametrize(("mechanism", "way"), [("PLAIN", "in tasks"), ("SCRAM-SHA-512", "in the runner")], indirect=["way"])
def test_every_record_arrives_over_tls_with_a_login(
    secure_case: PipelineCase, way: None, broker: tuple[Addresses, str, Path], mechanism: str
) -> None:
    connect(secure_case, broker, mechanism=mechanism)
    secure_case.send_events(2000, bad_every=100)
    secure_case.warm_run()
    secure_case.check()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_at_once_and_not_shown(
    secure_case: PipelineCase, broker: tuple[Addresses, str, Path], mechanism: str
) -> None:
    connect(secure_case, broker, mechanism=mechanism, password="canary-7d1f")
    with pytest.raises(TallyflowError, match="check the credentials and rights in `connection_params`") as caught:
        secure_case.warm_run(connect_seconds=0)
    assert "canary-7d1f" not in str(caught.value)


def test_an_untrusted_certificate_is_named_as_the_reason(secure_case: PipelineCase, broker: tuple[Addresses, str, Path]) -> None:
    connect(secure_case, broker, root_ca=None)
    with pytest.raises(TallyflowError, match="certificate verify failed"):
        secure_case.warm_run(connect_seconds=0)
