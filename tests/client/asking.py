"""A cluster as tests ask it."""

from __future__ import annotations

from typing import Any

from kwire.client.cluster import Cluster


def cluster_at(servers: str, **options: Any) -> Cluster:
    addresses = [server.rpartition(":") for server in servers.split(",")]
    return Cluster(
        [(host, int(port)) for host, _, port in addresses],
        **{"client_id": "test", "timeout_seconds": 20, **options},
    )
