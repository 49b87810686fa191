"""Voter sets of the quorum, and their history in the log. KIP-595, KIP-853.

A voter is identified by a node id and a directory id. A node with a new directory has lost its votes, so it
is a different voter. In a static quorum (kraft.version 0) the directory ids are unknown, and any directory
matches.
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
"""The levels of kraft.version that kwire supports: minimum and maximum."""
OF_CONFIGURATION: Final = -1
"""The offset for voters that have no record in the log: configured voters, or voters of a new directory."""


class ReplicaKey(NamedTuple):
    """The id of a node, and the directory id of its metadata log."""

    replica_id: int
    directory_id: Uuid


class VoterEndpoint(NamedTuple):
    """One listener of a voter."""

    name: str
    host: str
    port: int


class Voter(NamedTuple):
    """A voter, with its endpoints and the kraft.version range that it supports."""

    key: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...]
    min_version: int = 0
    max_version: int = 0

    def is_named(self, key: ReplicaKey) -> bool:
        """Return whether `key` is this voter's key. A voter without a directory id has any directory."""
        mine = self.key
        return mine.replica_id == key.replica_id and mine.directory_id in (ZERO_UUID, key.directory_id)

    def address(self, listener: str) -> PeerAddress | None:
        """Return the voter's address on a listener, or None."""
        return address_of(self.endpoints, listener)


def endpoints_of(listeners: Iterable[Endpoint]) -> tuple[VoterEndpoint, ...]:
    """Return the endpoints of a message, sorted."""
    return tuple(sorted(VoterEndpoint(one.name, one.host, one.port) for one in listeners))


def address_of(endpoints: Iterable[VoterEndpoint], listener: str) -> PeerAddress | None:
    """Return the address of a listener, or None."""
    for one in endpoints:
        if one.name == listener:
            return PeerAddress(one.host, one.port)
    return None


class VoterSet:
    """An immutable set of voters, sorted by id."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter] = ()) -> None:
        self._voters: dict[int, Voter] = {
            voter.key.replica_id: voter for voter in sorted(voters, key=lambda voter: voter.key)
        }

    @staticmethod
    def of_addresses(addresses: Mapping[int, PeerAddress], listener: str) -> VoterSet:
        """Make the voters of controller.quorum.voters, without directory ids."""
        return VoterSet(
            Voter(ReplicaKey(node_id, ZERO_UUID), (VoterEndpoint(listener, address.host, address.port),))
            for node_id, address in addresses.items()
        )

    @staticmethod
    def of_record(record: VotersRecord) -> VoterSet:
        """Make the voters of a VotersRecord."""
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
        """Return the voters as a VotersRecord."""
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
        """The voter ids, sorted."""
        return list(self._voters)

    @property
    def majority(self) -> int:
        """The number of voters that make a majority."""
        return len(self._voters) // 2 + 1

    def of_id(self, voter_id: int) -> Voter | None:
        """Return the voter with this id and any directory, or None."""
        return self._voters.get(voter_id)

    def find(self, key: ReplicaKey) -> Voter | None:
        """Return the voter with this key, or None."""
        voter = self._voters.get(key.replica_id)
        return voter if voter is not None and voter.is_named(key) else None

    def address(self, voter_id: int, listener: str) -> PeerAddress | None:
        """Return a voter's address on a listener, or None."""
        voter = self._voters.get(voter_id)
        return None if voter is None else voter.address(listener)

    def replaced(self, voter: Voter) -> VoterSet:
        """Return a set in which `voter` is added, or replaces the voter with the same id."""
        others = (one for one in self._voters.values() if one.key.replica_id != voter.key.replica_id)
        return VoterSet((*others, voter))

    def without(self, voter_id: int) -> VoterSet:
        """Return the set without the voter with this id."""
        return VoterSet(one for one in self._voters.values() if one.key.replica_id != voter_id)

    def support(self, version: int) -> bool:
        """Return whether all voters support this kraft.version."""
        return all(one.min_version <= version <= one.max_version for one in self._voters.values())

    def overlaps(self, other: VoterSet) -> bool:
        """Return whether the sets differ by at most one voter, so that all of their majorities overlap."""
        mine = {one.key for one in self._voters.values()}
        theirs = {one.key for one in other._voters.values()}
        return len(mine - theirs) <= 1 and len(theirs - mine) <= 1


class VoterHistory:
    """The voters and kraft.versions in the log, by offset.

    A record takes effect when it is appended, committed or not. A truncation restores the previous record.
    """

    def __init__(self, static: VoterSet) -> None:
        """Start without records. `static` are the configured voters, which apply until the log has voters."""
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
        """The voters before the latest voters. A truncation would restore them."""
        found = self._voters.values
        return found[-2] if len(found) > 1 else self._static

    @property
    def voters_offset(self) -> int:
        """The offset of the record with the latest voters; OF_CONFIGURATION if there is no record."""
        found = self._voters.offsets
        return found[-1] if found else OF_CONFIGURATION

    @property
    def kraft_version(self) -> int:
        """The latest kraft.version."""
        found = self._versions.values
        return found[-1] if found else 0

    def voters_at(self, offset: int) -> VoterSet | None:
        """Return the voters at `offset`, or None if no record up to that offset has voters."""
        return self._voters.at(offset)

    def kraft_version_at(self, offset: int) -> int:
        """Return the kraft.version at `offset`."""
        return self._versions.at(offset) or 0

    def note(self, offset: int, control: Message) -> None:
        """Add a control record.

        For the records of a snapshot, `offset` is the last offset that it replaces.
        """
        if isinstance(control, VotersRecord):
            self._voters.put(offset, VoterSet.of_record(control))
        elif isinstance(control, KRaftVersionRecord):
            self._versions.put(offset, control.k_raft_version)

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at and after `offset`, because the log was truncated."""
        self._voters.truncate_to(offset)
        self._versions.truncate_to(offset)

    def trim(self, offset: int) -> None:
        """Remove the entries that are needed only for offsets before `offset`."""
        self._voters.trim(offset)
        self._versions.trim(offset)

    def clear(self) -> None:
        """Remove all entries, before a snapshot is loaded."""
        self._voters.truncate_to(OF_CONFIGURATION)
        self._versions.truncate_to(OF_CONFIGURATION)


class _Said(Generic[T]):
    """Values by offset. Each value applies from its offset on."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.values: list[T] = []

    def at(self, offset: int) -> T | None:
        found = bisect_right(self.offsets, offset)
        return self.values[found - 1] if found else None

    def put(self, offset: int, value: T) -> None:
        self.truncate_to(offset)
        self.offsets.append(offset)
        self.values.append(value)

    def truncate_to(self, offset: int) -> None:
        found = bisect_left(self.offsets, offset)
        del self.offsets[found:], self.values[found:]

    def trim(self, offset: int) -> None:
        found = max(0, bisect_right(self.offsets, offset) - 1)
        del self.offsets[:found], self.values[:found]
