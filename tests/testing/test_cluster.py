"""`Cluster`: several brokers in one process, with crashes and network partitions."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kwire.broker.config import ConfigError
from kwire.testing.blocking_client import BlockingClient
from kwire.testing.broker import Broker
from kwire.testing.cluster import Cluster
from kwire.testing.outages import Outages

PATIENCE_SECONDS = 60
DAY_MS = 24 * 3600 * 1000


def leader_seen_by(broker: Broker, topic: str) -> int:
    """Return the leader of partition 0 in the metadata of one broker."""
    with closing(BlockingClient(broker.bootstrap_servers, PATIENCE_SECONDS)) as client:
        return client.leader(topic, 0)


def stable_offsets(cluster: Cluster, topic: str) -> dict[int, int]:
    """Return the last stable offset of each partition."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    requests = {TopicPartition(topic, index): latest for index in cluster.end_offsets(topic)}
    futures = admin.list_offsets(requests, isolation_level=IsolationLevel.READ_COMMITTED)
    return {
        partition.partition: future.result(PATIENCE_SECONDS).offset for partition, future in futures.items()
    }


def test_leader_and_coordinator_move_when_a_broker_crashes(tmp_path: Path) -> None:
    with Cluster(log_dir=tmp_path, timeout_s=PATIENCE_SECONDS) as cluster:
        topic, group = cluster.new_topic("orders", partitions=2), cluster.new_name("group")
        cluster.produce(topic, "before")
        leader = cluster.leader(topic)
        assert cluster.coordinator(group) in cluster.brokers.values()
        leader.crash()
        cluster.produce(topic, "after")
        other = cluster.leader(topic)
        assert other is not leader
        assert cluster.coordinator(group) is not leader
        # Fetch requests of followers are not recorded and use up no fault.
        fault = other.faults.return_error("Fetch", "NOT_LEADER_OR_FOLLOWER")
        leader.start()
        assert [record.value for record in cluster.records(topic)] == [b"before", b"after"]
        assert [str(broker.requests) for broker in cluster.brokers.values()] == ["", "", ""]
        assert fault.hits == 0
        assert len(cluster.bootstrap_servers.split(",")) == 3
    assert cluster.brokers == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]


def test_advance_moves_the_clock_of_every_broker_and_keeps_leaders() -> None:
    with Cluster(overrides={"log.retention.check.interval.ms": 1_000}, timeout_s=PATIENCE_SECONDS) as cluster:
        topic = cluster.new_topic("orders", config={"retention.ms": 30_000})
        stamped = cluster.new_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
        cluster.produce(topic, "old")
        cluster.produce(stamped, "before")
        leader = cluster.leader(topic)
        stopped = next(node_id for node_id, broker in cluster.brokers.items() if broker is not leader)
        cluster.advance(30_000)
        assert cluster.leader(topic) is leader
        cluster.brokers[stopped].crash()
        cluster.advance(30_100)
        cluster.wait_until(lambda: cluster.records(topic) == [], description="the old records to be deleted")
        cluster.brokers[stopped].start()
        cluster.move_leader(stamped, stopped)
        cluster.produce(stamped, "after")
        before, after = cluster.records(stamped, count=2)
        assert after.timestamp_ms - before.timestamp_ms >= 60_100, "a restarted broker has the advanced clock"
        with pytest.raises(ValueError, match="time cannot go back"):
            cluster.advance(-1)


def test_advancing_a_year_causes_no_elections_and_no_fencing(caplog: pytest.LogCaptureFixture) -> None:
    from confluent_kafka import KafkaException, Producer

    with Cluster(timeout_s=PATIENCE_SECONDS) as cluster:
        topic, group = cluster.new_topic("orders", partitions=6), cluster.new_name("group")
        leaders = [cluster.leader(topic, index) for index in range(6)]
        coordinator = cluster.coordinator(group)
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "transaction.timeout.ms": 60_000}
        for passed_ms in (DAY_MS, 365 * DAY_MS):
            producer = Producer({**settings, "transactional.id": cluster.new_name("tx"), "log_level": 0})
            producer.init_transactions(PATIENCE_SECONDS)
            producer.begin_transaction()
            for index in range(6):
                producer.produce(topic, b"never committed", partition=index)
            assert producer.flush(PATIENCE_SECONDS) == 0
            caplog.clear()
            cluster.advance(passed_ms)
            assert stable_offsets(cluster, topic) == cluster.end_offsets(topic), (
                "every partition has its abort marker"
            )
            assert caplog.messages == [], "no election, and no broker was fenced"
            with pytest.raises(KafkaException):
                producer.commit_transaction(PATIENCE_SECONDS)
        assert [cluster.leader(topic, index) for index in range(6)] == leaders
        assert cluster.coordinator(group) is coordinator


