"""Leader elections, and all other changes of a partition's replicas, ISR and ELR.

Only this module elects leaders and changes ISRs. The reasons are: a broker is registered, fenced, unfenced or
shutting down, a log directory failed, a leader changes an ISR, an election is due, or a partition is
reassigned.

When a broker leaves an ISR, the other members continue. When the last member leaves, the partition has no
leader; with KIP-966 the last members stay in the ELR (eligible leader replicas). A broker may have lost
records in an unclean shutdown, so it is removed from the ELR when it registers again. If both ISR and ELR are
empty, only the last known leader can be elected, and the partition is then marked as recovering. An unclean
leader election, if it is enabled, can elect any active replica.

A reassignment completes at once if every added replica is already in sync (KIP-455).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from kwire.broker.controller.commands import Election
from kwire.broker.controller.configs import MIN_INSYNC_REPLICAS
from kwire.broker.controller.topics import default_directory
from kwire.broker.metadata.delta import NO_LEADER_CHANGE, NO_RECOVERY_CHANGE, MetadataDelta
from kwire.broker.metadata.image import (
    NO_LEADER,
    RECOVERING,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kwire.broker.metadata.records import DIRECTORIES_LEVEL, StoredRecord, partition_record_version
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import PartitionChangeRecord
from kwire.wire.schema import Message

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
_SHRINK_BUMPS_EPOCH_BELOW: Final = 12
"""Before this metadata.version (3.6-IV0), the leader epoch had to be bumped when the ISR shrank."""


class PartitionChangeBuilder:
    """A change of one partition. Set the attributes that change, then call `build`."""

    __slots__ = (
        *("adding", "broker_to_add", "broker_to_remove", "directories", "election", "isr", "recovery_state"),
        *("removing", "replicas", "unclean_shutdown"),
        *("_before", "_elr", "_elr_enabled", "_image", "_index", "_level", "_topic"),
    )

    def __init__(self, image: MetadataImage, topic: TopicImage, index: int) -> None:
        partition = topic.partitions[index]
        self.election = Election.ONLINE
        self.replicas: Sequence[int] = partition.replicas
        self.isr: Sequence[int] = partition.isr
        self.removing: Sequence[int] = partition.removing_replicas
        self.adding: Sequence[int] = partition.adding_replicas
        self.recovery_state = partition.leader_recovery_state
        self.directories: Mapping[int, Uuid] = {}
        """The log directories that change, by broker id."""
        self.broker_to_remove: int | None = None
        """A broker that must not become leader, although it is active in the image."""
        self.broker_to_add: int | None = None
        """A broker that may become leader, although it is fenced in the image."""
        self.unclean_shutdown = False
        """Whether `broker_to_remove` may have lost records."""
        self._image = image
        self._elr_enabled = image.elr_enabled
        self._level = image.metadata_version
        self._topic = topic
        self._index = index
        self._before = partition
        self._elr: Sequence[int] = partition.elr

    def build(self) -> StoredRecord | None:
        """Return the record of the change, or None if nothing changes."""
        before = self._before
        if self.removing or self.adding:
            self._complete_reassignment()
        if self._elr_enabled:
            self._populate_elr()
        change = PartitionChangeRecord(partition_id=self._index, topic_id=self._topic.topic_id)
        self._try_elect(change)
        if change.leader == NO_LEADER_CHANGE and not contains_all(self.replicas, before.replicas):
            # Bump the leader epoch, so that fetches of a removed replica are rejected.
            change.leader = before.leader
        if change.isr is not None or not self._elr_enabled:
            self._elr = []
        if tuple(self._elr) != before.elr:
            change.eligible_leader_replicas = list(self._elr)
        if change.isr is None and (self.isr or self._elr_enabled) and tuple(self.isr) != before.isr:
            change.isr = list(self.isr)
        if (
            self._level < _SHRINK_BUMPS_EPOCH_BELOW
            and change.leader == NO_LEADER_CHANGE
            and change.isr is not None
            and not contains_all(change.isr, before.isr)
        ):
            change.leader = before.leader
        self._update_last_known_elr(change)
        self._set_assignment(change)
        if self.recovery_state != before.leader_recovery_state:
            change.leader_recovery_state = self.recovery_state
        return None if _is_no_op(change) else StoredRecord(change, partition_record_version(self._level))

    # --- steps of `build`

    def _complete_reassignment(self) -> None:
        """End the reassignment if all added replicas are in sync.

        If the reassignment removes more replicas than it adds, all remaining replicas must be in sync.
        Otherwise too few complete copies would remain.
        """
        isr, replicas = without(self.isr, self.removing), without(self.replicas, self.removing)
        if not isr or not replicas or not set(self.adding) <= set(isr):
            return
        if len(self.adding) >= len(self.removing) or set(replicas) <= set(isr):
            self.isr, self.replicas, self.removing, self.adding = isr, replicas, [], []

    def _populate_elr(self) -> None:
        isr_size, most = len(self.isr), len(self._before.replicas)
        if isr_size >= most or isr_size >= min_isr(self._image, self._topic.name, self._before):
            self._elr = []
            return
        candidates = dict.fromkeys([*self._elr, *self._before.isr])
        lost = self.broker_to_remove if self.unclean_shutdown else None
        # A replica that a reassignment removed deletes its log. Kafka keeps such a replica in the ELR. There
        # it could be elected after it was added again, although its log is empty.
        self._elr = [
            replica
            for replica in candidates
            if replica in self.replicas and replica not in self.isr and replica != lost
        ]

    def _try_elect(self, change: PartitionChangeRecord) -> None:
        leader, unclean = self._elect_leader()
        if leader == self._before.leader:
            return
        change.leader = leader
        if leader in self._elr:
            self.isr = [leader]
            self._elr = [replica for replica in self._elr if replica != leader]
        if unclean:
            # From now on only the new leader's log counts: the other replicas truncate their logs to match
            # it.
            change.isr = [leader]
            if self._before.leader_recovery_state != RECOVERING:
                change.leader_recovery_state = RECOVERING

    def _elect_leader(self) -> tuple[int, bool]:
        """Return the leader's broker id, and whether the election is unclean."""
        before = self._before
        preferred = self.replicas[:1] if self.election is Election.PREFERRED else ()
        for replica in (*preferred, before.leader, *self.replicas):
            if self._is_in_sync(replica) and self._is_acceptable_leader(replica):
                return replica, False
        if self._elr_enabled and not self._elr and not self.isr and len(before.last_known_elr) == 1:
            [last_known] = before.last_known_elr
            if self._is_acceptable_leader(last_known):
                return last_known, True
        if self.election is Election.UNCLEAN:
            for replica in self.replicas:
                if self._is_acceptable_leader(replica):
                    return replica, True
        return NO_LEADER, False

    def _is_in_sync(self, replica: int) -> bool:
        return replica in self.isr or (not self.isr and replica in self._elr)

    def _is_acceptable_leader(self, replica: int) -> bool:
        broker = self._image.brokers.get(replica)
        if (
            broker is None
            or replica == self.broker_to_remove
            or not (broker.is_active or replica == self.broker_to_add)
        ):
            return False
        directory = self.directories.get(replica) or self._before.directory_of(replica)
        return directory is None or broker.has_online_directory(directory)

    def _update_last_known_elr(self, change: PartitionChangeRecord) -> None:
        """Record the last leader while the partition has no leader (KIP-966)."""
        before = self._before
        if not self._elr_enabled:
            if before.last_known_elr:
                change.last_known_elr = []
            return
        if change.leader == NO_LEADER and not before.last_known_elr:
            change.last_known_elr = [before.leader]
        elif change.leader >= 0 and before.last_known_elr:
            change.last_known_elr = []

    def _set_assignment(self, change: PartitionChangeRecord) -> None:
        before = self._before
        is_moved = bool(self.replicas) and tuple(self.replicas) != before.replicas
        if is_moved:
            change.replicas = list(self.replicas)
        if (is_moved or self.directories) and self._level >= DIRECTORIES_LEVEL:
            directories = [
                self.directories.get(replica)
                or before.directory_of(replica)
                or default_directory(self._image, replica)
                for replica in self.replicas
            ]
            if directories != list(before.directories):
                change.directories = directories
        if tuple(self.removing) != before.removing_replicas:
            change.removing_replicas = list(self.removing)
        if tuple(self.adding) != before.adding_replicas:
            change.adding_replicas = list(self.adding)


