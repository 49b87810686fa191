"""What an operator reads of what the controller has decided."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kwire.broker.controller.commands import (
    BrokerHeartbeat,
    Command,
    FenceBroker,
    RemoveExpiredTokens,
    UnregisterBroker,
)
from kwire.broker.controller.log_messages import log_messages
from kwire.broker.metadata.records import StoredRecord
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import DelegationTokenRecord
from tests.broker.controller.conftest import directory_of

INFO, WARNING = logging.INFO, logging.WARNING
OTHER = Uuid(b"another-one-of-2")


@pytest.fixture
def two(bare_cluster: Any) -> Any:
    """Two brokers, and a topic of five partitions on the second."""
    cluster = bare_cluster()
    cluster.start(1)
    cluster.start(2, log_dirs=[directory_of(2), OTHER])
    cluster.create_on("t", [[2, 1]] * 5)
    cluster.create_on("alone", [[2]])
    cluster.run(FenceBroker(1, cluster.image.brokers[1].broker_epoch))
    cluster.assign(2, {("t", index): directory_of(2) for index in range(5)})
    return cluster


def told(cluster: Any, command: Command, *, node_id: int = 1) -> list[tuple[int, str]]:
    before = cluster.image
    cluster.run(command)
    return list(log_messages(command, cluster.records, before, node_id))


def beat(cluster: Any, **wants: Any) -> BrokerHeartbeat:
    given = {"want_fence": False, "want_shut_down": False, **wants}
    return BrokerHeartbeat(2, cluster.image.brokers[2].broker_epoch, cluster.image.offset, **given)


def test_brokers_come_and_go(two: Any) -> None:
    assert told(two, beat(two)) == []
    text = "Broker 2 began its controlled shutdown; 6 partitions changed leader or ISR"
    assert told(two, beat(two, want_shut_down=True)) == [(INFO, text)]
    text = "Fenced broker 2"
    assert told(two, beat(two, want_shut_down=True)) == [(INFO, text)]
    assert told(two, UnregisterBroker(2)) == [(INFO, "Unregistered broker 2")]


def test_what_is_changed_with_them_is_counted(two: Any) -> None:
    text = "Fenced broker 2; 6 partitions changed leader or ISR"
    assert told(two, beat(two, want_fence=True)) == [(INFO, text)]
    assert told(two, beat(two)) == [(INFO, "Unfenced broker 2; 6 partitions changed leader or ISR")]
    assert told(two, UnregisterBroker(1)) == [(INFO, "Unregistered broker 1")]


def test_directories_that_fail_are_named(two: Any) -> None:
    text = "Log directories of broker 2 failed: YW5vdGhlci1vbmUtb2YtMg"
    assert told(two, beat(two, offline_log_dirs=[OTHER]), node_id=2) == [(WARNING, text)]


def test_of_its_own_broker_a_node_tells_itself(two: Any) -> None:
    assert told(two, beat(two, want_fence=True), node_id=2) == []


def test_where_records_may_be_lost_is_said(two: Any) -> None:
    epoch = two.image.brokers[2].broker_epoch
    assert told(two, FenceBroker(2, epoch)) == [], "whoever ends a session says so"
    two.end_sessions()
    two.register(2, log_dirs=[directory_of(2), OTHER])
    unfenced, lost = told(two, beat(two))
    assert unfenced == (INFO, "Unfenced broker 2; 6 partitions changed leader or ISR")
    text = "Unclean leader election for t-0, t-1, t-2 and 2 more: no in-sync replica is active, "
    assert lost == (WARNING, text + "so acknowledged records may be lost")


def test_tokens_that_have_run_out_are_named(two: Any) -> None:
    tokens = [
        DelegationTokenRecord(owner="User:alice", token_id=f"t{ms}", max_timestamp=9, expiration_timestamp=ms)
        for ms in (1, 2)
    ]
    two.apply([StoredRecord(token) for token in tokens])
    assert told(two, RemoveExpiredTokens(2)) == [(INFO, "Deleted expired delegation token t1 of User:alice")]
