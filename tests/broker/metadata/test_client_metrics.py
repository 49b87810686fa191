"""Client metrics subscriptions: what their settings say, and which clients they are for."""

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


def test_what_is_left_out() -> None:
    said = parse_subscription({"metrics": "a"})
    assert (said.metrics, said.interval_ms, said.patterns) == (("a",), 300_000, {})
    assert parse_subscription({"interval.ms": "100"}).metrics == ()


def test_what_makes_no_sense() -> None:
    with pytest.raises(ConfigError):
        parse_subscription({"interval.ms": "x"})
    with pytest.raises(IllegalPattern, match="client_id"):
        parse_subscription({"match": "client_id"})


@pytest.mark.parametrize(
    ("match", "is_for"),
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
def test_whom_it_is_for(match: str, *, is_for: bool) -> None:
    assert parse_subscription({"match": match}).matches(CLIENT) is is_for


@pytest.mark.parametrize("selector", sorted(SELECTORS))
def test_every_selector(selector: str) -> None:
    said = parse_subscription({"match": f"{selector}=.+"})
    assert said.matches(CLIENT)
    assert not said.matches({**CLIENT, selector: ""})


def test_an_expression_does_not_hold_the_broker_up() -> None:
    """With one that backtracks this would take longer than there is time."""
    said = parse_subscription({"match": "client_id=(a+)+b"})
    assert not said.matches({**CLIENT, "client_id": "a" * 30_000})


@pytest.mark.parametrize("expression", ["x++", "(?!x).*", r"(a)\1", r"\h", "[", "*"])
def test_expressions_that_are_refused(expression: str) -> None:
    with pytest.raises(IllegalPattern):
        parse_patterns([f"client_id={expression}"])
