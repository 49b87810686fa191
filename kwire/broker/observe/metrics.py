"""The metrics page, with the metric names that Prometheus' JMX exporter gives to Apache Kafka's metrics.

The names follow from Kafka's MBeans and the exporter's rules for brokers (kafka-2_0_0.yml), so existing
dashboards and alerts for Kafka work. A metric that has no meaning in kwire, for example the size of a request
queue, is omitted.

Most values are read from the node during a scrape. The node itself keeps only counts
(`broker.replication.broker_topic_metrics`, `broker.api.request.request_metrics`). Writing a page for many
partitions takes long, so `metrics` yields after each slice of partitions to let the event loop run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from kwire.broker.metadata.image import NO_LEADER
from kwire.broker.observe.client_metrics import client_metrics
from kwire.broker.observe.exposition import Exposition, labels
from kwire.broker.observe.ports import ObservedBroker, ObservedNode, RunningNode
from kwire.broker.observe.process import process_metrics
from kwire.broker.observe.requests import request_metrics
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.roles import Role
from kwire.broker.storage.log.log import Log
from kwire.wire.errors import ApiError

SLICE: Final = 50
"""The number of partitions that are written before the next pause."""

TRAFFIC: Final = {
    "messagesin": "messages_in",
    "bytesin": "bytes_in",
    "bytesout": "bytes_out",
    "totalfetchrequests": "reads",
    "totalproducerequests": "appends",
    "failedproducerequests": "failed_appends",
}
REPLICATION_TRAFFIC: Final = {
    "replicationbytesin": "replication_bytes_in",
    "replicationbytesout": "replication_bytes_out",
}
AUTHENTICATIONS: Final = (
    "successful_authentication",
    "successful_authentication_no_reauth",
    "successful_reauthentication",
    "failed_authentication",
    "failed_reauthentication",
)
GROUP_STATES: Final = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")


def metrics(running: RunningNode, out: Exposition) -> Iterator[None]:
    """Write all metrics of a node to `out`. The iterator yields regularly so that the event loop can run."""
    node = running.node
    process_metrics(out)
    request_metrics(running.server.request_metrics, out)
    _connections(running, out)
    _quorum(node, out)
    if (broker := running.broker) is not None:
        _traffic(broker, out)
        _groups(broker, out)
        yield
        yield from _partitions(broker, out)
        yield from client_metrics(broker.telemetry, out)
    if node.config.is_controller:
        yield from _controller(node, out)
    yield from _logs(node, out)


def _connections(running: RunningNode, out: Exposition) -> None:
    counts = Counter({listener.name: 0 for listener in running.server.listeners})
    counts.update(connection.listener for connection in running.server.connections.values())
    sessions = running.node.sessions
    known = {} if sessions is None else sessions.counts
    prefix, expired = "kafka_server_socket_server_metrics", 0
    for listener, count in counts.items():
        # networkProcessor is Kafka's number of a network thread. kwire has only one network thread.
        series_labels = labels(listener=listener, networkProcessor=0)
        out.gauge(f"{prefix}_connection_count", count, series_labels)
        of = known.get(listener)
        for name in AUTHENTICATIONS:
            out.counter(f"{prefix}_{name}_total", 0 if of is None else getattr(of, name), series_labels)
        killed = 0 if of is None else of.expired_connections_killed
        out.gauge(f"{prefix}_expired_connections_killed_count", killed, series_labels)
        expired += killed
    out.gauge("kafka_network_socketserver_expiredconnectionskilledcount", expired)


def _quorum(node: ObservedNode, out: Exposition) -> None:
    quorum = node.quorum
    for name, value in (
        ("current_leader", quorum.leader_id),
        ("current_epoch", quorum.epoch),
        ("high_watermark", quorum.high_watermark),
        ("log_end_offset", quorum.log.end_offset),
    ):
        out.gauge(f"kafka_server_raftmetrics_{name}", value)


def _traffic(node: ObservedBroker, out: Exposition) -> None:
    traffic = node.topic_stats
    total = traffic.total()
    for name, count in {**TRAFFIC, **REPLICATION_TRAFFIC}.items():
        out.counter(f"kafka_server_brokertopicmetrics_{name}_total", getattr(total, count))
    for topic, known in traffic.topics.items():
        series_labels = labels(topic=topic)
        for name, count in TRAFFIC.items():
            out.counter(f"kafka_server_brokertopicmetrics_{name}_total", getattr(known, count), series_labels)


def _groups(node: ObservedBroker, out: Exposition) -> None:
    try:
        listed = node.groups.list_groups((), ())
    except ApiError:
        return  # the number of groups is unknown until the groups are loaded
    states = Counter(group.group_state for group in listed)
    prefix = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    out.gauge(prefix, len(listed))
    for state in GROUP_STATES:
        out.gauge(f"{prefix}{state.lower()}", states[state])


class _Counts:
    """Counts of this broker's replicas and of their delayed requests, summed over all partitions."""

    def __init__(self) -> None:
        self.roles: Counter[Role] = Counter()
        self.under_replicated = self.under_min_isr = self.at_min_isr = self.reassigned = 0
        self.waiting_appends = 0
        self.waiting_fetches: set[object] = set()


