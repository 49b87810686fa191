"""The metrics page, with the metric names that Prometheus' JMX exporter gives to Apache Kafka's metrics.

The names follow from Kafka's MBeans and the rules of the exporter and of Strimzi, so existing dashboards and
alerts for Kafka work. docs/metrics.md lists the names, and the metrics of Kafka that kwire omits.

Most values are read from the node during a scrape. The node itself keeps only counts
(`broker.replication.broker_topic_metrics`, `broker.api.request.request_metrics`). Writing a page for many
partitions takes long, so `metrics` yields after each slice of partitions to let the event loop run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from kwire.broker.observe.client_metrics import client_metrics
from kwire.broker.observe.controller_metrics import controller_metrics
from kwire.broker.observe.exposition import Exposition, labels
from kwire.broker.observe.ports import ObservedBroker, ObservedNode, RunningNode
from kwire.broker.observe.process import disk_metrics, process_metrics
from kwire.broker.observe.quorum_metrics import metadata_metrics, quorum_metrics
from kwire.broker.observe.requests import quantiles, request_metrics
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.roles import Role
from kwire.broker.storage.dirs.log_dir import LogDirectory
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
    "failedfetchrequests": "failed_reads",
    "bytesrejected": "bytes_rejected",
    "producemessageconversions": "produce_conversions",
}
REPLICATION_TRAFFIC: Final = {
    "replicationbytesin": "replication_bytes_in",
    "replicationbytesout": "replication_bytes_out",
    "reassignmentbytesin": "reassignment_bytes_in",
    "reassignmentbytesout": "reassignment_bytes_out",
}
REJECTED_RECORDS: Final = {
    "nokeycompactedtopicrecords": "records_without_key",
    "invalidmessagecrcrecords": "corrupt_batches",
    "invalidoffsetorsequencerecords": "invalid_offsets_or_sequences",
}
"""Counts that Kafka has only for all topics together."""
UNKNOWN_SOFTWARE: Final = "unknown"
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
    _idle(running, out)
    quorum_metrics(running, out)
    metadata_metrics(node, out)
    _authorizer(node, out)
    roles = (("kafkaserver", node.config.is_broker), ("controllerserver", node.config.is_controller))
    disk_metrics([f"kafka_server_{name}" for name, has_role in roles if has_role], out)
    if (broker := running.broker) is not None:
        _traffic(broker, out)
        _groups(broker, out)
        _coordinators(broker, out)
        _cleaner(broker, out)
        yield
        yield from _partitions(broker, out)
        yield from client_metrics(broker.telemetry, out)
    if node.config.is_controller:
        yield from controller_metrics(node, out)
    yield from _logs(node, out)


def _authorizer(node: ObservedNode, out: Exposition) -> None:
    audit_log = node.gate.audit_log
    if audit_log is None:
        return
    for role, has_role in (("broker", node.config.is_broker), ("controller", node.config.is_controller)):
        if has_role:
            series_labels = labels(
                **{"config": "authorizer.class.name", "class": "StandardAuthorizer", "role": role}
            )
            allowed, denied = audit_log.per_minute()
            for name, value in (("request", allowed + denied), ("allowed", allowed), ("denied", denied)):
                out.gauge(f"kafka_server_plugins_authorization_{name}_rate_per_minute", value, series_labels)
            out.gauge("kafka_server_plugins_acls_total_count", len(node.image.acls), series_labels)


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
        out.counter(f"{prefix}_connection_creation_total", running.server.accepted[listener], series_labels)
        out.counter(f"{prefix}_connection_close_total", running.server.closed[listener], series_labels)
        of = known.get(listener)
        for name in AUTHENTICATIONS:
            out.counter(f"{prefix}_{name}_total", 0 if of is None else getattr(of, name), series_labels)
        killed = 0 if of is None else of.expired_connections_killed
        out.gauge(f"{prefix}_expired_connections_killed_count", killed, series_labels)
        expired += killed
    out.gauge("kafka_network_socketserver_expiredconnectionskilledcount", expired)
    software = Counter(
        (
            connection.channel.client_software_name,
            connection.channel.client_software_version,
            connection.listener,
        )
        for connection in running.server.connections.values()
    )
    for (name, version, listener), count in software.items():
        series_labels = labels(
            clientSoftwareName=name or UNKNOWN_SOFTWARE,
            clientSoftwareVersion=version or UNKNOWN_SOFTWARE,
            listener=listener,
            networkProcessor=0,
        )
        out.gauge(f"{prefix}_connections_software", count, series_labels)


def _idle(running: RunningNode, out: Exposition) -> None:
    """Write how idle the node is. One thread does the work of Kafka's network and request handler threads."""
    ratio = round(running.loop.idle_ratio(), 6)
    out.gauge("kafka_network_socketserver_networkprocessoravgidle_percent", ratio)
    out.gauge("kafka_network_processor_idle_percent", ratio, labels(networkProcessor=0))
    out.gauge("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", ratio)


