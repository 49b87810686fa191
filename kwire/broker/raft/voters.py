"""Who votes in the quorum: a set of voters, and how the log has changed it. KIP-595, KIP-853.

A voter is a node and the directory in which it keeps the log: the same node with another directory has
promised nothing. Where the voters stand in the configuration (kraft.version 0), their directories are not
known, and any will do.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

from kwire.host.host import PeerAddress
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.records.raft import (
    Endpoint,
    KRaftVersionFeature,
    KRaftVersionRecord,
    VotersRecord,
    VotersVoter,
)
from kwire.wire.schema import Message

T = TypeVar("T")

KRAFT_VERSIONS: Final = (0, 1)
"""The versions of the quorum's protocol that kwire knows."""
OF_CONFIGURATION: Final = -1
"""The offset of voters that no record of the log says: of the configuration, or of a fresh directory."""


class ReplicaKey(NamedTuple):
    """A node, and the directory in which it keeps the log."""

    replica_id: int
    directory_id: Uuid


class VoterEndpoint(NamedTuple):
    """One listener of a voter."""

    name: str
    host: str
    port: int


class Voter(NamedTuple):
    """A voter: where it is reached, and which versions of the quorum's protocol it knows."""

    key: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...]
    min_version: int = 0
    max_version: int = 0

    def is_named(self, key: ReplicaKey) -> bool:
        """Whether this is the voter that `key` names."""
        mine = self.key
        return mine.replica_id == key.replica_id and mine.directory_id in (ZERO_UUID, key.directory_id)

    def address(self, listener: str) -> PeerAddress | None:
        """Where it is reached on a listener."""
        return address_of(self.endpoints, listener)


def endpoints_of(listeners: Iterable[Endpoint]) -> tuple[VoterEndpoint, ...]:
    """Listeners as some message has them, the order of which means nothing."""
    return tuple(sorted(VoterEndpoint(one.name, one.host, one.port) for one in listeners))


def address_of(endpoints: Iterable[VoterEndpoint], listener: str) -> PeerAddress | None:
    """Where one is reached on a listener."""
    for one in endpoints:
        if one.name == listener:
            return PeerAddress(one.host, one.port)
    return None


class VoterSet:
    """The voters at one time, by their ids. It never changes: changes make another one."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter] = ()) -> None:
        self._voters: dict[int, Voter] = {
            voter.key.replica_id: voter for voter in sorted(voters, key=lambda voter: voter.key)
        }

    @staticmethod
    def of_addresses(addresses: Mapping[int, PeerAddress], listener: str) -> VoterSet:
        """The voters that controller.quorum.voters names, whose directories are not known."""
        return VoterSet(
            Voter(ReplicaKey(node_id, ZERO_UUID), (VoterEndpoint(listener, address.host, address.port),))
            for node_id, address in addresses.items()
        )

    @staticmethod
    def of_record(record: VotersRecord) -> VoterSet:
        """The voters that a record of the log says."""
        return VoterSet(
            Voter(
                ReplicaKey(voter.voter_id, voter.voter_directory_id),
                endpoints_of(voter.endpoints),
                voter.k_raft_version_feature.min_supported_version,
                voter.k_raft_version_feature.max_supported_version,
            )
            for voter in record.voters
        )

    def record(self) -> VotersRecord:
        """The record that says them."""
        return VotersRecord(
            version=0,
            voters=[
                VotersVoter(
                    voter_id=voter.key.replica_id,
                    voter_directory_id=voter.key.directory_id,
                    endpoints=[Endpoint(name=at.name, host=at.host, port=at.port) for at in voter.endpoints],
                    k_raft_version_feature=KRaftVersionFeature(
                        min_supported_version=voter.min_version, max_supported_version=voter.max_version
                    ),
                )
                for voter in self
            ],
        )

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __len__(self) -> int:
        return len(self._voters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self._voters.values()))

    def __repr__(self) -> str:
        return f"VoterSet({', '.join(map(str, self._voters))})"

    @property
    def ids(self) -> Sequence[int]:
        """Their ids, in their order."""
        return list(self._voters)

    @property
    def majority(self) -> int:
        """How many of them decide."""
        return len(self._voters) // 2 + 1

    def of_id(self, voter_id: int) -> Voter | None:
        """The voter that has this id, in whatever directory."""
        return self._voters.get(voter_id)

    def find(self, key: ReplicaKey) -> Voter | None:
        """The voter that `key` names."""
        voter = self._voters.get(key.replica_id)
        return voter if voter is not None and voter.is_named(key) else None

    def address(self, voter_id: int, listener: str) -> PeerAddress | None:
        """Where a voter is reached on a listener."""
        voter = self._voters.get(voter_id)
        return None if voter is None else voter.address(listener)

    def replaced(self, voter: Voter) -> VoterSet:
        """With this voter in the place of that with its id, or beside the others."""
        others = (one for one in self._voters.values() if one.key.replica_id != voter.key.replica_id)
        return VoterSet((*others, voter))

    def without(self, voter_id: int) -> VoterSet:
        """Without the voter that has this id."""
        return VoterSet(one for one in self._voters.values() if one.key.replica_id != voter_id)

    def support(self, version: int) -> bool:
        """Whether all of them know a version of the quorum's protocol."""
        return all(one.min_version <= version <= one.max_version for one in self._voters.values())

    def overlaps(self, other: VoterSet) -> bool:
        """Whether every majority of either has one of every majority of the other: at most one is changed."""
        mine = {one.key for one in self._voters.values()}
        theirs = {one.key for one in other._voters.values()}
        return len(mine - theirs) <= 1 and len(theirs - mine) <= 1


