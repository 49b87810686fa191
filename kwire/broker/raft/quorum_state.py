"""The `quorum-state` file: the epoch, vote and leader that a node remembers across restarts, in Kafka's JSON.

Version 0 is for static quorums (controller.quorum.voters), and version 1 for dynamic quorums (KIP-853).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from kwire.broker.metadata.image import NO_LEADER
from kwire.broker.storage.disk import Disk, StorageError, join
from kwire.host.host import Host
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import ZERO_UUID, Uuid, uuid_from_text, uuid_to_text

FILE_NAME = "quorum-state"
BESIDE = ".new"
"""The suffix of the new file until the rename that replaces the old file."""
NOBODY = -1


class QuorumState(NamedTuple):
    """The current epoch, and its leader or the candidate that this node voted for."""

    leader_id: int = NO_LEADER
    leader_epoch: int = 0
    voted_id: int = NOBODY
    voter_ids: tuple[int, ...] = ()
    data_version: int = 0
    voted_directory_id: Uuid = ZERO_UUID

    def encode(self) -> bytes:
        """Return the content of the file."""
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
    """Decode the content of the file. Raises ValueError if it is invalid."""
    try:
        fields = json.loads(content)
        version = int(fields["data_version"])
        if version not in (0, 1):
            raise ValueError(f"unknown data_version {version}")
        return QuorumState(
            leader_id=int(fields["leaderId"]),
            leader_epoch=int(fields["leaderEpoch"]),
            voted_id=int(fields["votedId"]),
            voter_ids=tuple(int(voter["voterId"]) for voter in fields.get("currentVoters", ())),
            data_version=version,
            voted_directory_id=uuid_from_text(fields["votedDirectoryId"]) if version else ZERO_UUID,
        )
    except KeyError as error:
        raise ValueError(f"{FILE_NAME} is invalid: it has no {error}") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{FILE_NAME} is invalid: {error}") from error


class ElectionFile:
    """The writer of quorum-state on a running node. Worker threads write the states, one after another."""

    def __init__(
        self, disk: Disk, host: Host, directory: str, on_failed: Callable[[BaseException], None]
    ) -> None:
        self._disk = disk
        self._host = host
        self._directory = directory
        self._on_failed = on_failed
        self._wanted: QuorumState | None = None
        self._promises: list[Callable[[], None]] = []
        """The callbacks that wait for the next write."""
        self._is_under_way = False
        self._is_closed = False

    def close(self) -> None:
        """Stop writing and calling back."""
        self._is_closed = True

    def remember(self, state: QuorumState, on_durable: Callable[[], None] | None = None) -> None:
        """Write a state in a worker thread. `on_durable` is called once this or a newer state is durable."""
        self._wanted = state
        if on_durable is not None:
            self._promises.append(on_durable)
        if not self._is_under_way:
            self._write()

    def _write(self) -> None:
        state, self._wanted = self._wanted, None
        promises, self._promises = self._promises, []
        self._is_under_way = state is not None and not self._is_closed
        if state is None or self._is_closed:
            return
        disk, path = self._disk, join(self._directory, FILE_NAME)
        beside = path + BESIDE

        def written(result: object) -> None:
            if not isinstance(result, BaseException):
                try:
                    disk.rename(beside, path)
                except StorageError as error:
                    result = error
            if isinstance(result, BaseException):
                self._failed(result)
            else:
                self._host.run_in_worker(partial(disk.sync_directory, self._directory), named)

        def named(result: object) -> None:
            if isinstance(result, BaseException):
                self._failed(result)
                return
            if not self._is_closed:
                for on_durable in promises:
                    on_durable()
            self._write()

        self._host.run_in_worker(lambda: disk.write(beside, state.encode(), sync=True), written)

    def _failed(self, error: BaseException) -> None:
        if not self._is_closed:
            self._on_failed(error)
