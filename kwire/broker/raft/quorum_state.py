"""The `quorum-state` file: what a voter must remember across restarts, in Kafka's JSON.

Version 0 is a quorum whose voters stand in the configuration (controller.quorum.voters). Version 1 is a
dynamic quorum (KIP-853), whose voters stand in the log: such a file is kept in its own version.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from kwire.wire.primitives import ZERO_UUID, Uuid, uuid_from_text, uuid_to_text

FILE_NAME = "quorum-state"
NOBODY = -1


class QuorumState(NamedTuple):
    """The epoch that this voter has seen, and who leads it or has its vote."""

    leader_id: int = NOBODY
    leader_epoch: int = 0
    voted_id: int = NOBODY
    voter_ids: tuple[int, ...] = ()
    data_version: int = 0
    voted_directory_id: Uuid = ZERO_UUID

    def encode(self) -> bytes:
        """The file's content."""
        fields: dict[str, Any]
        if self.data_version == 0:
            fields = {
                "clusterId": "",
                "leaderId": self.leader_id,
                "leaderEpoch": self.leader_epoch,
                "votedId": self.voted_id,
                "appliedOffset": 0,
                "currentVoters": [{"voterId": voter_id} for voter_id in self.voter_ids],
            }
        else:
            fields = {
                "leaderId": self.leader_id,
                "leaderEpoch": self.leader_epoch,
                "votedId": self.voted_id,
                "votedDirectoryId": uuid_to_text(self.voted_directory_id),
            }
        fields["data_version"] = self.data_version
        return json.dumps(fields, separators=(",", ":")).encode()


def decode_quorum_state(content: bytes) -> QuorumState:
    """Read the file's content. ValueError where it is not what a voter writes."""
    try:
        fields = json.loads(content)
        version = int(fields["data_version"])
        if version not in (0, 1):
            raise ValueError(f"data_version {version} is not known")
        return QuorumState(
            leader_id=int(fields["leaderId"]),
            leader_epoch=int(fields["leaderEpoch"]),
            voted_id=int(fields["votedId"]),
            voter_ids=tuple(int(voter["voterId"]) for voter in fields.get("currentVoters", ())),
            data_version=version,
            voted_directory_id=uuid_from_text(fields["votedDirectoryId"]) if version else ZERO_UUID,
        )
    except KeyError as error:
        raise ValueError(f"{FILE_NAME} makes no sense: it has no {error}") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{FILE_NAME} makes no sense: {error}") from error
