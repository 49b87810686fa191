"""Replica placement: striped over racks and brokers from a random start (Kafka's StripedReplicaPlacer).

Racks alternate, and so do the brokers within each rack. With racks A, B and C of two brokers each, partitions
of three replicas are placed on A0 B0 C0, B1 C1 A1, C0 A0 B0 and so on. The first replica is the preferred
leader and is always on an unfenced broker. For the other replicas, a fenced broker is used only if its rack
has no unused unfenced broker. After as many partitions as there are unfenced brokers, the racks and the
brokers of each rack are shuffled. So each broker shares partitions with many different brokers.

A broker in controlled shutdown, or with all log directories cordoned (KIP-1066), gets no replicas.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from kwire.broker.controller.commands import Fault
from kwire.broker.metadata.image import BrokerImage, MetadataImage
from kwire.wire.errors import ErrorCode


class _BrokerList:
    """A rotating list of brokers.

    Each round returns every broker once; the next round starts one broker later.
    """

    def __init__(self, brokers: Iterable[int], rng: random.Random) -> None:
        self._brokers = sorted(brokers)
        self._start = rng.randrange(len(self._brokers)) if self._brokers else 0
        self._given = 0
        self._round = 0

    def next(self, current_round: int) -> int | None:
        size = len(self._brokers)
        if size and self._round != current_round:
            self._round, self._given, self._start = current_round, 0, (self._start + 1) % size
        if self._given == size:
            return None
        self._given += 1
        return self._brokers[(self._start + self._given - 1) % size]

    def shuffle(self, rng: random.Random) -> None:
        rng.shuffle(self._brokers)
        self._round = -1  # not a valid round, so that the next call starts a new round


class _Rack:
    def __init__(self, brokers: list[BrokerImage], rng: random.Random) -> None:
        self.fenced = _BrokerList((broker.broker_id for broker in brokers if broker.fenced), rng)
        self.unfenced = _BrokerList((broker.broker_id for broker in brokers if not broker.fenced), rng)

    def next(self, current_round: int) -> int | None:
        broker_id = self.unfenced.next(current_round)
        return self.fenced.next(current_round) if broker_id is None else broker_id

    def shuffle(self, rng: random.Random) -> None:
        self.fenced.shuffle(rng)
        self.unfenced.shuffle(rng)


def place_replicas(
    image: MetadataImage, count: int, replication_factor: int, rng: random.Random
) -> Fault | list[list[int]]:
    """Return the replicas of `count` partitions, each list with the leader first, or an error."""
    usable = [broker for _, broker in sorted(image.brokers.items()) if _is_usable(broker)]
    living = sum(not broker.fenced for broker in usable)
    text: str | None = None
    if replication_factor <= 0:
        text = f"Invalid replication factor {replication_factor}: the replication factor must be positive."
    elif not living:
        text = "All brokers are currently fenced, or have all their log directories cordoned."
    elif replication_factor > len(usable):
        text = (
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(usable)} broker(s) are registered or some brokers have all their log directories cordoned."
        )
    if text is not None:
        return Fault(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    by_rack: dict[str, list[BrokerImage]] = {}
    for broker in usable:
        by_rack.setdefault(broker.rack or "", []).append(broker)
    racks = [_Rack(by_rack[name], rng) for name in sorted(by_rack)]
    first, current_round = rng.randrange(len(racks)), 0
    placed: list[list[int]] = []
    for _ in range(count):
        if current_round == living > 1:
            rng.shuffle(racks)
            for rack in racks:
                rack.shuffle(rng)
            current_round = 0
        placed.append(_place_partition(racks, first % len(racks), current_round, replication_factor))
        first, current_round = first + 1, current_round + 1
    return placed


def _place_partition(
    racks: list[_Rack], first: int, current_round: int, replication_factor: int
) -> list[int]:
    """Return the broker ids of one partition, the leader first.

    The leader is in the first rack with an unfenced broker, starting at index `first` of `racks`.
    """
    leader, leads_at = None, first
    while leader is None:
        leader = racks[leads_at].unfenced.next(current_round)
        if leader is None:
            leads_at = (leads_at + 1) % len(racks)
    brokers = [leader]
    position: int = first
    has_passed_leader = False
    while len(brokers) < replication_factor:
        if position == leads_at and not has_passed_leader:
            has_passed_leader = True  # the leader is already this rack's broker in this rotation
        else:
            broker_id = racks[position].next(current_round)
            if broker_id is not None:
                brokers.append(broker_id)
        position = (position + 1) % len(racks)
    return brokers


def _is_usable(broker: BrokerImage) -> bool:
    if broker.in_controlled_shutdown and not broker.fenced:
        return False
    cordoned = broker.cordoned_log_dirs
    return not (cordoned and broker.log_dirs and set(broker.log_dirs) <= set(cordoned))
