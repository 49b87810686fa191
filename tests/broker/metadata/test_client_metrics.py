"""Client metrics subscriptions: parsing, and the clients that they match."""

from __future__ import annotations

import pytest

from kwire.broker.config.definition import ConfigError
from kwire.broker.metadata.client_metrics import SELECTORS, IllegalPattern, parse_patterns, parse_subscription

CLIENT = {
    "client_instance_id": "AAECAwQFBgcICQoLDA0ODw",
    "client_id": "orders-7",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.1",
    "client_source_address": "10.0.0.1",
    "client_source_port": "50123",
}


def test_missing_settings_have_defaults() -> None:
    subscription = parse_subscription({"metrics": "a"})
    assert (subscription.metrics, subscription.interval_ms, subscription.patterns) == (("a",), 300_000, {})
    assert parse_subscription({"interval.ms": "100"}).metrics == ()


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ConfigError):
        parse_subscription({"interval.ms": "x"})
    with pytest.raises(IllegalPattern, match="client_id"):
        parse_subscription({"match": "client_id"})


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("", True),
        ("client_id=orders-.*", True),
        ("client_id=orders", False),
        ("client_id=ORDERS-7", False),
        ("client_id=(?i)ORDERS-7", True),
        (r"client_source_address=10\..*, client_source_port=[0-9]+", True),
        (r"client_source_address=10\..*, client_source_port=1", False),
        ("client_id=no, client_id=orders-7", True),
        ("client_id=orders-7, client_id=no", False),
    ],
)
def test_a_subscription_matches_clients(match: str, *, matches: bool) -> None:
    assert parse_subscription({"match": match}).matches(CLIENT) is matches


@pytest.mark.parametrize("selector", sorted(SELECTORS))
def test_every_selector_is_matched(selector: str) -> None:
    subscription = parse_subscription({"match": f"{selector}=.+"})
    assert subscription.matches(CLIENT)
    assert not subscription.matches({**CLIENT, selector: ""})


def test_matching_takes_linear_time() -> None:
    """A backtracking expression engine would exceed the test's timeout."""
    subscription = parse_subscription({"match": "client_id=(a+)+b"})
    assert not subscription.matches({**CLIENT, "client_id": "a" * 30_000})


@pytest.mark.parametrize("expression", ["x++", "(?!x).*", r"(a)\1", r"\h", "[", "*"])
def test_unsupported_expressions_are_refused(expression: str) -> None:
    with pytest.raises(IllegalPattern):
        parse_patterns([f"client_id={expression}"])
