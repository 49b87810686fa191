"""What the leader of the metadata log writes into it.

A voter that is alone wins every election at once: it raises the epoch, remembers that in `quorum-state`, and
writes a LeaderChange control record as the first of its epoch. What it appends is committed once it is
synced.

Who votes stands in the configuration, or, where the quorum is dynamic (KIP-853), in the log: then the leader
repeats it in its own epoch if it stood in the snapshot of a fresh directory only, or says where it is reached
now if that has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.metadata.image import EndpointImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.raft.metadata_log import MAX_RECORD_BATCH_BYTES, MetadataLog
from kwire.broker.raft.snapshots import KRAFT_VERSION_TYPE, VOTERS_TYPE, control_batch, quorum_records
from kwire.wire.batch import NewRecord, build
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import ZERO_UUID, uuid_to_text
from kwire.wire.registry import encode_stored
from kwire.wire.schema import Message
from kwire.wire.stored.raft import (
    Endpoint,
    KRaftVersionFeature,
    LeaderChangeMessage,
    Voter,
    VotersRecord,
    VotersVoter,
)

LEADER_CHANGE_TYPE: Final = 2

MAX_BATCH_RECORDS: Final = 1_000
"""How many records share a batch where they need not be atomic: a batch stays far below Kafka's 8 MiB."""


class Lead:
    """The lead of a log that its only voter has, in an epoch of its own, once all of the log was read."""

    def __init__(self, log: MetadataLog, now_ms: int, endpoints: Sequence[EndpointImage]) -> None:
        """Win the election of a new epoch, and say so in the log. CorruptMetadata, StorageError.

        `endpoints` tells where this voter is reached.
        """
        self.log = log
        self._endpoints = endpoints
        # A lost quorum-state must not make an epoch of the log come twice.
        snapshot = log.latest_snapshot
        known = (log.election().leader_epoch, log.last_epoch, snapshot.epoch if snapshot else 0)
        self.epoch = max(known) + 1
        log.remember(log.election_of(self.epoch, log.node_id, [log.node_id]))
        controls: list[tuple[int, Message]] = [(LEADER_CHANGE_TYPE, self._leader_change())]
        if log.voters is not None:
            current = self._voters_now(log.voters)
            if current != log.voters or not log.voters_in_log:
                log.voters = current
                controls += _quorum_controls(current)
        self._append_controls(controls, now_ms)

    def _voters_now(self, voters: VotersRecord) -> VotersRecord:
        """The voters, with where this one is reached now. CorruptMetadata where it is not the only one."""
        log = self.log
        told = [(voter.voter_id, voter.voter_directory_id) for voter in voters.voters]
        if told != [(log.node_id, log.directory_id)]:
            others = ", ".join(f"{node_id} ({uuid_to_text(directory)})" for node_id, directory in told)
            raise CorruptMetadata(
                f"the metadata quorum of {log.log.directory} has the voters {others}, and this is "
                f"{log.node_id} ({uuid_to_text(log.directory_id)}), which can only serve alone: "
                f"remove the other voters with kafka-metadata-quorum first"
            )
        voter = VotersVoter(
            voter_id=log.node_id,
            voter_directory_id=log.directory_id,
            endpoints=self._listeners(),
            k_raft_version_feature=voters.voters[0].k_raft_version_feature,
        )
        return VotersRecord(version=voters.version, voters=[voter])

    def _listeners(self) -> list[Endpoint]:
        return [Endpoint(name=one.name, host=one.host, port=one.port) for one in self._endpoints]

    def _leader_change(self) -> LeaderChangeMessage:
        """In version 0, which Kafka writes whoever votes, and which is all that its tools read."""
        voter = Voter(voter_id=self.log.node_id, voter_directory_id=ZERO_UUID)
        return LeaderChangeMessage(
            version=0, leader_id=self.log.node_id, voters=[voter], granting_voters=[voter]
        )

    def become_dynamic(self, now_ms: int) -> None:
        """Stage what makes the quorum dynamic (kraft.version 1): its voters stand in the log from here on."""
        voter = VotersVoter(
            voter_id=self.log.node_id,
            voter_directory_id=self.log.directory_id,
            endpoints=self._listeners(),
            k_raft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
        )
        self.log.voters, self.log.voters_in_log = VotersRecord(version=0, voters=[voter]), True
        self._append_controls(_quorum_controls(self.log.voters), now_ms)

    def append(self, records: Sequence[StoredRecord], *, now_ms: int, atomic: bool) -> int:
        """Stage records; the offset of the last. A commit writes them, a flush makes them durable.

        ApiError: UNKNOWN_SERVER_ERROR, with nothing staged, where atomic ones are too long for Kafka's batch.
        """
        size = len(records) if atomic else MAX_BATCH_RECORDS
        for start in range(0, len(records), size):
            encoded: list[NewRecord] = [
                (now_ms, None, encode_stored(record, version), [])
                for record, version in records[start : start + size]
            ]
            batch = build(encoded, base_offset=self.log.end_offset, leader_epoch=self.epoch)
            if atomic and len(batch) > MAX_RECORD_BATCH_BYTES:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            self.log.append_decided(batch, now_ms)
        return self.log.end_offset - 1

    def _append_controls(self, controls: Sequence[tuple[int, Message]], now_ms: int) -> None:
        batch = control_batch(controls, now_ms, base_offset=self.log.end_offset, epoch=self.epoch)
        self.log.append_decided(batch, now_ms)


def _quorum_controls(voters: VotersRecord) -> list[tuple[int, Message]]:
    return list(zip((KRAFT_VERSION_TYPE, VOTERS_TYPE), quorum_records(voters), strict=True))
