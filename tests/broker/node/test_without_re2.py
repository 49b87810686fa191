"""A broker without google-re2, as on musl. It refuses regular expressions, and nothing else changes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

from kwire.broker.metadata.client_metrics import IllegalPattern, parse_patterns
from kwire.cli.doctor.finding import WARNING
from kwire.cli.doctor.machine import findings, gather_facts
from kwire.client.connection import Connection
from kwire.testing import Broker
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

SECONDS = 30


@pytest.fixture(autouse=True)
def without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import re2` fail."""
    monkeypatch.setitem(sys.modules, "re2", None)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.produce("orders", "first")
        yield broker


def consumer(broker: Broker, protocol: str, topic: str) -> Consumer:
    """Subscribe a consumer. Its group has the protocol's name."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": protocol,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        },
        logger=logging.getLogger("silent"),
    )
    consumer.subscribe([topic])
    return consumer


def test_subscription_with_a_regular_expression_is_invalid(broker: Broker) -> None:
    with consumer(broker, "consumer", "^ord.*") as reader:
        message = reader.poll(SECONDS)
    assert message is not None
    error = message.error()
    assert error is not None
    assert "The regular expression is not valid" in error.str()

    # librdkafka does not show the message of the response.
    host, _, port = broker.bootstrap_servers.rpartition(":")
    request = ConsumerGroupHeartbeatRequest(
        group_id="consumer",
        member_id=str(uuid4()),
        rebalance_timeout_ms=60_000,
        subscribed_topic_regex="ord.*",
        topic_partitions=[],
    )
    with Connection(host, int(port), "test", SECONDS) as connection:
        response = connection.send(request, ConsumerGroupHeartbeatResponse)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert response.error_message == (
        "SubscribedTopicRegex `ord.*` cannot be used: the broker lacks the package google-re2. Run "
        "pip install 'kwire[regex]' in the broker's environment."
    )


@pytest.mark.parametrize(
    ("protocol", "topic"), [("consumer", "orders"), ("classic", "orders"), ("classic", "^ord.*")]
)
def test_other_subscriptions_receive_records(broker: Broker, protocol: str, topic: str) -> None:
    """A client that uses the classic protocol matches its expressions itself."""
    with consumer(broker, protocol, topic) as reader:
        message = reader.poll(SECONDS)
    assert message is not None
    assert message.value() == b"first"


def test_pattern_of_client_metrics_is_illegal() -> None:
    with pytest.raises(
        IllegalPattern, match=r"lacks the package google-re2: run pip install 'kwire\[regex\]'"
    ):
        parse_patterns(["client_id=a.*"])


def test_doctor_names_the_extra() -> None:
    found = {one.area: one for one in findings(gather_facts(), 0)}
    assert (found["regex"].severity, found["regex"].fix) == (WARNING, "pip install 'kwire[regex]'")
