"""Byte and message counters of a leader and a follower."""

from __future__ import annotations

from kwire.broker.replication.broker_topic_metrics import BrokerTopicStats
from tests.broker.replication.test_two_brokers import BrokerPair


def test_leader_and_follower_count_the_same_bytes() -> None:
    pair = BrokerPair()
    for _ in range(5):
        pair.produce()
    pair.settle()
    leader, follower = (pair.nodes[broker_id].node.topic_stats.for_topic("t") for broker_id in (1, 2))
    size_bytes = pair.log(1).size_bytes
    assert leader.bytes_in == size_bytes > 0
    assert leader.messages_in == pair.log(1).log_end_offset
    assert leader.appends == 5
    assert leader.replication_bytes_out == follower.replication_bytes_in == size_bytes
    assert leader.bytes_out == leader.replication_bytes_in == 0
    assert follower.bytes_in == follower.messages_in == follower.bytes_out == 0


def test_follower_lag_is_measured_to_the_high_watermark() -> None:
    pair = BrokerPair()
    pair.produce()
    pair.settle()
    [(_, follower)] = pair.nodes[2].node.fetcher_manager.followers()
    assert follower.lag == 0
    follower._high_watermark = pair.log(2).log_end_offset + 7  # as the leader's next response may report
    assert follower.lag == 7


def test_totals_include_removed_topics() -> None:
    stats = BrokerTopicStats()
    stats.for_topic("a").messages_in += 3
    stats.for_topic("b").bytes_out += 5
    before = stats.total()
    stats.remove("a")
    stats.remove("never there")
    after = stats.total()
    assert (after.messages_in, after.bytes_out) == (before.messages_in, before.bytes_out) == (3, 5)
    assert stats.for_topic("a").messages_in == 0
