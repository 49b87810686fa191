"""What becomes of a broker by what it says of itself: each move, and what it costs the partitions."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import BrokerHeartbeat, BrokerHeartbeatReply
from kwire.wire.errors import ApiError
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import BrokerRegistrationChangeRecord, PartitionChangeRecord
from tests.broker.controller.conftest import DIRECTORY

OTHER = Uuid(b"another-one-of-1")


def beat(cluster: Any, broker_id: int, *, offset: int | None = None, **wants: Any) -> BrokerHeartbeatReply:
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


def told(cluster: Any, index: int = 0) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Leader, in-sync set, eligible leaders."""
    partition = cluster.image.topics["t"].partitions[index]
    return partition.leader, partition.isr, partition.elr


@pytest.fixture
def two(bare_cluster: Any) -> Any:
    """Two brokers that live, and the topic t on both, led by 1."""
    cluster = bare_cluster()
    for broker_id in (1, 2):
        cluster.register(broker_id)
        assert beat(cluster, broker_id, cordoned_log_dirs=[]) == BrokerHeartbeatReply(True, False, False)
    cluster.create_on("t", [[1, 2]])
    return cluster


def test_a_broker_is_unfenced_once_it_knows_of_its_registration(bare_cluster: Any) -> None:
    cluster = bare_cluster()
    epoch = cluster.register(1)
    assert beat(cluster, 1, offset=epoch - 1) == BrokerHeartbeatReply(False, True, False)
    assert beat(cluster, 1, offset=epoch, want_fence=True) == BrokerHeartbeatReply(True, True, False)
    assert cluster.image.brokers[1].fenced
    assert beat(cluster, 1, offset=epoch) == BrokerHeartbeatReply(True, False, False)
    assert not cluster.image.brokers[1].fenced


def test_an_epoch_that_is_over_is_refused(two: Any) -> None:
    with pytest.raises(ApiError, match="No broker registration found for broker id 7"):
        two.decide(BrokerHeartbeat(7, 0, 0, False, False))
    epoch = two.image.brokers[1].broker_epoch
    with pytest.raises(ApiError, match=f"Expected broker epoch {epoch}, but got broker epoch {epoch + 1}"):
        two.decide(BrokerHeartbeat(1, epoch + 1, 0, False, False))


def test_who_lives_on_costs_no_records(two: Any) -> None:
    for _ in range(3):
        assert beat(two, 1, cordoned_log_dirs=[]) == BrokerHeartbeatReply(True, False, False)
        assert two.records == []


def test_who_wants_to_be_fenced_is(two: Any) -> None:
    assert beat(two, 1, want_fence=True) == BrokerHeartbeatReply(True, True, False)
    assert told(two) == (2, (2,), ())
    assert beat(two, 1) == BrokerHeartbeatReply(True, False, False)
    assert told(two) == (2, (2,), ()), "it has to ask its way back into the set"


def test_who_leads_is_let_go_when_the_others_know(two: Any) -> None:
    beat(two, 2)
    reply = beat(two, 1, want_shut_down=True)
    assert reply == BrokerHeartbeatReply(True, False, False, in_controlled_shutdown=True)
    assert told(two) == (2, (2,), ())
    assert two.image.brokers[1].in_controlled_shutdown
    moved_at = two.image.offset
    assert not beat(two, 1, want_shut_down=True).should_shut_down
    assert two.records == []
    beat(two, 2, offset=moved_at - 1)
    assert not beat(two, 1, want_shut_down=True).should_shut_down
    beat(two, 2, offset=moved_at)
    assert beat(two, 1, want_shut_down=True) == BrokerHeartbeatReply(True, True, True)
    assert two.image.brokers[1].fenced


def test_who_leads_nothing_is_let_go_at_once(two: Any) -> None:
    assert beat(two, 2, want_shut_down=True) == BrokerHeartbeatReply(True, True, True)
    assert told(two) == (1, (1,), ())
    assert beat(two, 2, want_shut_down=True) == BrokerHeartbeatReply(True, True, True)
    assert two.records == []


def test_who_is_alone_is_let_go_with_what_nobody_else_can_lead(two: Any) -> None:
    beat(two, 2, want_shut_down=True)
    assert beat(two, 1, want_shut_down=True).in_controlled_shutdown
    assert told(two) == (-1, (), (1,))
    assert beat(two, 1, want_shut_down=True) == BrokerHeartbeatReply(True, True, True)


def test_who_cannot_wait_is_let_go_as_it_is(two: Any) -> None:
    assert beat(two, 1, want_fence=True, want_shut_down=True) == BrokerHeartbeatReply(True, True, True)
    assert told(two) == (2, (2,), ())


def test_what_a_failed_directory_had_is_led_by_others(bare_cluster: Any) -> None:
    cluster = bare_cluster()
    cluster.register(1, log_dirs=[DIRECTORY, OTHER])
    cluster.register(2)
    for broker_id in (1, 2):
        beat(cluster, broker_id, cordoned_log_dirs=[])
    cluster.create_on("t", [[1, 2], [1, 2]])
    cluster.assign(1, {("t", 0): DIRECTORY, ("t", 1): OTHER})
    beat(cluster, 1, offline_log_dirs=[OTHER])
    assert (told(cluster, 0), told(cluster, 1)) == ((1, (1, 2), ()), (2, (2,), ()))
    assert cluster.image.brokers[1].log_dirs == (DIRECTORY,)
    beat(cluster, 1, offline_log_dirs=[OTHER])
    assert cluster.records == []


def test_nothing_is_led_in_a_directory_that_failed_before_unfencing(bare_cluster: Any) -> None:
    cluster = bare_cluster()
    cluster.register(1, log_dirs=[DIRECTORY, OTHER])
    beat(cluster, 1)
    cluster.create_on("t", [[1]])
    cluster.assign(1, {("t", 0): OTHER})
    beat(cluster, 1, want_fence=True)
    assert told(cluster) == (-1, (), (1,))
    beat(cluster, 1, offline_log_dirs=[OTHER])
    assert told(cluster) == (-1, (), (1,))
    assert not cluster.image.brokers[1].fenced


def test_cordoned_directories_are_written_down_when_they_change(two: Any) -> None:
    beat(two, 1, cordoned_log_dirs=[DIRECTORY])
    [stored] = two.records
    assert stored.version == 3
    assert isinstance(stored.record, BrokerRegistrationChangeRecord)
    assert two.image.brokers[1].cordoned_log_dirs == (DIRECTORY,)
    for unchanged in ([DIRECTORY], None):
        beat(two, 1, cordoned_log_dirs=unchanged)
        assert two.records == []


def test_what_has_no_leader_gets_an_unclean_one_only_where_it_may(two: Any) -> None:
    beat(two, 1, want_fence=True)
    beat(two, 2, want_fence=True)
    assert told(two) == (-1, (), (2,))
    two.set_topic_config("t", "unclean.leader.election.enable", "true")
    beat(two, 1)
    assert told(two) == (1, (1,), ())
    states = [r.leader_recovery_state for r, _ in two.records if isinstance(r, PartitionChangeRecord)]
    assert states == [1]
