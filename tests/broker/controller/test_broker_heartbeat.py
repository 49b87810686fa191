"""Broker heartbeats: each change of a broker's state, and its effect on partitions."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import BrokerHeartbeat, BrokerHeartbeatReply
from kwire.wire.errors import ApiError
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import BrokerRegistrationChangeRecord, PartitionChangeRecord
from tests.broker.controller.conftest import DIRECTORY

OTHER = Uuid(b"another-one-of-1")


def heartbeat(
    cluster: Any, broker_id: int, *, offset: int | None = None, **wants: Any
) -> BrokerHeartbeatReply:
    command = BrokerHeartbeat(
        broker_id,
        cluster.image.brokers[broker_id].broker_epoch,
        cluster.image.offset if offset is None else offset,
        wants.pop("want_fence", False),
        wants.pop("want_shut_down", False),
        **wants,
    )
    reply = cluster.run(command)
    assert isinstance(reply, BrokerHeartbeatReply)
    return reply


def leadership(cluster: Any, index: int = 0) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the leader, the ISR and the ELR of a partition of topic t."""
    partition = cluster.image.topics["t"].partitions[index]
    return partition.leader, partition.isr, partition.elr


@pytest.fixture
def two(bare_cluster: Any) -> Any:
    """Two unfenced brokers, and topic t on both with leader 1."""
    cluster = bare_cluster()
    for broker_id in (1, 2):
        cluster.register(broker_id)
        assert heartbeat(cluster, broker_id, cordoned_log_dirs=[]) == BrokerHeartbeatReply(True, False, False)
    cluster.create_on("t", [[1, 2]])
    return cluster


def test_a_broker_is_unfenced_once_it_has_read_its_registration(bare_cluster: Any) -> None:
    cluster = bare_cluster()
    epoch = cluster.register(1)
    assert heartbeat(cluster, 1, offset=epoch - 1) == BrokerHeartbeatReply(False, True, False)
    assert heartbeat(cluster, 1, offset=epoch, want_fence=True) == BrokerHeartbeatReply(True, True, False)
    assert cluster.image.brokers[1].fenced
    assert heartbeat(cluster, 1, offset=epoch) == BrokerHeartbeatReply(True, False, False)
    assert not cluster.image.brokers[1].fenced


def test_an_unknown_broker_or_stale_epoch_is_refused(two: Any) -> None:
    with pytest.raises(ApiError, match="No broker registration found for broker id 7"):
        two.decide(BrokerHeartbeat(7, 0, 0, False, False))
    epoch = two.image.brokers[1].broker_epoch
    with pytest.raises(ApiError, match=f"Expected broker epoch {epoch}, but got broker epoch {epoch + 1}"):
        two.decide(BrokerHeartbeat(1, epoch + 1, 0, False, False))


def test_repeated_heartbeats_write_no_records(two: Any) -> None:
    for _ in range(3):
        assert heartbeat(two, 1, cordoned_log_dirs=[]) == BrokerHeartbeatReply(True, False, False)
        assert two.records == []


def test_a_broker_can_request_to_be_fenced(two: Any) -> None:
    assert heartbeat(two, 1, want_fence=True) == BrokerHeartbeatReply(True, True, False)
    assert leadership(two) == (2, (2,), ())
    assert heartbeat(two, 1) == BrokerHeartbeatReply(True, False, False)
    assert leadership(two) == (2, (2,), ()), "only its leader can add it to the ISR again"


def test_a_leader_shuts_down_when_the_other_brokers_know_the_new_leader(two: Any) -> None:
    heartbeat(two, 2)
    reply = heartbeat(two, 1, want_shut_down=True)
    assert reply == BrokerHeartbeatReply(True, False, False, in_controlled_shutdown=True)
    assert leadership(two) == (2, (2,), ())
    assert two.image.brokers[1].in_controlled_shutdown
    moved_at = two.image.offset
    assert not heartbeat(two, 1, want_shut_down=True).should_shut_down
    assert two.records == []
    heartbeat(two, 2, offset=moved_at - 1)
    assert not heartbeat(two, 1, want_shut_down=True).should_shut_down
    heartbeat(two, 2, offset=moved_at)
    assert heartbeat(two, 1, want_shut_down=True) == BrokerHeartbeatReply(True, True, True)
    assert two.image.brokers[1].fenced