def _is_no_op(change: PartitionChangeRecord) -> bool:
    return (
        change.leader == NO_LEADER_CHANGE
        and change.leader_recovery_state == NO_RECOVERY_CHANGE
        and change.isr is None
        and change.eligible_leader_replicas is None
        and change.last_known_elr is None
        and change.replicas is None
        and change.removing_replicas is None
        and change.adding_replicas is None
        and change.directories is None
    )


def remove_broker_from_isrs(
    image: MetadataImage,
    broker_id: int,
    *,
    unclean_shutdown: bool,
    unclean_enabled: bool,
    only: Container[Uuid | None] | None = None,
) -> Iterator[StoredRecord]:
    """Yield the changes that remove a broker from ISRs, and elect other leaders where the broker was leader.

    With `unclean_shutdown`, the broker may have lost records and is removed from ELRs, too. `unclean_enabled`
    is unclean.leader.election.enable of this node. If `only` is given, just the replicas in these log
    directories are changed.
    """
    for topic in image.topics.values():
        election = election_for_topic(image, topic.name, unclean_enabled=unclean_enabled)

        def depart(change: PartitionChangeBuilder, election: Election = election) -> None:
            change.election = election
            change.isr = without(change.isr, [broker_id])
            change.broker_to_remove, change.unclean_shutdown = broker_id, unclean_shutdown

        counting_on_it = (
            index
            for index, partition in enumerate(topic.partitions)
            if (broker_id in partition.isr or (unclean_shutdown and broker_id in partition.elr))
            and (only is None or partition.directory_of(broker_id) in only)
        )
        yield from _change_partitions(image, topic, counting_on_it, depart)


