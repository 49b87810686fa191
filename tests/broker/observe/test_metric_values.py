"""Metrics whose values follow from a short run in virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kwire.broker.net.loop import Loop
from kwire.broker.node.transaction_ports import NodeTransactionPorts
from kwire.broker.observe.exposition import Exposition
from kwire.broker.observe.metrics import metrics
from kwire.broker.raft.quorum import ELECTIONS, FETCHES
from kwire.broker.storage.cleaner.job import Failed
from kwire.host.clock import ManualClock
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import build
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.records.metadata import PartitionChangeRecord
from tests.broker.node.test_cluster import CONTROLLER, VirtualCluster, broker
from tests.broker.observe.conftest import Series
from tests.broker.observe.test_metrics import TOPIC, running, series_of
from tests.broker.replication.test_two_brokers import NOW_MS, TOPIC_ID, BrokerPair
from tests.node_harness import NodeHarness

CLEANER_BACKOFF_MS = 15_000


def page(node: Any, **parts: Any) -> Series:
    """Return the metrics of a node. `parts` replace attributes of `running`."""
    out = Exposition()
    for _ in metrics(SimpleNamespace(**{**vars(running(node)), **parts}), out):
        pass
    return Series(out.text())


def test_bytes_of_a_reassignment_are_those_of_added_replicas() -> None:
    pair = BrokerPair(partitions=2)
    pair.write(PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[1], adding_replicas=[2]))
    for index in (0, 1):
        pair.produce(index=index)
    pair.settle()
    added_bytes, other_bytes = pair.log(1, 0).size_bytes, pair.log(1, 1).size_bytes
    leader, follower = (series_of(pair.nodes[broker_id].node) for broker_id in (1, 2))
    for series, direction in ((leader, "out"), (follower, "in")):
        assert series.value(f"{TOPIC}_reassignmentbytes{direction}_total") == added_bytes > 0
        assert series.value(f"{TOPIC}_replicationbytes{direction}_total") == added_bytes + other_bytes
    assert leader.value(f"{TOPIC}_reassignmentbytesin_total") == 0
    assert follower.value(f"{TOPIC}_reassignmentbytesout_total") == 0
    assert leader.value("kafka_server_replicamanager_reassigningpartitions") == 1


def test_idle_ratio_is_the_share_of_the_last_windows_without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def poll(seconds: float, _events: int) -> list[tuple[int, int]]:
        sleep(seconds)
        return []

    monkeypatch.setattr("kwire.broker.net.loop.perf_counter", lambda: now_s)
    loop = Loop(ManualClock())
    poller = loop._poller
    loop._poller = SimpleNamespace(poll=poll)

    def run(turns: int, idle_s: float) -> None:
        for _ in range(turns):
            loop.call_soon(lambda: sleep(1 - idle_s))
            loop.turn(idle_s)

    node = NodeHarness().node

    def ratios() -> set[float]:
        series = page(node, loop=loop)
        return {
            series.value("kafka_network_socketserver_networkprocessoravgidle_percent"),
            series.value("kafka_network_processor_idle_percent", networkProcessor="0"),
            series.value("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"),
            series.value("kafka_server_raftmetrics_poll_idle_ratio_avg"),
        }

    run(16, idle_s=0.75)
    assert ratios() == {0.75}
    run(16, idle_s=0.25)
    assert ratios() == {0.5}, "of 32 s"
    run(16, idle_s=0.0)
    assert ratios() == {0.333333}, "of 48 s"
    run(16, idle_s=0.5)
    assert ratios() == {0.25}, "of the last 32 s"
    run(16, idle_s=0.5)
    assert ratios() == {0.333333}, "of the last 48 s"
    loop._poller = poller
    loop.close()


def test_bytes_and_requests_of_the_quorum_are_those_on_the_wire() -> None:
    sent: list[bytes] = []
    received: list[bytes] = []

    class Recorder:
        """The events of a connection, which records the received frames."""

        def __init__(self, link: Any) -> None:
            self._link = link

        def received(self, frame: memoryview) -> None:
            received.append(bytes(frame))
            self._link.received(frame)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._link, name)

    cluster = VirtualCluster(CONTROLLER, broker(2, "two"))
    cluster.events.advance(5_000)
    node = cluster.nodes[2]
    links: Any = node.host.peers
    dial = links.dial

    def recorded(to: Any, link: Any, listener: str) -> Any:
        if link.purpose not in (FETCHES, ELECTIONS):
            return dial(to, link, listener)
        connection = dial(to, Recorder(link), listener)

        def send(frame: bytes) -> None:
            sent.append(bytes(frame))
            connection.send(frame)

        return SimpleNamespace(send=send, close=connection.close)

    prefix = "kafka_server_raftchannelmetrics"
    names = ("outgoing_byte_total", "incoming_byte_total", "request_total", "response_total")

    def values() -> list[float]:
        series = page(node.node, peers=links)
        return [series.value(f"{prefix}_{name}") for name in names]

    links.dial = recorded
    links.disconnect(lambda to: True, "the test records the next connection")
    before = values()
    cluster.events.advance(10_000)
    bytes_out, bytes_in, requests, responses = (now - old for now, old in zip(values(), before, strict=True))
    assert bytes_out == sum(map(len, sent)) > 0
    assert bytes_in == sum(4 + len(frame) for frame in received) > 0
    fetches = [frame for frame in sent if int.from_bytes(frame[4:6]) == ApiKey.FETCH]
    assert requests == len(fetches) > 10
    assert responses == len(received) - 1, "without the response to ApiVersions"


def compacted(harness: NodeHarness, *batches: tuple[bytes, int]) -> None:
    """Create the compacted topic `t`, and append batches of one record, each in a segment of its own."""
    configs = [
        CreatableTopicConfig(name=name, value=value)
        for name, value in (("cleanup.policy", "compact"), ("segment.bytes", "1048576"))
    ]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
    harness.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    for key, size_bytes in batches:
        data = PartitionProduceData(
            index=0, records=memoryview(build([(NOW_MS, key, bytes(size_bytes), [])]))
        )
        request = ProduceRequest(
            acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        )
        assert harness.call(12, request).responses[0].partition_responses[0].error_code == 0
    log = harness.node.log_manager.get("t", 0)
    assert log is not None
    assert len(log.segment_base_offsets) == len(batches)


def cleaner_values(harness: NodeHarness) -> dict[str, float]:
    series = series_of(harness.node)
    names = (
        "kafka_log_logcleaner_cleaner_recopy_percent",
        "kafka_log_logcleaner_max_clean_time_secs",
        "kafka_log_logcleanermanager_max_dirty_percent",
        "kafka_log_logcleanermanager_time_since_last_run_ms",
    )
    return {name.rpartition("cleaner_")[2].rpartition("manager_")[2]: series.value(name) for name in names}


def test_metrics_of_the_log_cleaner_describe_its_last_run() -> None:
    harness = NodeHarness()
    compacted(harness, (b"k", 900_000), (b"k", 600_000), (b"other", 600_000))
    harness.host.advance(CLEANER_BACKOFF_MS - 1)
    idle = cleaner_values(harness)
    assert (idle["recopy_percent"], idle["max_clean_time_secs"], idle["max_dirty_percent"]) == (0, 0, 0)
    held = harness.host.hold_work()
    harness.host.advance(1)
    assert cleaner_values(harness) == {
        "recopy_percent": 0,
        "max_clean_time_secs": 0,
        "max_dirty_percent": 100,
        "time_since_last_run_ms": 0,
    }
    harness.host.advance(2_500)
    assert cleaner_values(harness)["time_since_last_run_ms"] == 2_500
    harness.host.held_work = None
    for task in held:
        task.deliver()
    harness.host.run_pending()
    assert cleaner_values(harness) == {
        "recopy_percent": 40,  # 600,000 of 1,500,000 bytes
        "max_clean_time_secs": 2.5,
        "max_dirty_percent": 0,  # the cleaner has looked for another log
        "time_since_last_run_ms": 0,
    }


def test_partition_that_cannot_be_cleaned_is_counted_in_its_log_directory() -> None:
    harness = NodeHarness()
    compacted(harness, (b"k", 900_000), (b"k", 600_000), (b"other", 600_000))
    log = harness.node.log_manager.get("t", 0)
    assert log is not None
    harness.node.cleaner.handle_finished(log, Failed("damaged", is_permanent=True))
    first, second, _ = log.segments
    series = series_of(harness.node)
    for path in ("/d1", "/d2"):
        has_log = log.directory.startswith(f"{path}/")
        prefix, directory = "kafka_log_logcleanermanager_uncleanable", f'"{path}"'
        count = series.value(f"{prefix}_partitions_count", logDirectory=directory)
        size_bytes = series.value(f"{prefix}_bytes", logDirectory=directory)
        assert (count, size_bytes) == ((1, first.size_bytes + second.size_bytes) if has_log else (0, 0))


def test_load_times_of_the_transaction_coordinator_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    node = VirtualNode({"log.dirs": "/d", "transaction.state.log.num.partitions": "2"})
    durations_ms = iter((7, 3))
    stored_batches = NodeTransactionPorts.stored_batches

    def slow(ports: NodeTransactionPorts, index: int) -> Any:
        node.host.events.clock.advance(next(durations_ms))
        yield from stored_batches(ports, index)

    monkeypatch.setattr(NodeTransactionPorts, "stored_batches", slow)
    prefix = "kafka_server_transaction_coordinator_metrics_partition_load_time"
    before = series_of(node.node)
    assert str(before.value(f"{prefix}_avg")) == str(before.value(f"{prefix}_max")) == "nan"
    node.call(4, FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]))  # creates the topic
    node.host.advance(1_000)
    loaded = series_of(node.node)
    assert (loaded.value(f"{prefix}_avg"), loaded.value(f"{prefix}_max")) == (5, 7)
    node.host.advance(60_000)
    assert str(series_of(node.node).value(f"{prefix}_max")) == "nan", "the window has ended"


def test_late_transaction_is_counted_on_the_leader() -> None:
    """A transaction is late 5 minutes after the longest timeout, which is 15 minutes by default."""
    pair = BrokerPair(partitions=2)
    prefix = "kafka_server_replicamanager_partitionswithlatetransactionscount"

    def counts() -> list[float]:
        return [series_of(pair.nodes[broker_id].node).value(prefix) for broker_id in (1, 2)]

    pair.transact(b"a", base_sequence=0)
    pair.transact(b"b", producer_id=8, base_sequence=0)
    pair.network.events.advance(NOW_MS + 20 * 60_000 - pair.nodes[1].host.now_ms())
    assert counts() == [0, 0]
    pair.network.events.advance(1)
    assert counts() == [1, 0]
    pair.transact(bytes(6), kind=0)
    assert counts() == [1, 0], "another transaction is open"
    pair.transact(bytes(6), kind=0, producer_id=8)
    assert counts() == [0, 0]


def test_fetch_sessions_count_their_partitions_and_evictions() -> None:
    harness = NodeHarness(None, **{"max.incremental.fetch.session.cache.slots": "1"})
    harness.create("t", partitions=3)
    prefix = "kafka_server_fetchsessioncache"

    def values() -> tuple[float, ...]:
        series = series_of(harness.node)
        names = "numincrementalfetchsessions", "numincrementalfetchpartitionscached"
        evictions = series.value(f"{prefix}_incrementalfetchsessionevictions_total")
        return *(series.value(f"{prefix}_{name}") for name in names), evictions

    def fetch(*indexes: int) -> None:
        partitions = [FetchPartition(partition=index, partition_max_bytes=1) for index in indexes]
        topics = [FetchTopic(topic="t", partitions=partitions)]
        harness.call(7, FetchRequest(max_wait_ms=0, session_epoch=0, topics=topics))

    assert values() == (0, 0, 0)
    fetch(0, 1)
    assert values() == (1, 2, 0)
    harness.host.advance(120_001)  # min.incremental.fetch.session.eviction.ms
    fetch(0, 1, 2)
    assert values() == (1, 3, 1)


def test_flushes_are_counted_with_the_time_of_their_syncs() -> None:
    harness = NodeHarness(None, **{"log.flush.interval.messages": "2"})
    harness.create("t")
    name = "kafka_log_logflushstats_logflushrateandtimems"
    before = series_of(harness.node).value(f"{name}_count_total")
    assert before > 0, "the metadata log is flushed"
    harness.disk.sync_s = 0.25
    counts = []
    for _ in range(2 * int(before)):
        harness.produce("t")
        counts.append(series_of(harness.node).value(f"{name}_count_total") - before)
    assert counts == [(number + 1) // 2 for number in range(len(counts))]
    series = series_of(harness.node)
    assert series.value(name, quantile="0.50") == 0
    assert series.value(name, quantile="0.999") == 250


def test_rebalances_are_exported_by_protocol() -> None:
    node = NodeHarness().node
    node.groups.rebalances.classic_completed, node.groups.rebalances.consumer = 3, 5
    series = series_of(node)
    prefix = "kafka_server_group_coordinator_metrics"
    assert series.value(f"{prefix}_group_completed_rebalance_count") == 3
    assert series.value(f"{prefix}_consumer_group_rebalance_count") == 5
