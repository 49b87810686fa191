"""Invariants of all nodes of a simulated cluster, which are checked after each event.

- A partition has at most one leader per leader epoch. Leader epochs and partition epochs only increase.
- The high watermark of a leader does not decrease. Below its own high watermark, each replica has the same
  batches as the leader: same offsets, leader epochs and CRCs.
- At least `min.insync.replicas` replicas have the records below the high watermark.
- Each replica in the ISR has every committed record, if its broker runs with the broker epoch that the
  controller knows.
- Leaders are elected from the ISR or the ELR.

Only nodes that have run since the last check are checked, and only the new part of their logs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kwire.broker.metadata.image import NO_LEADER, BrokerImage, MetadataImage, PartitionImage
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.roles import Role
from kwire.broker.storage.log.log import Log
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.nodes import ClusterNode
from kwire.testing.simulated.oracle import CommittedPartition, Oracle
from kwire.testing.simulated.quorum_invariants import QuorumInvariants
from kwire.testing.simulated.violation import Violation
from kwire.wire.batch import batches, records
from kwire.wire.primitives import Uuid

READ_BYTES: Final = 1 << 24


@dataclass(slots=True)
class ObservedReplica:
    """The state of a replica at the last check."""

    start_count: int
    role: Role = Role.ABSENT
    leader_epoch: int = -1
    high_watermark: int = -1
    end: int = 0
    checked_end: int = 0
    """Up to this offset, the log has been compared with the committed records."""


class ClusterInvariants:
    """The checks of all nodes, and the metadata that the checks use."""

    def __init__(
        self,
        nodes: dict[int, ClusterNode],
        oracle: Oracle,
        min_insync_replicas: int,
        note: Callable[[str], None],
    ) -> None:
        self.image = MetadataImage()
        """The latest metadata image of any controller."""
        self._quorum = QuorumInvariants()
        self._images: dict[int, tuple[int, int]] = {}
        """Start count and metadata offset of each controller at the last check."""
        self._nodes = nodes
        self.partitions = [TopicPartition("__consumer_offsets", 0), TopicPartition("__transaction_state", 0)]
        """The partitions to check. Partitions that the controller creates are added."""
        self._topic_ids: dict[str, Uuid] = {}
        self._oracle = oracle
        self._min_insync_replicas = min_insync_replicas
        self._note = note
        self._observed: dict[tuple[int, TopicPartition], ObservedReplica] = {}
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self._partitions: dict[TopicPartition, PartitionImage] = {}
        self._brokers: dict[int, str] = {}

    def check(self) -> None:
        """Check all nodes that have run since the last check. Raises Violation if an invariant fails."""
        for node in self._nodes.values():
            if node.needs_check:
                node.needs_check = False
                if node.is_running:
                    self.check_node(node)
                else:
                    self._check_ended_node(node)

    def check_node(self, node: ClusterNode) -> None:
        """Check one node, which may just have stopped. Raises Violation if an invariant fails."""
        with node.disk.without_faults():
            self._check_node(node)

    def _check_node(self, node: ClusterNode) -> None:
        self._quorum.check(node)
        if node.is_controller:
            self._check_image(node)
        if not node.is_broker:
            return
        for topic_partition in self.partitions:
            partition = node.node.replica_manager.get(*topic_partition)
            if partition is not None:
                self._check_replica(node, topic_partition, partition)

    # --- metadata

    def _check_image(self, node: ClusterNode) -> None:
        """Adopt a controller's image if it is the latest one.

        Raises Violation if the image is older than an earlier one of the same process, or has metadata before
        any was committed: a formatted snapshot is not committed.
        """
        image = node.node.image
        if image.features and image.offset <= 0:
            raise Violation(f"{node.name} has published feature levels that are not committed")
        known = self._images.get(node.node_id, (0, -1))
        if known[0] == node.start_count and image.offset < known[1]:
            raise Violation(f"the metadata of {node.name} went back from offset {known[1]} to {image.offset}")
        self._images[node.node_id] = node.start_count, image.offset
        if image.offset > self.image.offset:
            self._update_image(image)

    def _update_image(self, image: MetadataImage) -> None:
        self.image = image
        for broker_id, broker in image.brokers.items():
            state = (
                "fenced"
                if broker.fenced
                else "in controlled shutdown"
                if broker.in_controlled_shutdown
                else "unfenced"
            )
            if not broker.fenced:
                self._check_caught_up(broker)
            described = f"{state}, broker epoch {broker.broker_epoch}"
            if self._brokers.get(broker_id) != described:
                self._brokers[broker_id] = described
                self._note(f"controller: broker {broker_id} is {described}")
        self._update_topics(image)
        for topic_partition in self.partitions:
            topic = image.topics.get(topic_partition.topic)
            if topic is None or topic_partition.partition >= len(topic.partitions):
                continue
            now, before = topic.partitions[topic_partition.partition], self._partitions.get(topic_partition)
            if now == before:
                continue
            self._partitions[topic_partition] = now
            self._note(f"controller: {topic_partition} has {describe_partition(now)}")
            if before is None:
                continue
            if now.leader_epoch < before.leader_epoch or now.partition_epoch <= before.partition_epoch:
                raise Violation(f"the epochs of {topic_partition} do not increase: {before} became {now}")
            if now.leader not in (NO_LEADER, before.leader, *before.isr, *before.elr):
                self._check_unclean_election(topic_partition, before, now)
            self._check_isr(topic_partition)

    def _update_topics(self, image: MetadataImage) -> None:
        """Add new topics and forget deleted topics. A new topic may have the name of a deleted topic."""
        for name in [each for each in self._topic_ids if each not in image.topics]:
            self._forget(name)
        for name, topic in image.topics.items():
            if self._topic_ids.get(name, topic.topic_id) != topic.topic_id:
                self._forget(name)
            self._topic_ids[name] = topic.topic_id
            for topic_partition in (TopicPartition(name, index) for index in range(len(topic.partitions))):
                if topic_partition not in self.partitions:
                    self.partitions.append(topic_partition)

    def _forget(self, topic: str) -> None:
        del self._topic_ids[topic]
        for topic_partition in [each for each in self._partitions if each.topic == topic]:
            self._note(f"controller: {topic_partition} is deleted")
            self.partitions.remove(topic_partition)
            del self._partitions[topic_partition]
            self._oracle.forget(topic_partition)
        for topic_partition, epoch in [each for each in self._leaders if each[0].topic == topic]:
            del self._leaders[topic_partition, epoch]
        for node_id, topic_partition in [each for each in self._observed if each[1].topic == topic]:
            del self._observed[node_id, topic_partition]

    def _check_caught_up(self, broker: BrokerImage) -> None:
        """Check that an unfenced broker has replayed the metadata log up to its own registration."""
        node = self._nodes[broker.broker_id]
        if node.is_running and node.node.lifecycle.broker_epoch == broker.broker_epoch:
            offset = node.node.image.offset
            if offset < broker.broker_epoch:
                raise Violation(
                    f"broker {broker.broker_id} is unfenced with metadata up to offset {offset}, below its "
                    f"registration at {broker.broker_epoch}"
                )

    def _check_unclean_election(
        self, topic_partition: TopicPartition, before: PartitionImage, now: PartitionImage
    ) -> None:
        """Check the election of a leader outside the ISR and ELR. KIP-966 allows the last known leader."""
        if (
            # After several changes at once, the new leader may have been in the ISR in between.
            now.partition_epoch == before.partition_epoch + 1
            and now.leader not in (*before.adding_replicas, *before.last_known_elr)
        ):
            raise Violation(
                f"{topic_partition} had {describe_partition(before)}, and has {describe_partition(now)}: "
                "the leader was not in sync"
            )

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """Return the state of a partition in the latest metadata, or None if there is no such partition."""
        return self._partitions.get(topic_partition)

    def _check_isr(self, topic_partition: TopicPartition) -> None:
        """Check that replicas in the ISR have all committed records, unless their brokers have failed."""
        known, end = self._partitions.get(topic_partition), self._oracle.committed_in(topic_partition).end
        if known is None:
            return
        for broker_id in known.isr:
            node, registered = self._nodes[broker_id], self.image.brokers.get(broker_id)
            if registered is None or registered.fenced or not node.is_running or node.disk.broken_directories:
                continue
            if node.node.lifecycle.broker_epoch != registered.broker_epoch:
                continue
            partition = node.node.replica_manager.get(*topic_partition)
            has = 0 if partition is None else partition.log.log_end_offset
            if has < end and (partition is None or partition.role is not Role.OFFLINE):
                raise Violation(
                    f"broker {broker_id} is in the ISR of {topic_partition} with log end offset {has}, but "
                    f"offsets up to {end} are committed"
                )

    # --- replicas

    def _check_ended_node(self, node: ClusterNode) -> None:
        """Call `_record_failed_leader` for a node that stopped in the same event in which its disk failed."""
        for topic_partition in self.partitions if node.is_broker else ():
            partition = node.node.replica_manager.get(*topic_partition)
            if partition is not None:
                self._record_failed_leader(node, topic_partition, partition)

    def _record_failed_leader(
        self, node: ClusterNode, topic_partition: TopicPartition, partition: Partition
    ) -> None:
        """Record the high watermark of a failed leader, since its log can no longer be read and checked."""
        seen, committed = (
            self._observed.get((node.node_id, topic_partition)),
            self._oracle.committed_in(topic_partition),
        )
        if seen is not None and seen.start_count == node.start_count and seen.role is Role.LEADER:
            committed.unverified_end = max(committed.unverified_end, partition.log.high_watermark)

    def _check_replica(
        self, node: ClusterNode, topic_partition: TopicPartition, partition: Partition
    ) -> None:
        log = partition.log
        if log.failure is not None or partition.role is Role.OFFLINE:
            self._record_failed_leader(node, topic_partition, partition)
            return
        if self._topic_ids.get(topic_partition.topic) != partition.topic_id:
            return  # the replica of a topic that is deleted, or not in the metadata yet
        key = (node.node_id, topic_partition)
        seen = self._observed.get(key)
        if seen is None or seen.start_count != node.start_count:
            seen = self._observed[key] = ObservedReplica(node.start_count)
        role, epoch, high_watermark, end = (
            partition.role,
            partition.leader_epoch,
            log.high_watermark,
            log.written_end_offset,
        )
        if (seen.role, seen.leader_epoch, seen.high_watermark, seen.end) == (
            role,
            epoch,
            high_watermark,
            end,
        ):
            return
        self._check_monotonic(node, topic_partition, seen, partition)
        # A former leader may have raised its high watermark in the same event, before it resigned.
        has_led = Role.LEADER in (role, seen.role)
        went_back = end < seen.end
        if went_back:
            self._note(f"{node.name} truncates {topic_partition} to offset {end} from {seen.end}")
            seen.checked_end = min(seen.checked_end, end)
        seen.role, seen.leader_epoch, seen.high_watermark, seen.end = role, epoch, high_watermark, end
        committed = self._oracle.committed_in(topic_partition)
        if self._has_discarded_records(topic_partition, partition, committed, has_led=has_led):
            return
        if has_led and high_watermark > committed.end:
            self._commit(topic_partition, log, committed)
        self._compare(node, topic_partition, log, seen, committed)
        if went_back:
            self._check_isr(topic_partition)

    def _has_discarded_records(
        self,
        topic_partition: TopicPartition,
        partition: Partition,
        committed: CommittedPartition,
        *,
        has_led: bool,
    ) -> bool:
        """Return whether a replica may have records that an unclean leader election has discarded or will.

        `has_led` is whether the replica is the leader, or was the leader at the last check.
        """
        return False  # no topic allows unclean elections

    def _check_monotonic(
        self, node: ClusterNode, topic_partition: TopicPartition, seen: ObservedReplica, partition: Partition
    ) -> None:
        """Check the leader epoch, its leader, the high watermark and the log start offset of a replica."""
        log, epoch = partition.log, partition.leader_epoch
        if epoch < seen.leader_epoch:
            raise Violation(
                f"{node.name} went back in {topic_partition} from leader epoch {seen.leader_epoch} to {epoch}"
            )
        if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
            raise Violation(f"{node.name} has high watermark {log.high_watermark} in {log!r}")
        self._oracle.on_log_start(topic_partition, log.log_start_offset, node.name)
        if partition.role is Role.LEADER:
            leader = self._leaders.setdefault((topic_partition, epoch), node.node_id)
            if leader != node.node_id:
                raise Violation(f"{topic_partition} has leaders {leader} and {node.node_id} in epoch {epoch}")
            if seen.role is Role.LEADER and log.high_watermark < seen.high_watermark:
                raise Violation(
                    f"the high watermark of {topic_partition} went back on its leader {node.name} from "
                    f"{seen.high_watermark} to {log.high_watermark}"
                )
            if seen.role is not Role.LEADER:
                self._note(
                    f"{node.name} is leader of {topic_partition} in leader epoch {epoch} "
                    f"from offset {log.log_end_offset}"
                )

    def _commit(self, topic_partition: TopicPartition, log: Log, committed: CommittedPartition) -> None:
        """Record the batches that a leader's high watermark has passed."""
        high_watermark = log.high_watermark
        content = log.read(committed.end, max_bytes=READ_BYTES, up_to_offset=high_watermark).read()
        for at, header in batches(content):
            if header.base_offset < committed.end or header.base_offset >= high_watermark:
                continue
            committed.crcs[header.base_offset] = (header.next_offset, header.crc, header.leader_epoch)
            if not topic_partition.topic.startswith("__"):
                self._oracle.commit_batch(topic_partition, header, records(content, at, header))
        committed.end = high_watermark
        self._check_isr(topic_partition)
        self._check_replicas(topic_partition, high_watermark)

    def _check_replicas(self, topic_partition: TopicPartition, high_watermark: int) -> None:
        """Check that enough replicas have the committed records. Nodes that are down count as last seen."""
        known = self._partitions.get(topic_partition)
        if known is None:
            return
        ends = {}
        for broker_id in known.replicas:
            node, seen = self._nodes[broker_id], self._observed.get((broker_id, topic_partition))
            ends[broker_id] = seen.end if seen is not None else 0
            if node.is_running and (partition := node.node.replica_manager.get(*topic_partition)) is not None:
                ends[broker_id] = partition.log.log_end_offset
        least = min(self._min_insync_replicas, len(known.replicas))
        if sum(end >= high_watermark for end in ends.values()) < least:
            raise Violation(
                f"{topic_partition} is committed up to {high_watermark}, but its replicas end at {ends}"
            )

    def _compare(
        self,
        node: ClusterNode,
        topic_partition: TopicPartition,
        log: Log,
        seen: ObservedReplica,
        committed: CommittedPartition,
    ) -> None:
        """Check that the log below a replica's high watermark equals the committed batches."""
        up_to = min(log.high_watermark, committed.end)
        if log.high_watermark > committed.end:
            raise Violation(
                f"{node.name} has high watermark {log.high_watermark} of {topic_partition}, "
                f"which is committed up to {committed.end}"
            )
        start = max(seen.checked_end, log.log_start_offset)
        if start >= up_to:
            return
        content = log.read(start, max_bytes=READ_BYTES, up_to_offset=up_to).read()
        following = start
        for _, header in batches(content):
            if header.base_offset < start or header.base_offset >= up_to:
                following = max(following, min(header.next_offset, up_to))
                continue
            if header.base_offset > following and not topic_partition.topic.startswith("__"):
                raise Violation(
                    f"{node.name} lacks offsets {following} to {header.base_offset - 1} of {topic_partition}"
                )
            following = header.next_offset
            found = (header.next_offset, header.crc, header.leader_epoch)
            expected = committed.crcs.get(header.base_offset)
            if found != expected:
                raise Violation(
                    f"{node.name} has {found} (next offset, CRC, leader epoch) at offset "
                    f"{header.base_offset} of {topic_partition}, where {expected} is committed"
                )
        if following < up_to:
            raise Violation(f"{node.name} lacks offsets {following} to {up_to - 1} of {topic_partition}")
        seen.checked_end = up_to


def describe_partition(partition: PartitionImage) -> str:
    """Describe the leader, ISR and ELR of a partition."""
    leader = "no leader" if partition.leader < 0 else f"leader {partition.leader}"
    text = f"{leader}, leader epoch {partition.leader_epoch}, ISR {list(partition.isr)}"
    if partition.elr:
        text += f", ELR {list(partition.elr)}"
    if partition.last_known_elr:
        text += f", last known ELR {list(partition.last_known_elr)}"
    if partition.adding_replicas or partition.removing_replicas:
        text += f", of {list(partition.replicas)} +{list(partition.adding_replicas)}"
        text += f" -{list(partition.removing_replicas)}"
    return text