def _partitions(node: ObservedBroker, out: Exposition) -> Iterator[None]:
    """Write the metrics of all replicas of this broker, including replicas whose logs could not be opened.

    If the metadata has the directory of such a replica, Apache Kafka 4.3.1 counts the replica in
    PartitionCount but not in OfflineReplicaCount. kwire counts it in both, so that an alert on
    OfflineReplicaCount stays active after a restart.
    """
    counts, number = _Counts(), 0
    for topic in node.image.topics.values():
        for index, image in enumerate(topic.partitions):
            if node.node_id not in image.replicas:
                continue
            number += 1
            role, partition = (
                node.replica_manager.role(topic.name, index),
                node.replica_manager.get(topic.name, index),
            )
            counts.roles[role] += role is not Role.ABSENT
            if (
                partition is not None and role is not Role.OFFLINE
            ):  # for offline replicas Kafka has only counts
                _partition(partition, counts, out)
            if role is Role.LEADER:
                counts.reassigned += bool(image.adding_replicas or image.removing_replicas)
            if not number % SLICE:
                yield
    prefix = "kafka_server_replicamanager"
    out.gauge(f"{prefix}_partitioncount", counts.roles.total())
    out.gauge(f"{prefix}_leadercount", counts.roles[Role.LEADER])
    out.gauge(f"{prefix}_offlinereplicacount", counts.roles[Role.OFFLINE])
    out.gauge(f"{prefix}_underreplicatedpartitions", counts.under_replicated)
    out.gauge(f"{prefix}_underminisrpartitioncount", counts.under_min_isr)
    out.gauge(f"{prefix}_atminisrpartitioncount", counts.at_min_isr)
    out.gauge(f"{prefix}_reassigningpartitions", counts.reassigned)
    out.counter(f"{prefix}_isrshrinks_total", node.leader_partitions.isr_shrinks)
    out.counter(f"{prefix}_isrexpands_total", node.leader_partitions.isr_expands)
    purgatory = "kafka_server_delayedoperationpurgatory_purgatorysize"
    out.gauge(purgatory, counts.waiting_appends, labels(delayedOperation="Produce"))
    out.gauge(purgatory, len(counts.waiting_fetches), labels(delayedOperation="Fetch"))
    out.gauge("kafka_server_kafkaserver_brokerstate", node.lifecycle.kafka_state)
    yield
    most = 0
    for fetcher, follower in node.fetcher_manager.followers():
        most = max(most, follower.lag)
        series_labels = labels(
            clientId=f"{fetcher.purpose}-{fetcher.leader_id}",
            topic=follower.partition.topic,
            partition=follower.partition.index,
        )
        out.gauge("kafka_server_fetcherlagmetrics_consumerlag", follower.lag, series_labels)
    out.gauge("kafka_server_replicafetchermanager_maxlag", most, labels(clientId="Replica"))


