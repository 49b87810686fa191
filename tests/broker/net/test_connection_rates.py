"""Limits of the rate of new connections. KIP-612."""

from __future__ import annotations

from kwire.broker.net.connection_rates import MAX_ADDRESSES, ConnectionRates, RateLimits

RATE = "connection_creation_rate"


def accepted(rates: ConnectionRates, listener: str, *, is_protected: bool = False) -> int:
    """Open connections at one moment until the listener must pause, and return their number."""
    for count in range(1, 1000):
        if rates.listener_throttle_ms(listener, 0, is_protected=is_protected):
            return count - 1
    return 1000


def test_a_listener_pauses_beyond_its_own_limit_and_that_of_the_broker() -> None:
    limits = RateLimits(of_broker=10, by_listener={"A": 2})
    assert accepted(ConnectionRates(limits), "A") == 20
    assert accepted(ConnectionRates(limits), "B") == 100
    assert accepted(ConnectionRates(limits), "B", is_protected=True) == 1000
    assert accepted(ConnectionRates(limits), "A", is_protected=True) == 20
    assert not ConnectionRates(RateLimits()).is_limited


def test_an_address_beyond_its_quota_is_refused_and_does_not_count_for_others() -> None:
    rates = ConnectionRates(RateLimits(of_broker=10))
    rates.set_quotas({(("ip", "10.0.0.1"),): {RATE: 1.0}, (("ip", None),): {RATE: 2.0}})
    for ip, limit in (("10.0.0.1", 10), ("10.0.0.2", 20)):
        served = 0
        for _ in range(70):
            assert not rates.listener_throttle_ms("A", 0, is_protected=False)
            throttle_ms = rates.ip_throttle_ms("A", ip, 0, is_protected=False)
            assert 0 <= throttle_ms <= 1_000
            served += not throttle_ms
        assert served == limit
    rates.set_quotas({})
    assert not rates.ip_throttle_ms("A", "10.0.0.1", 0, is_protected=False)


def test_addresses_do_not_make_the_rates_grow_without_limit() -> None:
    rates = ConnectionRates(RateLimits())
    rates.set_quotas({(("ip", None),): {RATE: 2.0}})
    for number in range(MAX_ADDRESSES + 5):
        rates.ip_throttle_ms("A", f"10.0.{number >> 8}.{number & 255}", 0, is_protected=False)
    assert len(rates._addresses) == MAX_ADDRESSES