def processes() -> set[str]:
    """Return the process ids of the running child processes."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.mark.proc
def test_crash_ends_the_compaction_process() -> None:
    before = processes()
    with Cluster(size=1, timeout_s=PATIENCE_SECONDS) as cluster:
        compacted = {"cleanup.policy": "compact", "segment.ms": DAY_MS, "min.cleanable.dirty.ratio": 0}
        topic = cluster.new_topic("prices", config=compacted)
        for price in range(3):
            cluster.produce(topic, str(price), key="a")
            cluster.advance(2 * DAY_MS)
        cluster.wait_until(lambda: processes() > before, description="compaction")
    assert processes() <= before


def test_hanging_leader_is_replaced_when_time_advances() -> None:
    with Cluster(timeout_s=PATIENCE_SECONDS) as cluster:
        topic = cluster.new_topic("orders")
        leader = cluster.leader(topic)
        leader.hang()
        cluster.advance(10_000)
        leader.resume()
        cluster.wait_until(lambda: cluster.leader(topic) is not leader, description="another leader")


def test_outages_with_a_seed_lose_no_records_and_end_with_all_brokers_up() -> None:
    with Cluster(timeout_s=PATIENCE_SECONDS) as cluster:
        topic = cluster.new_topic("orders")
        values = [f"order {number}" for number in range(30)]
        with cluster.outages(seed=3) as outages:
            for value in values:
                cluster.produce(topic, value)
            cluster.wait_until(lambda: repr(outages).count("broker") >= 3, timeout_s=PATIENCE_SECONDS)
        assert all(broker.is_running for broker in cluster.brokers.values())
        kept = {record.value for record in cluster.records(topic)}
        assert kept == {value.encode() for value in values}, outages
        with pytest.raises(LookupError) as failure, cluster.outages(seed=4):
            raise LookupError("of the test")
        assert failure.value.__notes__ == ["outages with seed 4: none yet"]


def test_first_outage_is_the_same_for_the_same_seed() -> None:
    def first(seed: int) -> str:
        down = threading.Event()
        broker = SimpleNamespace(crash=down.set, start=int, restart=down.set, hang=down.set, resume=int)
        brokers = cast("dict[int, Broker]", dict.fromkeys((1, 2, 3), broker))
        with Outages(seed, brokers, lambda broker_id: down.set(), lambda: None) as outages:
            assert down.wait(PATIENCE_SECONDS)
        return repr(outages).partition(" s ")[2].partition(";")[0]

    assert [first(seed) for seed in range(3)] == [first(seed) for seed in range(3)]
    assert len({first(seed) for seed in range(3)}) > 1


def test_cluster_of_one_broker_removes_its_data() -> None:
    with Cluster(1, {"num.partitions": 2}) as cluster:
        cluster.produce("made", "x")
        assert len(cluster.end_offsets("made")) == 2
        directory = Path(cluster.log_dir)
        assert directory.is_dir()
    assert not directory.exists()


def test_invalid_arguments_are_refused_and_no_broker_stays_running() -> None:
    with pytest.raises(ValueError, match="at least one broker"):
        Cluster(0)
    cluster = Cluster(2, {"num.partitions": "many"})
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        cluster.start()
    assert cluster.brokers == {}
    with pytest.raises(RuntimeError, match="is not running"):
        _ = cluster.log_dir
    with pytest.raises(RuntimeError, match="is not running"):
        cluster.isolate(1)


def test_isolated_leader_is_replaced_and_can_be_moved_back() -> None:
    with Cluster(timeout_s=PATIENCE_SECONDS) as cluster:
        topic = cluster.new_topic("orders")
        cluster.produce(topic, "before")
        leader = cluster.leader(topic)
        [leader_id] = (node_id for node_id, broker in cluster.brokers.items() if broker is leader)
        others = [broker for broker in cluster.brokers.values() if broker is not leader]
        with pytest.raises(LookupError, match="no broker 7: use one of 1, 2, 3"):
            cluster.isolate(7)
        with pytest.raises(LookupError, match="no broker 9: use one of 1, 2, 3"):
            cluster.disconnect(1, 9)
        cluster.isolate(leader_id)
        cluster.wait_until(lambda: leader_seen_by(others[0], topic) != leader_id, timeout_s=PATIENCE_SECONDS)
        others[0].produce(topic, "meanwhile")
        assert leader_seen_by(leader, topic) == leader_id, "the isolated broker has the old metadata"
        cluster.heal()
        cluster.move_leader(topic, leader_id)
        assert cluster.leader(topic) is leader
        assert [record.value for record in cluster.records(topic)] == [b"before", b"meanwhile"]
        unreplicated = cluster.new_topic("alone", replication_factor=1)
        only_replica = cluster.leader(unreplicated)
        elsewhere = next(each for each, broker in cluster.brokers.items() if broker is not only_replica)
        with pytest.raises(LookupError, match="has no replica"):
            cluster.move_leader(unreplicated, elsewhere)
