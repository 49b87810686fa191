"""librdkafka's configuration from the properties of Kafka's Java client.

Spark's Kafka source and sink are Java clients, and the other parts of a job use librdkafka. librdkafka
rejects Java's key stores, trust stores and JAAS configurations. So this module translates them, and a user
configures both clients with the same properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kwire.broker.security.pem import CERTIFICATE, PemBlock
from kwire.broker.security.tls_stores import MAX_STORE_BYTES, load_key_store, load_trust_store
from kwire.client.security import parse_credentials
from kwire.pipeline.config import ConfigError, Input
from kwire.wire.mechanisms import MECHANISMS

BOOTSTRAP: Final = "bootstrap.servers"
PROTOCOL: Final = "security.protocol"
MECHANISM: Final = "sasl.mechanism"
JAAS: Final = "sasl.jaas.config"
IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
PREFIX: Final = "kafka."
JAVA_STORES: Final = (
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
"""Keys of stores that librdkafka does not have."""
SHARED_STORES: Final = ("ssl.keystore.location", "ssl.keystore.password", "ssl.key.password")
"""Keys of stores that librdkafka has, too. Without one of `JAVA_STORES`, librdkafka loads these stores."""
FROM_INPUT: Final = (BOOTSTRAP, PROTOCOL, MECHANISM, JAAS, IDENTIFICATION, *JAVA_STORES, *SHARED_STORES)


def input_client(input_: Input, table: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's configuration for the cluster of an input.

    It has the addresses and the security of the input's options, and the settings `given` in a table. If the
    table has a key of TLS (or SASL), all keys of TLS (or SASL) are taken from it. The result has no
    `bootstrap.servers` if the input is a data directory and `given` has none. Raises ConfigError.
    """
    found: dict[str, str] = {}
    if input_.format == "kafka":
        options = {name.lower(): value for name, value in input_.options.items()}
        replaced = tuple(area for area in ("ssl.", "sasl.") if any(key.startswith(area) for key in given))
        found = {
            key: options[PREFIX + key]
            for key in FROM_INPUT
            if PREFIX + key in options and not key.startswith(replaced)
        }
        if found.get(MECHANISM) not in MECHANISMS:  # librdkafka needs other settings, such as a callback
            found.pop(JAAS, None)
    return librdkafka_settings(table, {**found, **given})


def librdkafka_settings(table: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Translate the stores and the JAAS configuration in a client's properties, and keep all other keys.

    The stores are loaded, so their files need not exist on other machines of a Spark cluster. `table` is the
    name of the properties in messages. Raises ConfigError if they are invalid.
    """
    found = dict(properties)
    protocol = properties.get(PROTOCOL, "").strip().upper()
    if properties.get(IDENTIFICATION) == "":
        found[IDENTIFICATION] = "none"
    try:
        if any(key in properties for key in JAVA_STORES):
            for key in (*JAVA_STORES, *SHARED_STORES):
                found.pop(key, None)
            if protocol.endswith("SSL"):
                found |= _stores(properties)
        if found.pop(JAAS, None) is not None and protocol.startswith("SASL"):
            credentials = parse_credentials(properties)
            if credentials.is_token:
                raise ValueError(f"{JAAS} has a delegation token, which librdkafka does not support")
            found |= {"sasl.username": credentials.username, "sasl.password": credentials.password}
    except ValueError as error:
        raise ConfigError(f"{table}: {error}") from None
    return found


def _stores(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the content of the stores. Raises TlsConfigError."""
    found = {}
    trusted = load_trust_store(properties, _read_file)
    if trusted is not None:
        found["ssl.ca.pem"] = _pem(trusted.certificates)
    own = load_key_store(properties, _read_file)
    if own is not None:
        key = own.keys[0]
        found |= {"ssl.certificate.pem": _pem(key.chain), "ssl.key.pem": key.block.text()}
        if key.password is not None:
            found["ssl.key.password"] = key.password
    return found


def _pem(certificates: tuple[bytes, ...]) -> str:
    return "".join(PemBlock(CERTIFICATE, one).text() for one in certificates)


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_STORE_BYTES + 1)