def _partition(partition: Partition, counts: _Counts, out: Exposition) -> None:
    log = partition.log
    led = partition.remote_replicas
    leads = partition.role is Role.LEADER
    replicas = in_sync = 0
    if leads:
        replicas, in_sync = (1, 1) if led is None else (len(led.followers) + 1, len(led.isr))
    needed = min(log.config.min_insync_replicas, replicas)
    is_under_replicated = in_sync < replicas
    is_under_min_isr = in_sync < needed
    counts.under_replicated += is_under_replicated
    counts.under_min_isr += is_under_min_isr
    counts.at_min_isr += leads and in_sync == needed
    counts.waiting_appends += partition.delayed_produce_count
    counts.waiting_fetches.update(partition.delayed_fetches)
    series_labels = labels(topic=partition.topic, partition=partition.index)
    prefix = "kafka_cluster_partition"
    out.gauge(f"{prefix}_replicascount", replicas, series_labels)
    out.gauge(f"{prefix}_insyncreplicascount", in_sync, series_labels)
    out.gauge(f"{prefix}_underreplicated", int(is_under_replicated), series_labels)
    out.gauge(f"{prefix}_underminisr", int(is_under_min_isr), series_labels)
    out.gauge(f"{prefix}_atminisr", int(leads and in_sync == needed), series_labels)
    lag = log.high_watermark - log.last_stable_offset if leads else 0
    out.gauge(f"{prefix}_laststableoffsetlag", lag, series_labels)


def _controller(node: ObservedNode, out: Exposition) -> Iterator[None]:
    image = node.image
    prefix = "kafka_controller_kafkacontroller"
    partitions = offline = not_preferred = 0
    for topic in list(image.topics.values()):
        for partition in topic.partitions:
            partitions += 1
            offline += partition.leader == NO_LEADER
            not_preferred += partition.leader != partition.replicas[0]
            if not partitions % (20 * SLICE):
                yield
    fenced = sum(broker.fenced for broker in image.brokers.values())
    out.gauge(f"{prefix}_activecontrollercount", int(node.quorum.leads))
    out.gauge(f"{prefix}_activebrokercount", len(image.brokers) - fenced)
    out.gauge(f"{prefix}_fencedbrokercount", fenced)
    out.gauge(f"{prefix}_globaltopiccount", len(image.topics))
    out.gauge(f"{prefix}_globalpartitioncount", partitions)
    out.gauge(f"{prefix}_offlinepartitionscount", offline)
    out.gauge(f"{prefix}_preferredreplicaimbalancecount", not_preferred)
    out.gauge(f"{prefix}_lastappliedrecordoffset", image.offset)


def _logs(node: ObservedNode, out: Exposition) -> Iterator[None]:
    offline = 0
    for directory in node.log_manager.directories():
        offline += directory.offline
        series_labels = labels(logDirectory=directory.path)
        out.gauge("kafka_log_logmanager_logdirectoryoffline", int(directory.offline), series_labels)
    out.gauge("kafka_log_logmanager_offlinelogdirectorycount", offline)
    for number, log in enumerate(list(node.log_manager.logs()), 1):
        if log.failure is None:
            _log(log, out)
        if not number % SLICE:
            yield


def _log(log: Log, out: Exposition) -> None:
    series_labels = labels(topic=log.topic, partition=log.partition)
    out.gauge("kafka_log_log_size", log.size_bytes, series_labels)
    out.gauge("kafka_log_log_logstartoffset", log.log_start_offset, series_labels)
    out.gauge("kafka_log_log_logendoffset", log.log_end_offset, series_labels)
    out.gauge("kafka_log_log_numlogsegments", len(log.segment_base_offsets), series_labels)
