"""Kafka as a Dagster resource."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, cast

from confluent_kafka.admin import AdminClient
from pydantic import Field

from pipelines.config import KafkaConnection
from pipelines.connectors.kafka.settings import connection_settings
from resources.connection import ConnectionResource


class KafkaResource(ConnectionResource):
    """The brokers that `${KAFKA_BOOTSTRAP}` in pipeline files means, and a client for them. Give secrets as `dg.EnvVar`."""

    variables: ClassVar[dict[str, str]] = {
        "bootstrap_servers": "KAFKA_BOOTSTRAP",
        "security_protocol": "KAFKA_SECURITY_PROTOCOL",
        "sasl_mechanism": "KAFKA_SASL_MECHANISM",
        "sasl_username": "KAFKA_SASL_USERNAME",
        "sasl_password": "KAFKA_SASL_PASSWORD",
    }

    bootstrap_servers: str = Field(default="", description="`host:port`, several separated by commas. Empty: KAFKA_BOOTSTRAP.")
    security_protocol: str = Field(
        default="", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. Empty: KAFKA_SECURITY_PROTOCOL, else PLAINTEXT."
    )
    sasl_mechanism: str = Field(default="", description="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512... Empty: KAFKA_SASL_MECHANISM.")
    sasl_username: str = Field(default="", description="User name. Empty: KAFKA_SASL_USERNAME.")
    sasl_password: str = Field(default="", repr=False, description="Password, as `dg.EnvVar`. Empty: KAFKA_SASL_PASSWORD.")

    @contextmanager
    def get_client(self) -> Iterator[AdminClient]:
        """Yield a confluent-kafka AdminClient. Raise pydantic's ValidationError for values that no Kafka connection can have."""
        values = {
            "brokers": [self.value("bootstrap_servers")],
            "protocol": self.value("security_protocol") or "PLAINTEXT",
            "mechanism": self.value("sasl_mechanism") or "NO_AUTH",
            "username": self.value("sasl_username"),
            "password": self.value("sasl_password") or None,
        }
        settings = connection_settings(KafkaConnection.model_validate(values))
        # It connects by itself, and has nothing to close.
        yield AdminClient(cast(dict[str, str | int | float | bool], {**settings, "log_level": 0}))
