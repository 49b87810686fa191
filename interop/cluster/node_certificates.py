"""TLS between the nodes of a cluster: certificates, listeners and properties."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interop.brokers import free_port
from interop.certificates import Certificates
from interop.cluster.logins import BROKERS_LISTENER

NODES: Final = 5
"""The largest node id of a cluster."""


class NodeCertificates:
    """A certificate of each node, and one of a client of controllers. Each has another subject."""

    def __init__(self, directory: Path) -> None:
        self._certificates = Certificates(directory)
        self._client = self._certificates.issue("client")

    def properties(self, node_id: int, given: Mapping[str, str]) -> dict[str, str]:
        """Return the properties of a node: `given` has its PLAINTEXT listeners."""
        listener = f"{BROKERS_LISTENER}://127.0.0.1:{free_port()}"
        found = {
            "inter.broker.listener.name": BROKERS_LISTENER,
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{BROKERS_LISTENER}:SSL,CONTROLLER:SSL",
            "ssl.client.auth": "required",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._certificates.authority),
            "super.users": ";".join(f"User:CN=node-{each}" for each in range(1, NODES + 1)),
            **self.key_store(node_id),
        }
        if "broker" in given["process.roles"]:
            found |= {key: f"{given[key]},{listener}" for key in ("listeners", "advertised.listeners")}
        return found

    def key_store(self, node_id: int, name: str = "") -> dict[str, str]:
        """Return the properties of a new certificate of a node; `name` replaces the name of the node."""
        path = self._certificates.issue(name or f"node-{node_id}")
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path)}

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """Begin TLS on a connection to a controller."""
        context = ssl.create_default_context(cafile=self._certificates.authority)
        context.load_cert_chain(self._client)
        return context.wrap_socket(sock, server_hostname="127.0.0.1")
