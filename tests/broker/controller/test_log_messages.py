"""Log lines about the controller's decisions."""

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
    """Two brokers, and a topic of five partitions with leader 2."""
    cluster = bare_cluster()
    cluster.start(1)
    cluster.start(2, log_dirs=[directory_of(2), OTHER])
    cluster.create_on("t", [[2, 1]] * 5)
    cluster.create_on("alone", [[2]])
    cluster.run(FenceBroker(1, cluster.image.brokers[1].broker_epoch))
    cluster.assign(2, {("t", index): directory_of(2) for index in range(5)})
    return cluster


def messages_of(cluster: Any, command: Command, *, node_id: int = 1) -> list[tuple[int, str]]:
    before = cluster.image
    cluster.run(command)
    return list(log_messages(command, cluster.records, before, node_id))


def heartbeat(cluster: Any, **wants: Any) -> BrokerHeartbeat:
    fields = {"want_fence": False, "want_shut_down": False, **wants}
    return BrokerHeartbeat(2, cluster.image.brokers[2].broker_epoch, cluster.image.offset, **fields)


def test_shutdown_fencing_and_unregistration_are_logged(two: Any) -> None:
    assert messages_of(two, heartbeat(two)) == []
    text = "Broker 2 began its controlled shutdown; 6 partitions changed leader or ISR"
    assert messages_of(two, heartbeat(two, want_shut_down=True)) == [(INFO, text)]
    text = "Fenced broker 2"
    assert messages_of(two, heartbeat(two, want_shut_down=True)) == [(INFO, text)]
    assert messages_of(two, UnregisterBroker(2)) == [(INFO, "Unregistered broker 2")]


def test_changed_partitions_are_counted(two: Any) -> None:
    text = "Fenced broker 2; 6 partitions changed leader or ISR"
    assert messages_of(two, heartbeat(two, want_fence=True)) == [(INFO, text)]
    assert messages_of(two, heartbeat(two)) == [
        (INFO, "Unfenced broker 2; 6 partitions changed leader or ISR")
    ]
    assert messages_of(two, UnregisterBroker(1)) == [(INFO, "Unregistered broker 1")]


def test_failed_log_directories_are_logged_with_their_ids(two: Any) -> None:
    text = "Log directories of broker 2 failed: YW5vdGhlci1vbmUtb2YtMg"
    assert messages_of(two, heartbeat(two, offline_log_dirs=[OTHER]), node_id=2) == [(WARNING, text)]


def test_the_fencing_of_the_own_broker_is_not_logged(two: Any) -> None:
    assert messages_of(two, heartbeat(two, want_fence=True), node_id=2) == []


def test_unclean_leader_elections_are_logged_as_a_warning(two: Any) -> None:
    epoch = two.image.brokers[2].broker_epoch
    assert messages_of(two, FenceBroker(2, epoch)) == [], "the heartbeat manager logs a session timeout"
    two.end_sessions()
    two.register(2, log_dirs=[directory_of(2), OTHER])
    unfenced, lost = messages_of(two, heartbeat(two))
    assert unfenced == (INFO, "Unfenced broker 2; 6 partitions changed leader or ISR")
    text = "Unclean leader election for t-0, t-1, t-2 and 2 more: no in-sync replica is active, "
    assert lost == (WARNING, text + "so acknowledged records may be lost")


def test_deleted_expired_tokens_are_logged(two: Any) -> None:
    tokens = [
        DelegationTokenRecord(owner="User:alice", token_id=f"t{ms}", max_timestamp=9, expiration_timestamp=ms)
        for ms in (1, 2)
    ]
    two.apply([StoredRecord(token) for token in tokens])
    assert messages_of(two, RemoveExpiredTokens(2)) == [
        (INFO, "Deleted expired delegation token t1 of User:alice")
    ]