def test_a_broker_without_leaders_shuts_down_at_once(two: Any) -> None:
    assert heartbeat(two, 2, want_shut_down=True) == BrokerHeartbeatReply(True, True, True)
    assert leadership(two) == (1, (1,), ())
    assert heartbeat(two, 2, want_shut_down=True) == BrokerHeartbeatReply(True, True, True)
    assert two.records == []


def test_the_last_broker_shuts_down_with_its_partitions_leaderless(two: Any) -> None:
    heartbeat(two, 2, want_shut_down=True)
    assert heartbeat(two, 1, want_shut_down=True).in_controlled_shutdown
    assert leadership(two) == (-1, (), (1,))
    assert heartbeat(two, 1, want_shut_down=True) == BrokerHeartbeatReply(True, True, True)


def test_a_broker_that_cannot_wait_shuts_down_at_once(two: Any) -> None:
    assert heartbeat(two, 1, want_fence=True, want_shut_down=True) == BrokerHeartbeatReply(True, True, True)
    assert leadership(two) == (2, (2,), ())


def test_leaders_in_a_failed_directory_move_to_other_brokers(bare_cluster: Any) -> None:
    cluster = bare_cluster()
    cluster.register(1, log_dirs=[DIRECTORY, OTHER])
    cluster.register(2)
    for broker_id in (1, 2):
        heartbeat(cluster, broker_id, cordoned_log_dirs=[])
    cluster.create_on("t", [[1, 2], [1, 2]])
    cluster.assign(1, {("t", 0): DIRECTORY, ("t", 1): OTHER})
    heartbeat(cluster, 1, offline_log_dirs=[OTHER])
    assert (leadership(cluster, 0), leadership(cluster, 1)) == ((1, (1, 2), ()), (2, (2,), ()))
    assert cluster.image.brokers[1].log_dirs == (DIRECTORY,)
    heartbeat(cluster, 1, offline_log_dirs=[OTHER])
    assert cluster.records == []


def test_no_leader_is_elected_in_a_failed_directory(bare_cluster: Any) -> None:
    cluster = bare_cluster()
    cluster.register(1, log_dirs=[DIRECTORY, OTHER])
    heartbeat(cluster, 1)
    cluster.create_on("t", [[1]])
    cluster.assign(1, {("t", 0): OTHER})
    heartbeat(cluster, 1, want_fence=True)
    assert leadership(cluster) == (-1, (), (1,))
    heartbeat(cluster, 1, offline_log_dirs=[OTHER])
    assert leadership(cluster) == (-1, (), (1,))
    assert not cluster.image.brokers[1].fenced


def test_cordoned_directories_are_recorded_when_they_change(two: Any) -> None:
    heartbeat(two, 1, cordoned_log_dirs=[DIRECTORY])
    [stored] = two.records
    assert stored.version == 3
    assert isinstance(stored.record, BrokerRegistrationChangeRecord)
    assert two.image.brokers[1].cordoned_log_dirs == (DIRECTORY,)
    for unchanged in ([DIRECTORY], None):
        heartbeat(two, 1, cordoned_log_dirs=unchanged)
        assert two.records == []


def test_unclean_leader_is_elected_only_if_the_topic_enables_it(two: Any) -> None:
    heartbeat(two, 1, want_fence=True)
    heartbeat(two, 2, want_fence=True)
    assert leadership(two) == (-1, (), (2,))
    two.set_topic_config("t", "unclean.leader.election.enable", "true")
    heartbeat(two, 1)
    assert leadership(two) == (1, (1,), ())
    states = [r.leader_recovery_state for r, _ in two.records if isinstance(r, PartitionChangeRecord)]
    assert states == [1]