class VoterHistory:
    """What the log says of voters and of the version of the quorum's protocol, by offset.

    What it says is in force as soon as it is there, committed or not; a cut brings the one before back.
    """

    def __init__(self, static: VoterSet) -> None:
        """`static` are the voters that the configuration names: until the log says others."""
        self._static = static
        self._voters: _Said[VoterSet] = _Said()
        self._versions: _Said[int] = _Said()

    @property
    def voters(self) -> VoterSet:
        """The latest voters."""
        found = self._voters.values
        return found[-1] if found else self._static

    @property
    def former_voters(self) -> VoterSet:
        """The voters before the latest ones, which a cut would bring back."""
        found = self._voters.values
        return found[-2] if len(found) > 1 else self._static

    @property
    def voters_offset(self) -> int:
        """Where they stand: OF_CONFIGURATION if no record of the log, or of a snapshot of it, says them."""
        found = self._voters.offsets
        return found[-1] if found else OF_CONFIGURATION

    @property
    def kraft_version(self) -> int:
        """The latest version."""
        found = self._versions.values
        return found[-1] if found else 0

    def voters_at(self, offset: int) -> VoterSet | None:
        """The voters by the records up to `offset`, that one included; None where none of those says it."""
        return self._voters.at(offset)

    def kraft_version_at(self, offset: int) -> int:
        """The version by the records up to `offset`, that one included."""
        return self._versions.at(offset) or 0

    def note(self, offset: int, control: Message) -> None:
        """A control record stands at `offset`; one of a snapshot at the last offset that that stands for."""
        if isinstance(control, VotersRecord):
            self._voters.put(offset, VoterSet.of_record(control))
        elif isinstance(control, KRaftVersionRecord):
            self._versions.put(offset, control.k_raft_version)

    def cut(self, offset: int) -> None:
        """Forget what stood from `offset` on."""
        self._voters.cut(offset)
        self._versions.cut(offset)

    def trim(self, offset: int) -> None:
        """Forget what nobody asks for any more who asks for `offset` and what comes later."""
        self._voters.trim(offset)
        self._versions.trim(offset)

    def clear(self) -> None:
        """Forget everything: a snapshot says it anew."""
        self._voters.cut(OF_CONFIGURATION)
        self._versions.cut(OF_CONFIGURATION)


class _Said(Generic[T]):
    """Values, and the offsets from which on each of them holds."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.values: list[T] = []

    def at(self, offset: int) -> T | None:
        found = bisect_right(self.offsets, offset)
        return self.values[found - 1] if found else None

    def put(self, offset: int, value: T) -> None:
        self.cut(offset)
        self.offsets.append(offset)
        self.values.append(value)

    def cut(self, offset: int) -> None:
        found = bisect_left(self.offsets, offset)
        del self.offsets[found:], self.values[found:]

    def trim(self, offset: int) -> None:
        found = max(0, bisect_right(self.offsets, offset) - 1)
        del self.offsets[:found], self.values[:found]
