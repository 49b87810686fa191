"""Clients for tests."""

from __future__ import annotations

from typing import Any

from kwire.client.cluster_client import ClusterClient


def connect_cluster(servers: str, **options: Any) -> ClusterClient:
    addresses = [server.rpartition(":") for server in servers.split(",")]
    return ClusterClient(
        [(host, int(port)) for host, _, port in addresses],
        **{"client_id": "test", "timeout_seconds": 20, **options},
    )
