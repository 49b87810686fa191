"""Client metrics subscriptions in a mixed cluster (KIP-714).

A client that reconnects to another broker keeps its subscription id. So both kinds of broker must compute the
same id for the same subscriptions.
"""

from __future__ import annotations

from functools import partial

from interop.cluster.nodes import KAFKA_JOINS_KWIRE, Cluster, wait_until
from interop.raw_client import RawClient
from interop.scenarios.raw_telemetry import (
    MANY,
    client_instance_id,
    get,
    get_until,
    is_subscription,
    push,
    subscribe,
    unsubscribe,
)

UNKNOWN_SUBSCRIPTION_ID = 117
INTERVAL_MS = 60_000
SETTINGS = {"metrics": ",".join(MANY), "interval.ms": str(INTERVAL_MS)}


def is_unknown(client: RawClient, instance_id: bytes, subscription_id: int) -> bool:
    """Push metrics with a subscription id, and return whether the broker rejects the id as unknown."""
    return push(client, instance_id, SubscriptionId=subscription_id) == UNKNOWN_SUBSCRIPTION_ID


def test_every_broker_computes_the_same_subscription_id() -> None:
    own = client_instance_id("a client of a cluster")
    with Cluster(KAFKA_JOINS_KWIRE).start() as cluster:
        clients = [RawClient(cluster.nodes[node_id].bootstrap) for node_id in cluster.brokers]
        before = {get(client, own)["SubscriptionId"] for client in clients}
        assert len(before) == 1
        subscribe(clients[-1], "cluster", SETTINGS)
        response = [
            get_until(client, own, lambda answer: is_subscription(set(MANY), INTERVAL_MS, answer))
            for client in clients
        ]
        assert response == [response[0]] * len(clients)
        assert response[0]["SubscriptionId"] not in before
        for client in clients:
            assert push(client, own, SubscriptionId=response[0]["SubscriptionId"]) == 0
        unsubscribe(clients[0], "cluster", SETTINGS)
        for client in clients:
            wait_until(
                partial(is_unknown, client, own, response[0]["SubscriptionId"]), "a broker still asks for it"
            )
        assert {get(client, own)["SubscriptionId"] for client in clients} == before
        for client in clients:
            client.socket.close()
        cluster.check_logs()
