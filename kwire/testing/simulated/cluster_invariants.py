"""What must be true of all nodes after each step, whoever has just done something.

- A partition has one leader an epoch; epochs of leaders and partitions grow.
- The high watermark of a leader does not go back, and what it rises over is the same on every replica whose
  own high watermark is there: batch by batch, epoch and CRC.
- It rises over nothing that fewer than min.insync.replicas have.
- Whoever is in sync, lives, and is registered as what it is, has everything that is committed.
- Nobody is elected who was not in sync, but where that is allowed: then what that leader lacks is lost, and
  nothing else.

Only nodes to which something has happened are looked at, and of their logs only what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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
    """What a replica was when it was last looked at."""

    start_count: int
    role: Role = Role.ABSENT
    leader_epoch: int = -1
    high_watermark: int = -1
    end: int = 0
    checked_end: int = 0
    """Up to here its log is what is committed."""


class ClusterInvariants:
    """See the module."""

    def __init__(
        self,
        nodes: dict[int, ClusterNode],
        places: list[TopicPartition],
        ledger: Oracle,
        min_insync_replicas: int,
        note: Callable[[str], None],
        lossy: Collection[str] = (),
    ) -> None:
        """`lossy` are the topics with unclean.leader.election.enable."""
        self.image = MetadataImage()
        """The newest that a controller has published."""
        self._quorum = QuorumInvariants()
        self._images: dict[int, tuple[int, int]] = {}
        """The life of each controller, and how far its metadata went when it was last looked at."""
        self._nodes = nodes
        self.partitions = places
        """The partitions to look at: these, and those that the controller has made."""
        self._topic_ids: dict[str, Uuid] = {}
        self._oracle = ledger
        self._min_insync_replicas = min_insync_replicas
        self._note = note
        self._lossy_topics = lossy
        self._observed: dict[tuple[int, TopicPartition], ObservedReplica] = {}
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self._partitions: dict[TopicPartition, PartitionImage] = {}
        self._brokers: dict[int, str] = {}

    def check(self) -> None:
        """Look at everything that may have changed. Violation."""
        for node in self._nodes.values():
            if node.needs_check:
                node.needs_check = False
                if node.is_running:
                    self.check_node(node)
                else:
                    self._check_ended_node(node)

    def check_node(self, node: ClusterNode) -> None:
        """Look at one node, which may just have ended. Violation."""
        with node.disk.without_faults():
            self._check_node(node)

    def _check_node(self, node: ClusterNode) -> None:
        self._quorum.check(node)
        if node.is_controller:
            self._check_image(node)
        if not node.is_broker:
            return
        for place in self.partitions:
            partition = node.node.replica_manager.get(*place)
            if partition is not None:
                self._check_replica(node, place, partition)

    # --- what the controller says

    def _check_image(self, node: ClusterNode) -> None:
        """The newest image of any controller counts; none of them goes back in its life."""
        image = node.node.image
        known = self._images.get(node.node_id, (0, -1))
        if known[0] == node.start_count and image.offset < known[1]:
            raise Violation(f"the metadata of {node.name} went back from {known[1]} to {image.offset}")
        self._images[node.node_id] = node.start_count, image.offset
        if image.offset > self.image.offset:
            self._update_image(image)

    def _update_image(self, image: MetadataImage) -> None:
        self.image = image
        for broker_id, broker in image.brokers.items():
            state = "fenced" if broker.fenced else "leaving" if broker.in_controlled_shutdown else "unfenced"
            if not broker.fenced:
                self._check_caught_up(broker)
            told = f"{state}, epoch {broker.broker_epoch}"
            if self._brokers.get(broker_id) != told:
                self._brokers[broker_id] = told
                self._note(f"controller: broker {broker_id} is {told}")
        self._update_topics(image)
        for place in self.partitions:
            topic = image.topics.get(place.topic)
            if topic is None or place.partition >= len(topic.partitions):
                continue
            now, before = topic.partitions[place.partition], self._partitions.get(place)
            if now == before:
                continue
            self._partitions[place] = now
            self._note(f"controller: {place} {describe_partition(now)}")
            if before is None:
                continue
            if now.leader_epoch < before.leader_epoch or now.partition_epoch <= before.partition_epoch:
                raise Violation(f"the epochs of {place} do not grow: {before} became {now}")
            if now.leader not in (NO_LEADER, before.leader, *before.isr, *before.elr):
                self._check_unclean_election(place, before, now)
            self._check_isr(place)

    def _update_topics(self, image: MetadataImage) -> None:
        """Know those that there are, and forget those that are gone: another one may have the name."""
        for name in [each for each in self._topic_ids if each not in image.topics]:
            self._forget(name)
        for name, topic in image.topics.items():
            if self._topic_ids.get(name, topic.topic_id) != topic.topic_id:
                self._forget(name)
            self._topic_ids[name] = topic.topic_id
            for place in (TopicPartition(name, index) for index in range(len(topic.partitions))):
                if place not in self.partitions:
                    self.partitions.append(place)

    def _forget(self, topic: str) -> None:
        del self._topic_ids[topic]
        for place in [each for each in self._partitions if each.topic == topic]:
            self._note(f"controller: {place} is deleted")
            self.partitions.remove(place)
            del self._partitions[place]
            self._oracle.forget(place)
        for place, epoch in [each for each in self._leaders if each[0].topic == topic]:
            del self._leaders[place, epoch]
        for node_id, place in [each for each in self._observed if each[1].topic == topic]:
            del self._observed[node_id, place]

    def _check_caught_up(self, broker: BrokerImage) -> None:
        """Who is unfenced knows at least of its own registration, and what was before it."""
        node = self._nodes[broker.broker_id]
        if node.is_running and node.node.lifecycle.broker_epoch == broker.broker_epoch:
            offset = node.node.image.offset
            if offset < broker.broker_epoch:
                raise Violation(
                    f"broker {broker.broker_id} is unfenced, with the metadata up to {offset}: it registered "
                    f"at {broker.broker_epoch}"
                )

    def _check_unclean_election(
        self, place: TopicPartition, before: PartitionImage, now: PartitionImage
    ) -> None:
        """Somebody is to lead who may lack something; not so whoever is known to have led last. KIP-966."""
        if place.topic in self._lossy_topics:
            self._note(f"controller: {place} may lose what its leader lacks")
            self._oracle.committed_in(place).awaits_unclean_leader = True
        elif (
            # Not where it may have come to be in sync in between, or just then.
            now.partition_epoch == before.partition_epoch + 1
            and now.leader not in (*before.adding_replicas, *before.last_known_elr)
        ):
            raise Violation(
                f"{place} was {describe_partition(before)}, and is {describe_partition(now)}, "
                "who was not in sync"
            )

    def partition(self, place: TopicPartition) -> PartitionImage | None:
        """What the controller has of a partition."""
        return self._partitions.get(place)

    def _check_isr(self, place: TopicPartition) -> None:
        """Whoever is in sync has what is committed. Who has come back unasked for is not in sync any more."""
        known, end = self._partitions.get(place), self._oracle.committed_in(place).end
        if known is None or self._oracle.committed_in(place).awaits_unclean_leader:
            return
        for broker_id in known.isr:
            node, registered = self._nodes[broker_id], self.image.brokers.get(broker_id)
            if registered is None or registered.fenced or not node.is_running or node.disk.broken_directories:
                continue
            if node.node.lifecycle.broker_epoch != registered.broker_epoch:
                continue
            partition = node.node.replica_manager.get(*place)
            has = 0 if partition is None else partition.log.log_end_offset
            if has < end and (partition is None or partition.role is not Role.OFFLINE):
                raise Violation(
                    f"broker {broker_id} is in sync for {place}, and has it up to {has}: {end} is committed"
                )

    # --- what replicas are

    def _check_ended_node(self, node: ClusterNode) -> None:
        """It has ended in the step in which its disk has failed."""
        for place in self.partitions if node.is_broker else ():
            partition = node.node.replica_manager.get(*place)
            if partition is not None:
                self._record_failed_leader(node, place, partition)

    def _record_failed_leader(self, node: ClusterNode, place: TopicPartition, partition: Partition) -> None:
        """What it has led cannot be read any more: it may have committed more in this step than was seen."""
        seen, committed = self._observed.get((node.node_id, place)), self._oracle.committed_in(place)
        if seen is not None and seen.start_count == node.start_count and seen.role is Role.LEADER:
            committed.unverified_end = max(committed.unverified_end, partition.log.high_watermark)

    def _check_replica(self, node: ClusterNode, place: TopicPartition, partition: Partition) -> None:
        log = partition.log
        if log.failure is not None or partition.role is Role.OFFLINE:
            self._record_failed_leader(node, place, partition)
            return
        if self._topic_ids.get(place.topic) != partition.topic_id:
            return  # it is of one that was deleted, or that nobody has made yet
        key = (node.node_id, place)
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
        self._check_monotonic(node, place, seen, partition)
        # Who gives up the lead may have seen something committed just before, in the same step.
        has_led = Role.LEADER in (role, seen.role)
        went_back = end < seen.end
        if went_back:
            self._note(f"{node.name} cuts {place} at {end}, which ended at {seen.end}")
            seen.checked_end = min(seen.checked_end, end)
        seen.role, seen.leader_epoch, seen.high_watermark, seen.end = role, epoch, high_watermark, end
        committed = self._oracle.committed_in(place)
        known = self._partitions.get(place)
        if (
            committed.awaits_unclean_leader
            and role is Role.LEADER
            and known is not None
            and epoch >= known.leader_epoch
        ):
            self._record_unclean_discard(place, epoch, log, committed)
        if self._has_discarded_records(place, log, committed):
            if has_led:
                self._record_lost(place, log, committed)
            return
        if has_led and high_watermark > committed.end:
            self._commit(place, log, committed)
        self._compare(node, place, log, seen, committed)
        if went_back:
            self._check_isr(place)

    def _check_monotonic(
        self, node: ClusterNode, place: TopicPartition, seen: ObservedReplica, partition: Partition
    ) -> None:
        """Of its role, epoch and high watermark since it was last looked at."""
        log, epoch = partition.log, partition.leader_epoch
        if epoch < seen.leader_epoch:
            raise Violation(f"{node.name} goes back in {place} from epoch {seen.leader_epoch} to {epoch}")
        if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
            raise Violation(f"{node.name} has the high watermark {log.high_watermark} of {log!r}")
        self._oracle.on_log_start(place, log.log_start_offset, node.name)
        if partition.role is Role.LEADER:
            leader = self._leaders.setdefault((place, epoch), node.node_id)
            if leader != node.node_id:
                raise Violation(f"{place} is led by {leader} and {node.node_id} in epoch {epoch}")
            if seen.role is Role.LEADER and log.high_watermark < seen.high_watermark:
                raise Violation(
                    f"the high watermark of {place} went back on {node.name}, which leads it, from "
                    f"{seen.high_watermark} to {log.high_watermark}"
                )
            if seen.role is not Role.LEADER:
                self._note(f"{node.name} leads {place} in epoch {epoch} from {log.log_end_offset}")

    def _record_unclean_discard(
        self, place: TopicPartition, epoch: int, log: Log, committed: CommittedPartition
    ) -> None:
        """Who was elected uncleanly leads: what it does not have is lost."""
        has = {
            header.base_offset: (header.next_offset, header.crc, header.leader_epoch)
            for _, header in batches(_content(log, log.log_start_offset, log.log_end_offset))
        }
        lacks = (at for at, batch in sorted(committed.crcs.items()) if has.get(at) != batch)
        offset = next(lacks, committed.end)
        self._note(f"{place} loses what is committed from {offset} to {committed.end - 1}")
        committed.discard(epoch, offset)
        for (_, of), seen in self._observed.items():
            if of == place:
                seen.checked_end = min(seen.checked_end, offset)

    def _has_discarded_records(self, place: TopicPartition, log: Log, committed: CommittedPartition) -> bool:
        """Whether a replica has what an unclean election has discarded, or is about to."""
        known = self._partitions.get(place)
        if committed.awaits_unclean_leader:
            return True
        latest = -1 if log.latest_epoch is None else log.latest_epoch
        return known is not None and any(
            latest < epoch and log.log_end_offset > offset for epoch, offset in committed.unclean_discards
        )

    def _record_lost(self, place: TopicPartition, log: Log, committed: CommittedPartition) -> None:
        """A leader of before takes something for committed still."""
        content = _content(log, log.log_start_offset, log.high_watermark)
        for at, header in batches(content):
            if not header.is_control and header.next_offset > committed.end:
                committed.lost |= {record.value or b"" for record in records(content, at, header)}

    def _commit(self, place: TopicPartition, log: Log, committed: CommittedPartition) -> None:
        """A leader's high watermark rises over what was not committed before."""
        high_watermark = log.high_watermark
        content = log.read(committed.end, max_bytes=READ_BYTES, up_to_offset=high_watermark).read()
        for at, header in batches(content):
            if header.base_offset < committed.end or header.base_offset >= high_watermark:
                continue
            committed.crcs[header.base_offset] = (header.next_offset, header.crc, header.leader_epoch)
            if not place.topic.startswith("__"):
                self._oracle.commit_batch(place, header, records(content, at, header))
        committed.end = high_watermark
        self._check_isr(place)
        self._check_replicas(place, high_watermark)

    def _check_replicas(self, place: TopicPartition, high_watermark: int) -> None:
        """Enough replicas have what is now committed; of one that is down, its log as it was last seen."""
        known = self._partitions.get(place)
        if known is None:
            return
        ends = {}
        for broker_id in known.replicas:
            node, seen = self._nodes[broker_id], self._observed.get((broker_id, place))
            ends[broker_id] = seen.end if seen is not None else 0
            if node.is_running and (partition := node.node.replica_manager.get(*place)) is not None:
                ends[broker_id] = partition.log.log_end_offset
        least = min(self._min_insync_replicas, len(known.replicas))
        if sum(end >= high_watermark for end in ends.values()) < least:
            raise Violation(
                f"{place} counts as committed up to {high_watermark}, and its replicas end at {ends}"
            )

    def _compare(
        self,
        node: ClusterNode,
        place: TopicPartition,
        log: Log,
        seen: ObservedReplica,
        committed: CommittedPartition,
    ) -> None:
        """What is below a replica's own high watermark is what is committed."""
        up_to = min(log.high_watermark, committed.end)
        if log.high_watermark > committed.end:
            raise Violation(
                f"{node.name} has the high watermark {log.high_watermark} of {place}, "
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
            if header.base_offset > following and not place.topic.startswith("__"):
                raise Violation(
                    f"{node.name} lacks offsets {following} to {header.base_offset - 1} of {place}"
                )
            following = header.next_offset
            found = (header.next_offset, header.crc, header.leader_epoch)
            expected = committed.crcs.get(header.base_offset)
            if found != expected:
                raise Violation(
                    f"{node.name} has {found} (next offset, CRC, epoch) at offset {header.base_offset} of "
                    f"{place}, where {expected} is committed"
                )
        if following < up_to:
            raise Violation(f"{node.name} lacks offsets {following} to {up_to - 1} of {place}")
        seen.checked_end = up_to


def _content(log: Log, start: int, end: int) -> memoryview | bytes:
    """The batches between two offsets."""
    pieces = bytearray()
    while start < end:
        piece = log.read(start, max_bytes=READ_BYTES, up_to_offset=end).read()
        if not piece:
            break
        pieces += piece
        start = max(header.next_offset for _, header in batches(piece))
    return memoryview(pieces)


def describe_partition(partition: PartitionImage) -> str:
    """A partition in a few words."""
    leader = "nobody leads" if partition.leader < 0 else f"{partition.leader} leads"
    text = f"{leader} in epoch {partition.leader_epoch}, in sync {list(partition.isr)}"
    if partition.elr:
        text += f", eligible {list(partition.elr)}"
    if partition.last_known_elr:
        text += f", last known {list(partition.last_known_elr)}"
    if partition.adding_replicas or partition.removing_replicas:
        text += f", of {list(partition.replicas)} +{list(partition.adding_replicas)}"
        text += f" -{list(partition.removing_replicas)}"
    return text