def _traffic(node: ObservedBroker, out: Exposition) -> None:
    traffic = node.topic_stats
    total = traffic.total()
    for name, count in {**TRAFFIC, **REPLICATION_TRAFFIC, **REJECTED_RECORDS}.items():
        out.counter(f"kafka_server_brokertopicmetrics_{name}_total", getattr(total, count))
    # Kafka 4 rejects older record formats before the log, and converts no fetched records.
    for name in ("invalidmagicnumberrecords", "fetchmessageconversions"):
        out.counter(f"kafka_server_brokertopicmetrics_{name}_total", 0)
    for topic, known in traffic.topics.items():
        series_labels = labels(topic=topic)
        for name, count in TRAFFIC.items():
            out.counter(f"kafka_server_brokertopicmetrics_{name}_total", getattr(known, count), series_labels)


def _groups(node: ObservedBroker, out: Exposition) -> None:
    from kwire.coordinator.groups.registry import GROUP_TYPES  # imported late, as in the group coordinator

    try:
        listed = node.groups.list_groups((), ())
    except ApiError:
        return  # the number of groups is unknown until the groups are loaded
    groups = node.groups
    states = Counter((group.group_type.lower(), group.group_state) for group in listed)
    protocols = Counter(group.group_type.lower() for group in listed)
    prefix = "kafka_coordinator_group_groupmetadatamanager"
    out.gauge(f"{prefix}_numoffsets", groups.offsets_count())
    # As in Kafka, these are only the groups of the classic protocol.
    out.gauge(f"{prefix}_numgroups", protocols["classic"])
    for state in GROUP_STATES:
        out.gauge(f"{prefix}_numgroups{state.lower()}", states["classic", state])
    prefix = "kafka_server_group_coordinator_metrics"
    for group_type in GROUP_TYPES:
        out.gauge(f"{prefix}_protocol_{group_type.name}_group_count", protocols[group_type.name])
    for name, state in (
        (group_type.name, state) for group_type in GROUP_TYPES for state in group_type.states
    ):
        out.gauge(f"{prefix}_state_{state.lower()}_{name}_group_count", states[name, state])
    for state, count in groups.partition_states().items():
        out.gauge(f"{prefix}_state_{state}_num_partitions", count)
    for name, count in (
        ("commit", groups.offset_commits),
        ("deletion", groups.offset_deletions),
        ("expiration", groups.offset_expirations),
    ):
        out.gauge(f"{prefix}_offset_{name}_count", count)
    out.gauge(f"{prefix}_group_completed_rebalance_count", groups.rebalances.classic_completed)
    out.gauge(f"{prefix}_consumer_group_rebalance_count", groups.rebalances.consumer)


def _coordinators(node: ObservedBroker, out: Exposition) -> None:
    now_ms = node.host.monotonic_ms()
    for name, times in (
        ("group", node.groups.load_times_ms),
        ("transaction", node.transactions.load_times_ms),
    ):
        prefix = f"kafka_server_{name}_coordinator_metrics_partition_load_time"
        out.gauge(f"{prefix}_avg", times.average(now_ms))
        out.gauge(f"{prefix}_max", times.maximum(now_ms))
    verified, prefix = node.verification_metrics, "kafka_server_addpartitionstotxnmanager"
    out.counter(f"{prefix}_verificationfailurerate_count_total", verified.failures)
    quantiles(f"{prefix}_verificationtimems", verified.count, list(verified.recent_ms), out)
    sessions, prefix = node.fetch_sessions, "kafka_server_fetchsessioncache"
    out.gauge(f"{prefix}_numincrementalfetchsessions", len(sessions))
    out.gauge(f"{prefix}_numincrementalfetchpartitionscached", sessions.partition_count())
    out.counter(f"{prefix}_incrementalfetchsessionevictions_total", sessions.evictions)


