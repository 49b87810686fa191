"""Connection limits, as in Apache Kafka's ConnectionQuotas."""

from __future__ import annotations

from kwire.broker.net.connection_quotas import ConnectionQuotas


def test_limit_per_address_with_overrides() -> None:
    quotas = ConnectionQuotas(max_connections_per_ip=1, max_connections_per_ip_overrides={"10.0.0.9": 0})
    assert quotas.admit("A", "10.0.0.1")
    assert not quotas.admit("B", "10.0.0.1")
    assert not quotas.admit("A", "10.0.0.9")
    assert quotas.admit("A", "10.0.0.2")
    assert quotas.total == 2
    quotas.release("A", "10.0.0.1")
    assert quotas.admit("B", "10.0.0.1")


def test_limits_per_listener_and_in_total() -> None:
    quotas = ConnectionQuotas(max_connections=3, max_connections_by_listener={"A": 1})
    assert quotas.has_capacity("A")
    quotas.admit("A", "10.0.0.1")
    assert not quotas.has_capacity("A")
    assert quotas.has_capacity("B")
    quotas.admit("B", "10.0.0.1")
    quotas.admit("B", "10.0.0.1")
    assert not quotas.has_capacity("B")
    quotas.release("A", "10.0.0.1")
    assert quotas.has_capacity("A")


def test_inter_broker_listener_is_exempt_unless_it_is_the_only_one() -> None:
    quotas = ConnectionQuotas(max_connections=1, inter_broker_listener="INTERNAL")
    quotas.admit("INTERNAL", "10.0.0.1")
    assert not quotas.has_capacity("INTERNAL")
    quotas.listeners = 2
    assert quotas.has_capacity("INTERNAL")
    assert not quotas.has_capacity("EXTERNAL")
    quotas.admit("INTERNAL", "10.0.0.1")
    assert quotas.is_exceeded()