def elect_leaderless_partitions(
    image: MetadataImage, broker_id: int, *, unclean_enabled: bool
) -> Iterator[StoredRecord]:
    """Yield the records that elect leaders of leaderless partitions with a replica on an unfenced broker."""
    for topic in image.topics.values():
        election = election_for_topic(image, topic.name, unclean_enabled=unclean_enabled)

        def arrive(change: PartitionChangeBuilder, election: Election = election) -> None:
            change.election = election
            change.broker_to_add = broker_id

        leaderless = (
            index
            for index, partition in enumerate(topic.partitions)
            if partition.leader == NO_LEADER and broker_id in partition.replicas
        )
        yield from _change_partitions(image, topic, leaderless, arrive)


def _change_partitions(
    image: MetadataImage,
    topic: TopicImage,
    indexes: Iterable[int],
    configure: Callable[[PartitionChangeBuilder], None],
) -> Iterator[StoredRecord]:
    """Yield the changes of a topic's partitions.

    Partitions with equal states (except epochs) share one build.
    """
    made: dict[tuple[object, ...], StoredRecord | None] = {}
    for index in indexes:
        partition = topic.partitions[index]
        state = partition._replace(leader_epoch=0, partition_epoch=0)
        if state not in made:
            change = PartitionChangeBuilder(image, topic, index)
            configure(change)
            made[state] = change.build()
        one = made[state]
        if one is not None:
            yield StoredRecord(_copy(one.record, index), one.version)


def _copy(record: Message, index: int) -> PartitionChangeRecord:
    """Return the same change for another partition."""
    copied = PartitionChangeRecord.__new__(PartitionChangeRecord)
    for name in PartitionChangeRecord.declared_fields:
        setattr(copied, name, getattr(record, name))
    copied.partition_id = index
    return copied


def election_for_topic(image: MetadataImage, topic: str, *, unclean_enabled: bool) -> Election:
    """Return UNCLEAN if unclean.leader.election.enable is true for the topic, and ONLINE otherwise.

    `unclean_enabled` applies if neither the topic nor the cluster sets unclean.leader.election.enable.
    """
    text = image.config(RESOURCE_TOPIC, topic).get(UNCLEAN_ELECTION)
    if text is None:
        text = image.config(RESOURCE_BROKER, "").get(UNCLEAN_ELECTION)
    if text is not None:
        unclean_enabled = text.strip().lower() == "true"
    return Election.UNCLEAN if unclean_enabled else Election.ONLINE


def min_isr(image: MetadataImage, topic: str, partition: PartitionImage) -> int:
    """Return min.insync.replicas of a partition, limited to its number of replicas."""
    text = image.config(RESOURCE_TOPIC, topic).get(MIN_INSYNC_REPLICAS)
    if text is None:
        text = image.config(RESOURCE_BROKER, "").get(MIN_INSYNC_REPLICAS, "1")
    try:
        count = int(text)
    except ValueError:
        # The metadata log has an invalid value. Brokers ignore it, too.
        count = 1
    return min(count, len(partition.replicas))


def apply_records(image: MetadataImage, records: Iterable[StoredRecord]) -> MetadataImage:
    """Return the image after these uncommitted records, for further decisions of the same command."""
    delta = MetadataDelta(image)
    delta.replay_all(record for record, _ in records)
    return delta.apply(image.offset, image.epoch)


def is_reassigning(partition: PartitionImage) -> bool:
    return bool(partition.removing_replicas or partition.adding_replicas)


def find_partition(image: MetadataImage, topic: str, index: int) -> tuple[TopicImage, PartitionImage] | None:
    """Return the topic and its partition, or None if one of them does not exist."""
    known = image.topics.get(topic)
    if known is None or not 0 <= index < len(known.partitions):
        return None
    return known, known.partitions[index]


def contains_all(replicas: Sequence[int], others: Sequence[int]) -> bool:
    return replicas == others or set(others) <= set(replicas)


def without(replicas: Sequence[int], others: Sequence[int]) -> list[int]:
    """Return the replicas that are not in `others`, in the order of `replicas`."""
    return [replica for replica in replicas if replica not in others]
