"""Metrics of the metadata quorum, its connections and the loading of metadata.

The names are those of Strimzi's rules for the JMX exporter, which most dashboards for KRaft use.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kwire.broker.observe.exposition import Exposition, labels
from kwire.broker.raft.quorum import ELECTIONS, FETCHES

if TYPE_CHECKING:
    from kwire.broker.observe.ports import ObservedNode, RunningNode

RAFT: Final = "kafka_server_raftmetrics"
CHANNEL: Final = "kafka_server_raftchannelmetrics"
LOADER: Final = "kafka_server_metadataloader"
EMITTER: Final = "kafka_server_snapshotemitter"
BROKER_METADATA: Final = "kafka_server_brokermetadatametrics"


def quorum_metrics(running: RunningNode, out: Exposition) -> None:
    """Write the metrics of the quorum, as this node sees it."""
    node = running.node
    quorum = node.quorum
    raft, now_ms = quorum.metrics, int(node.host.internode_clock.monotonic_ms())
    described = quorum.describe()
    out.gauge(f"{RAFT}_current_state", 1, labels(current_state=raft.state))
    for name, value in (
        ("current_leader", quorum.leader_id),
        ("current_vote", raft.voted_id),
        ("current_epoch", quorum.epoch),
        ("high_watermark", quorum.high_watermark),
        ("log_end_offset", quorum.log.end_offset),
        ("log_end_epoch", quorum.log.last_epoch),
        ("number_of_voters", len(quorum.log.voters)),
        ("number_of_observers", 0 if described is None else len(described.observers)),
        # Kafka's documentation: the value of this metric is always 0.
        ("number_unknown_voter_connections", 0),
        ("append_records_rate", raft.appended_records.per_second(now_ms)),
        ("fetch_records_rate", raft.fetched_records.per_second(now_ms)),
        ("commit_latency_avg", raft.commit_latency_ms.average(now_ms)),
        ("election_latency_avg", raft.election_latency_ms.average(now_ms)),
        ("poll_idle_ratio_avg", running.loop.idle_ratio()),
    ):
        out.gauge(f"{RAFT}_{name}", _number(value))
    # Strimzi's rules declare these as counters, so their names end with `_total`.
    out.counter(f"{RAFT}_commit_latency_max_total", _number(raft.commit_latency_ms.maximum(now_ms)))
    out.counter(f"{RAFT}_election_latency_max_total", _number(raft.election_latency_ms.maximum(now_ms)))
    traffic = [
        running.peers.traffic[purpose] for purpose in (FETCHES, ELECTIONS) if purpose in running.peers.traffic
    ]
    out.counter(f"{CHANNEL}_incoming_byte_total", sum(one.bytes_in for one in traffic))
    out.counter(f"{CHANNEL}_outgoing_byte_total", sum(one.bytes_out for one in traffic))
    out.counter(f"{CHANNEL}_request_total", raft.requests)
    out.counter(f"{CHANNEL}_response_total", raft.responses)


def metadata_metrics(node: ObservedNode, out: Exposition) -> None:
    """Write how far this node has applied the metadata log, and its snapshots."""
    publisher, snapshotter = node.metadata.publisher, node.metadata.snapshotter
    out.gauge(f"{LOADER}_currentmetadataversion", node.image.metadata_version)
    for feature, level in node.image.features.items():
        first, *others = feature.split(".")
        name = first + "".join(other.capitalize() for other in others)
        out.gauge(f"{LOADER}_finalizedlevel", level, labels(featureName=name))
    out.gauge(f"{LOADER}_currentcontrollerid", node.quorum.leader_id)
    out.gauge(f"{LOADER}_handleloadsnapshotcount", publisher.loaded_snapshots)
    if snapshotter is not None:
        age_ms = node.host.monotonic_ms() - snapshotter.generated_ms
        out.gauge(f"{EMITTER}_latestsnapshotgeneratedbytes", snapshotter.generated_bytes)
        out.gauge(f"{EMITTER}_latestsnapshotgeneratedagems", age_ms)
    if node.config.is_broker:
        out.gauge(f"{BROKER_METADATA}_last_applied_record_offset", node.image.offset)
        out.gauge(f"{BROKER_METADATA}_last_applied_record_timestamp", publisher.last_timestamp_ms)
        out.gauge(f"{BROKER_METADATA}_last_applied_record_lag_ms", applied_lag_ms(node))
        # A node that cannot load its metadata stops.
        out.gauge(f"{BROKER_METADATA}_metadata_load_error_count", 0)
        out.gauge(f"{BROKER_METADATA}_metadata_apply_error_count", publisher.apply_errors)


def applied_lag_ms(node: ObservedNode) -> int:
    """Return the time since the last applied metadata record in ms."""
    timestamp_ms = node.metadata.publisher.last_timestamp_ms
    return max(0, node.host.now_ms() - timestamp_ms) if timestamp_ms >= 0 else 0


def _number(value: float) -> float:
    return value if isinstance(value, int) or math.isnan(value) else round(value, 6)
