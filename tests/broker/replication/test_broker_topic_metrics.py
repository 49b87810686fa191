"""What is counted of the bytes that pass: from the leader's side and the follower's."""

from __future__ import annotations

from kwire.broker.replication.broker_topic_metrics import BrokerTopicStats
from tests.broker.replication.test_two_brokers import Pair


def test_leader_and_follower_count_the_same_bytes() -> None:
    pair = Pair()
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


def test_a_follower_knows_how_many_committed_records_it_lacks() -> None:
    pair = Pair()
    pair.produce()
    pair.settle()
    [(_, follower)] = pair.nodes[2].node.fetcher_manager.followers()
    assert follower.lag == 0
    follower._high_watermark = pair.log(2).log_end_offset + 7  # as the leader's next answer may say
    assert follower.lag == 7


def test_totals_never_fall() -> None:
    traffic = BrokerTopicStats()
    traffic.for_topic("a").messages_in += 3
    traffic.for_topic("b").bytes_out += 5
    before = traffic.total()
    traffic.remove("a")
    traffic.remove("never there")
    after = traffic.total()
    assert (after.messages_in, after.bytes_out) == (before.messages_in, before.bytes_out) == (3, 5)
    assert traffic.for_topic("a").messages_in == 0
