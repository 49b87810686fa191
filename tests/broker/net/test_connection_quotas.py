"""Counting connections as Apache Kafka's ConnectionQuotas does."""

from __future__ import annotations

from kwire.broker.net.connection_quotas import ConnectionQuotas


def test_per_address_with_overrides() -> None:
    limits = ConnectionQuotas(max_connections_per_ip=1, max_connections_per_ip_overrides={"10.0.0.9": 0})
    assert limits.admit("A", "10.0.0.1")
    assert not limits.admit("B", "10.0.0.1")
    assert not limits.admit("A", "10.0.0.9")
    assert limits.admit("A", "10.0.0.2")
    assert limits.total == 2
    limits.release("A", "10.0.0.1")
    assert limits.admit("B", "10.0.0.1")


def test_per_listener_and_in_total() -> None:
    limits = ConnectionQuotas(max_connections=3, max_connections_by_listener={"A": 1})
    assert limits.has_capacity("A")
    limits.admit("A", "10.0.0.1")
    assert not limits.has_capacity("A")
    assert limits.has_capacity("B")
    limits.admit("B", "10.0.0.1")
    limits.admit("B", "10.0.0.1")
    assert not limits.has_capacity("B")
    limits.release("A", "10.0.0.1")
    assert limits.has_capacity("A")


def test_the_listener_between_brokers_is_exempt_unless_it_is_the_only_one() -> None:
    limits = ConnectionQuotas(max_connections=1, inter_broker_listener="INTERNAL")
    limits.admit("INTERNAL", "10.0.0.1")
    assert not limits.has_capacity("INTERNAL")
    limits.listeners = 2
    assert limits.has_capacity("INTERNAL")
    assert not limits.has_capacity("EXTERNAL")
    limits.admit("INTERNAL", "10.0.0.1")
    assert limits.is_exceeded()