def _cleaner(node: ObservedBroker, out: Exposition) -> None:
    cleaner = node.cleaner
    figures = cleaner.metrics
    prefix = "kafka_log_logcleaner"
    # A worker that ends is replaced, and its log is cleaned again, so no cleaner is ever dead.
    out.gauge(f"{prefix}_deadthreadcount", 0)
    out.gauge(f"{prefix}_cleaner_recopy_percent", int(100 * figures.recopy_ratio))
    out.gauge(f"{prefix}_max_clean_time_secs", figures.last_clean_ms / 1000)
    prefix = "kafka_log_logcleanermanager"
    out.gauge(f"{prefix}_max_dirty_percent", int(100 * figures.max_dirty_ratio))
    out.gauge(f"{prefix}_time_since_last_run_ms", node.host.monotonic_ms() - figures.last_run_ms)
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for log, size_bytes in cleaner.uncleanable():
        path = node.log_manager.directory_of(log).path
        counts[path] += 1
        sizes[path] += size_bytes
    for directory in node.log_manager.directories():
        if not directory.holds_only_metadata:
            series_labels = _log_directory(directory)
            out.gauge(f"{prefix}_uncleanable_partitions_count", counts[directory.path], series_labels)
            out.gauge(f"{prefix}_uncleanable_bytes", sizes[directory.path], series_labels)


def _log_directory(directory: LogDirectory) -> str:
    # The quotes are part of the label's value in Kafka.
    return labels(logDirectory=f'"{directory.path}"')


class _Counts:
    """Counts of this broker's replicas and of their delayed requests, summed over all partitions."""

    def __init__(self, node: ObservedBroker) -> None:
        self.now_ms = node.host.now_ms()
        self.transaction_timeout_ms = node.config.transaction_max_timeout_ms
        self.roles: Counter[Role] = Counter()
        self.under_replicated = self.under_min_isr = self.at_min_isr = self.reassigned = 0
        self.waiting_appends = self.producer_ids = self.late_transactions = 0
        self.waiting_fetches: set[object] = set()


def _partitions(node: ObservedBroker, out: Exposition) -> Iterator[None]:
    """Write the metrics of all replicas of this broker, including replicas whose logs could not be opened.

    If the metadata has the directory of such a replica, Apache Kafka 4.3.1 counts the replica in
    PartitionCount but not in OfflineReplicaCount. kwire counts it in both, so that an alert on
    OfflineReplicaCount stays active after a restart.
    """
    counts, number = _Counts(node), 0
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
    out.counter(f"{prefix}_failedisrupdates_total", node.leader_partitions.alter_partition.failed_updates)
    out.gauge(f"{prefix}_produceridcount", counts.producer_ids)
    out.gauge(f"{prefix}_partitionswithlatetransactionscount", counts.late_transactions)
    purgatory = "kafka_server_delayedoperationpurgatory"
    for operation, waiting in (
        ("Produce", counts.waiting_appends),
        ("Fetch", len(counts.waiting_fetches)),
        ("DeleteRecords", node.delayed_delete_records),
    ):
        # Kafka's purgatory keeps completed operations for a while, so its two numbers differ.
        for metric in ("purgatorysize", "numdelayedoperations"):
            out.gauge(f"{purgatory}_{metric}", waiting, labels(delayedOperation=operation))
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
    prefix, series_labels = "kafka_server_replicafetchermanager", labels(clientId="Replica")
    out.gauge(f"{prefix}_maxlag", most, series_labels)
    # A fetcher that fails tries again, so no fetcher is ever dead.
    out.gauge(f"{prefix}_deadthreadcount", 0, series_labels)


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
    counts.producer_ids += len(log.producers)
    counts.late_transactions += leads and log.producers.has_late_transaction(
        counts.now_ms, counts.transaction_timeout_ms
    )
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


def _logs(node: ObservedNode, out: Exposition) -> Iterator[None]:
    offline = 0
    for directory in node.log_manager.directories():
        offline += directory.offline
        series_labels = _log_directory(directory)
        out.gauge("kafka_log_logmanager_logdirectoryoffline", int(directory.offline), series_labels)
    out.gauge("kafka_log_logmanager_offlinelogdirectorycount", offline)
    flushes = node.log_manager.flush_metrics
    quantiles("kafka_log_logflushstats_logflushrateandtimems", flushes.count, list(flushes.recent_ms), out)
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
