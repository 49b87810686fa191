"""librdkafka's configuration from the properties of Kafka's Java client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kwire.client.security import jaas_config
from kwire.pipeline.client_settings import input_client, librdkafka_settings
from kwire.pipeline.config import ConfigError, Input
from kwire.testing import Broker, Tls
from kwire.testing.tls import Certificates, ClientTls

SCRAM = "SCRAM-SHA-256"


def stores(client: ClientTls, directory: Path) -> dict[str, str]:
    """Write the certificates of a client to files, and return the Java client's keys for them."""
    (directory / "ca.pem").write_text(client.authority)
    (directory / "client.pem").write_text(client.key + client.certificate)
    return {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "client.pem"),
    }


@pytest.fixture(scope="module")
def client() -> ClientTls:
    return Certificates(Tls()).client("alice", None)


@pytest.mark.parametrize("users", [None, {"alice": "alice-secret"}])
def test_librdkafka_connects_with_the_properties_of_java(users: dict[str, str] | None) -> None:
    with Broker(tls=Tls("required"), users=users) as broker:
        config = broker.client_config(certificate="alice")
        settings: Any = librdkafka_settings("mirror.client", config.java)
        assert "ssl.truststore.certificates" not in settings
        assert AdminClient(settings).list_topics(timeout=10).brokers


def test_stores_of_an_input_are_loaded(client: ClientTls, tmp_path: Path) -> None:
    properties = {"bootstrap.servers": "h:1", **stores(client, tmp_path)}
    options = {f"Kafka.{key}": value for key, value in properties.items()}
    options |= {"kafka.isolation.level": "read_committed", "kafka.ssl.endpoint.identification.algorithm": ""}
    input_ = Input("kafka", options)
    found = input_client(input_, "mirror.source", {"client.id": "me"})
    assert found == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SSL",
        "ssl.ca.pem": client.authority,
        "ssl.certificate.pem": client.certificate,
        "ssl.key.pem": client.key,
        "ssl.endpoint.identification.algorithm": "none",
        "client.id": "me",
    }
    own = {"ssl.ca.location": "ca.pem"}
    assert input_client(input_, "mirror.source", own) == {
        "bootstrap.servers": "h:1",
        "security.protocol": "SSL",
        **own,
    }
    assert input_client(Input("kwire", options), "mirror.source", own) == own


def test_credentials_of_an_input_are_parsed() -> None:
    options = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": SCRAM}
    options["kafka.sasl.jaas.config"] = jaas_config(SCRAM, "alice", "alice-secret")
    expected = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": SCRAM,
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
    }
    assert input_client(Input("kafka", options), "t", {}) == expected
    own = {"sasl.username": "bob", "sasl.password": "bob-secret", "sasl.mechanism": "PLAIN"}
    assert input_client(Input("kafka", options), "t", own) == {"security.protocol": "SASL_PLAINTEXT", **own}
    options |= {"kafka.sasl.mechanism": "OAUTHBEARER"}
    assert input_client(Input("kafka", options), "t", {}) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
    }


def test_settings_of_librdkafka_are_kept() -> None:
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "ca.pem",
        "ssl.keystore.location": "alice.p12",
        "ssl.keystore.password": "secret",
        "sasl.username": "alice",
    }
    assert librdkafka_settings("t", settings) == settings


def test_stores_have_no_effect_without_tls() -> None:
    unused = {"ssl.truststore.location": "nowhere", "ssl.keystore.location": "nowhere", "client.id": "me"}
    assert librdkafka_settings("t", unused) == {"client.id": "me"}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"ssl.truststore.location": "/nowhere"},
            "t: ssl.truststore.location=/nowhere cannot be read: No such file or directory",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": SCRAM, "sasl.jaas.config": "{"},
            "t: sasl.jaas.config: ",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": SCRAM,
                "sasl.jaas.config": jaas_config(SCRAM, "id", "hmac", is_token=True),
            },
            "t: sasl.jaas.config has a delegation token, which librdkafka does not support",
        ),
    ],
)
def test_an_error_names_the_key(
    changes: dict[str, str], error: str, client: ClientTls, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        librdkafka_settings("t", {**stores(client, tmp_path), **changes})
    assert str(caught.value).startswith(error)
