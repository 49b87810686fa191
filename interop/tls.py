"""A broker with TLS listeners in addition to its plaintext listener, and the settings of clients."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from interop.brokers import Broker, free_port
from interop.certificates import LOOPBACK, VALID_DAYS, Certificates


class Listener(NamedTuple):
    """The settings of a listener with TLS. By default, its certificate is valid for loopback addresses."""

    version: str
    """The only TLS version of the listener."""
    is_mutual: bool = False
    """Whether clients need a certificate."""
    names: str = LOOPBACK
    valid_days: int = VALID_DAYS


LISTENERS = {"ENCRYPTED": Listener("TLSv1.2"), "MUTUAL": Listener("TLSv1.3", is_mutual=True)}


class Encrypted:
    """A broker with TLS listeners, and the certificates of its clients."""

    def __init__(
        self, kind: type[Broker], directory: Path, listeners: Mapping[str, Listener] = LISTENERS
    ) -> None:
        self.certificates = Certificates(directory)
        (directory / "others").mkdir()
        self.others = Certificates(directory / "others")
        """An authority that the broker does not trust."""
        self.bootstrap = {name: f"localhost:{free_port()}" for name in listeners}
        self.broker = kind()
        properties = self.broker.properties
        for key in ("listeners", "advertised.listeners"):
            properties[key] += "".join(f",{name}://{at}" for name, at in self.bootstrap.items())
        properties["listener.security.protocol.map"] += "".join(f",{name}:SSL" for name in listeners)
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.issue("broker")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority),
        }
        for name, listener in listeners.items():
            properties |= self._properties(name, listener)
        self._stores: dict[tuple[int, str], Path] = {}

    def _properties(self, name: str, listener: Listener) -> dict[str, str]:
        """Return the properties in which a listener differs from the broker."""
        found = {"ssl.enabled.protocols": listener.version}
        if listener.is_mutual:
            found["ssl.client.auth"] = "required"
        if listener[2:] != (LOOPBACK, VALID_DAYS):
            own = self.certificates.issue(
                "broker", listener.names, file=name.lower(), days=listener.valid_days
            )
            found["ssl.keystore.location"] = str(own)
        return {f"listener.name.{name.lower()}.{key}": value for key, value in found.items()}

    def key_store(self, authority: Certificates | None = None, name: str = "client") -> Path:
        """Return a PEM file with a client's private key and certificate."""
        authority = authority or self.certificates
        key = id(authority), name
        if key not in self._stores:
            self._stores[key] = authority.issue(name)
        return self._stores[key]

    def of_java(self, key_store: Path | None, authority: Certificates | None = None) -> str:
        """Return the properties of a Java client."""
        own = {} if key_store is None else {"ssl.keystore.type": "PEM", "ssl.keystore.location": key_store}
        properties = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": (authority or self.certificates).authority,
            **own,
        }
        return "".join(f"{key}={value}\n" for key, value in properties.items())

    def of_librdkafka(
        self, listener: str, key_store: Path | None, authority: Certificates | None = None
    ) -> Any:
        own = {} if key_store is None else dict.fromkeys(("ssl.certificate.location", "ssl.key.location"))
        return {
            "bootstrap.servers": self.bootstrap[listener],
            "security.protocol": "SSL",
            "ssl.ca.location": str((authority or self.certificates).authority),
            **{key: str(key_store) for key in own},
        }

    def of_python(
        self, listener: str, key_store: Path | None, authority: Certificates | None = None
    ) -> dict[str, Any]:
        """Return the configuration of a kafka-python or aiokafka client."""
        context = ssl.create_default_context(cafile=(authority or self.certificates).authority)
        if key_store is not None:
            context.load_cert_chain(key_store)
        return {
            "bootstrap_servers": self.bootstrap[listener],
            "security_protocol": "SSL",
            "ssl_context": context,
        }


@contextmanager
def encrypted(kind: type[Broker], listeners: Mapping[str, Listener] = LISTENERS) -> Iterator[Encrypted]:
    """Start a broker of a kind with TLS listeners, and discard it after the block."""
    with tempfile.TemporaryDirectory() as name:
        one = Encrypted(kind, Path(name), listeners)
        try:
            one.broker.start()
            yield one
        finally:
            one.broker.discard()
