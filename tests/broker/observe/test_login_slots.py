"""Slots of logins at the HTTP port: limits, delays and known addresses."""

from __future__ import annotations

from kwire.broker.observe.login_slots import MAX_ADDRESSES, MAX_LOGINS, MAX_LOGINS_PER_ADDRESS, LoginSlots


def fill(slots: LoginSlots, first: str = "10.0.0") -> None:
    """Take all slots of addresses without a successful login, until 100.0 s."""
    for number in range(MAX_LOGINS):
        slot = slots.take(f"{first}.{number // MAX_LOGINS_PER_ADDRESS}", 0.0)
        assert slot is not None
        slots.fail(slot, 100.0)


def test_a_failed_login_keeps_its_slot_until_its_delay_ends() -> None:
    for ip in ("10.0.0.0", "10.0.9.9"):
        slots = LoginSlots()
        fill(slots)
        assert slots.take(ip, 99.0) is None
        assert slots.take(ip, 100.0) is not None


def test_a_login_that_is_being_checked_keeps_its_slot() -> None:
    slots = LoginSlots()
    for _ in range(MAX_LOGINS_PER_ADDRESS):
        assert slots.take("10.0.0.1", 0.0) is not None
    assert slots.take("10.0.0.1", 1e9) is None
    assert slots.take("10.0.0.2", 1e9) is not None


def test_known_addresses_are_bounded_and_have_slots_of_their_own() -> None:
    slots = LoginSlots()
    for number in range(MAX_ADDRESSES + 1):
        slot = slots.take(f"10.0.1.{number}", 0.0)
        assert slot is not None
        slots.succeed(slot)
    fill(slots)
    assert slots.take("10.0.1.0", 1.0) is None, "the oldest known address was replaced"
    for _ in range(MAX_LOGINS_PER_ADDRESS):
        assert slots.take("10.0.1.1", 1.0) is not None
    assert slots.take("10.0.1.1", 1.0) is None
