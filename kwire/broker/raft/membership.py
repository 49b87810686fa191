"""Changes of the voters by the leader: one voter at a time. KIP-853, KIP-1186.

A change starts only after the previous change is committed, and only in an epoch with a committed record.
Otherwise two leaders could make different changes with majorities that do not overlap. A change takes effect
as soon as its record is in the log. The response is sent once the record is committed. If the request times
out, the response is an error, although the change may still be committed.

In a static quorum (kraft.version 0) no voter is added or removed. But every voter sends its directory id and
endpoints to each new leader, because the quorum needs them when it becomes dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from kwire.broker.metadata.features import KRAFT_VERSION
from kwire.broker.raft.calls import Calls
from kwire.broker.raft.leading import Leading
from kwire.broker.raft.outputs import AppendControls, Output, Respond
from kwire.broker.raft.snapshots import KRAFT_VERSION_TYPE, VOTERS_TYPE
from kwire.broker.raft.terms import QuorumLog, Terms
from kwire.broker.raft.voters import (
    KRAFT_VERSIONS,
    ReplicaKey,
    Voter,
    VoterEndpoint,
    VoterSet,
    address_of,
)
from kwire.host.host import InternodeTime, PeerUnreachable
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kwire.wire.messages.update_raft_voter import UpdateRaftVoterRequest
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.records.raft import KRaftVersionRecord
from kwire.wire.schema import Message

SOFTWARE = ("kwire", "unknown")
"""Client software name and version for ApiVersions requests, which are rejected without them (KIP-511)."""


class _Kind(Enum):
    ADD = auto()
    REMOVE = auto()


class _Change:
    """The addition or removal of one voter."""

    def __init__(self, kind: _Kind, key: ReplicaKey, requester: object, deadline_ms: InternodeTime) -> None:
        self.kind = kind
        self.key = key
        self.requester = requester
        self.deadline_ms = deadline_ms
        self.endpoints: tuple[VoterEndpoint, ...] = ()
        self.responds_when_committed = True
        self.has_responded = False
        self.offset: int | None = None
        """The offset of the change's record; None until the record is appended."""

    def respond(self, code: ErrorCode, message: str | None = None) -> list[Output]:
        """Send the response, unless it was already sent."""
        if self.has_responded:
            return []
        self.has_responded = True
        return [Respond(self.requester, _reply(self.kind, code, message))]


def _reply(kind: _Kind, code: ErrorCode, message: str | None) -> Message:
    if kind is _Kind.ADD:
        return AddRaftVoterResponse(error_code=code, error_message=message)
    return RemoveRaftVoterResponse(error_code=code, error_message=message)


class Membership:
    """The voter changes of one leader epoch."""

    def __init__(self, terms: Terms, log: QuorumLog, calls: Calls, leading: Leading, me: Voter) -> None:
        self._terms = terms
        self._log = log
        self._calls = calls
        self._leading = leading
        self._change: _Change | None = None
        self._appending: list[_Change | None] = [None]
        """The change that each pending AppendControls makes, or None. The first entry begins the epoch."""
        self._told = log.voters.replaced(me) if log.kraft_version == 0 else None
        """The voters of a static quorum, with their registered values; None if the quorum is dynamic."""
        self._rises = False

    @property
    def kraft_version(self) -> int:
        """The finalized kraft.version, or its new value while it is being upgraded."""
        return 1 if self._rises else self._log.kraft_version

    @property
    def due_ms(self) -> InternodeTime | None:
        """The time at which the current change times out, or None without a change."""
        return None if self._change is None else self._change.deadline_ms

    # --- progress of changes

    def expire(self, now_ms: InternodeTime) -> list[Output]:
        """Fail the current change if it timed out."""
        change = self._change
        if change is None or now_ms < change.deadline_ms:
            return []
        self._change = None
        return change.respond(ErrorCode.REQUEST_TIMED_OUT, "The change was not committed in time.")

    def abandon(self) -> list[Output]:
        """Fail the current change because this node is no longer the leader."""
        change, self._change = self._change, None
        return [] if change is None else change.respond(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def appended(self, offset: int) -> None:
        """Record the offset at which the oldest pending AppendControls was appended."""
        change = self._appending.pop(0)
        if change is not None:
            change.offset = offset

    def committed(self) -> list[Output]:
        """Send the response of the current change if its record is committed now."""
        change = self._change
        if change is None or change.offset is None or self._leading.high_watermark <= change.offset:
            return []
        self._change = None
        return change.respond(ErrorCode.NONE)

    def _append(self, controls: Sequence[tuple[int, Message]], change: _Change | None) -> AppendControls:
        self._appending.append(change)
        return AppendControls(self._leading.epoch, controls)

    def _append_voters(self, voters: VoterSet, change: _Change | None) -> AppendControls:
        return self._append([(VOTERS_TYPE, voters.record())], change)

    # --- adding and removing voters

    def add(self, request: AddRaftVoterRequest, requester: object, now_ms: InternodeTime) -> list[Output]:
        """Start to add an observer as a voter: check the request, and request the versions it supports."""
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        endpoints = tuple(VoterEndpoint(one.name, one.host, one.port) for one in request.listeners)
        address = address_of(endpoints, self._terms.listener)

        def refused(code: ErrorCode, message: str) -> list[Output]:
            return [Respond(requester, _reply(_Kind.ADD, code, message))]

        if key.replica_id < 0 or key.directory_id == ZERO_UUID:
            return refused(ErrorCode.INVALID_REQUEST, "The new voter has no id, or no directory id.")
        if address is None:
            return refused(
                ErrorCode.INVALID_REQUEST, f"The new voter has no listener {self._terms.listener}."
            )
        if reason := self._why_not():
            return refused(*reason)
        if self._log.voters.of_id(key.replica_id) is not None:
            return refused(ErrorCode.DUPLICATE_VOTER, f"Node {key.replica_id} is already a voter.")
        if self._calls.ready_ms(key.replica_id) > now_ms:
            return refused(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Another request to node {key.replica_id} is in progress or has just failed. Try again.",
            )
        change = _Change(_Kind.ADD, key, requester, now_ms + self._terms.request_timeout_ms)
        change.endpoints = tuple(sorted(endpoints))
        change.responds_when_committed = request.ack_when_committed
        self._change = change
        versions = ApiVersionsRequest(client_software_name=SOFTWARE[0], client_software_version=SOFTWARE[1])
        return [self._calls.send(key.replica_id, address, versions, now_ms)]

    def handle_api_versions(
        self, voter_id: int, response: Message | PeerUnreachable, now_ms: InternodeTime
    ) -> list[Output]:
        """Handle the new voter's response to ApiVersions, or the failure of that request."""
        change = self._change
        if change is None or change.kind is not _Kind.ADD or change.key.replica_id != voter_id:
            return []
        if change.offset is not None or change in self._appending:
            return []
        if not isinstance(response, ApiVersionsResponse) or response.error_code:
            self._change = None
            self._calls.rest(voter_id, now_ms)
            return change.respond(
                ErrorCode.REQUEST_TIMED_OUT, f"Node {voter_id} did not return its supported versions."
            )
        ranges = [one for one in response.supported_features if one.name == KRAFT_VERSION]
        version = self._log.kraft_version
        if not ranges or not ranges[0].min_version <= version <= ranges[0].max_version:
            self._change = None
            return change.respond(
                ErrorCode.INVALID_REQUEST,
                f"Node {voter_id} does not support {KRAFT_VERSION} {version}.",
            )
        if not self._leading.has_caught_up(change.key, now_ms):
            self._change = None
            return change.respond(
                ErrorCode.REQUEST_TIMED_OUT, f"Node {voter_id} has not caught up with the metadata log yet."
            )
        voter = Voter(change.key, change.endpoints, ranges[0].min_version, ranges[0].max_version)
        outputs: list[Output] = [self._append_voters(self._log.voters.replaced(voter), change)]
        return outputs if change.responds_when_committed else outputs + change.respond(ErrorCode.NONE)

    def remove(
        self, request: RemoveRaftVoterRequest, requester: object, now_ms: InternodeTime
    ) -> list[Output]:
        """Remove a voter. The voter may be this node."""
        key = ReplicaKey(request.voter_id, request.voter_directory_id)

        def refused(code: ErrorCode, message: str) -> list[Output]:
            return [Respond(requester, _reply(_Kind.REMOVE, code, message))]

        if key.replica_id < 0 or key.directory_id == ZERO_UUID:
            return refused(ErrorCode.INVALID_REQUEST, "The voter has no id, or no directory id.")
        if reason := self._why_not():
            return refused(*reason)
        voters = self._log.voters
        voter = voters.of_id(key.replica_id)
        if voter is None or voter.key != key or len(voters) == 1:
            return refused(
                ErrorCode.VOTER_NOT_FOUND,
                f"Node {key.replica_id} is not a voter with that directory id, or is the only voter.",
            )
        self._change = _Change(_Kind.REMOVE, key, requester, now_ms + self._terms.request_timeout_ms)
        return [self._append_voters(voters.without(key.replica_id), self._change)]

    def _why_not(self) -> tuple[ErrorCode, str] | None:
        """Return why no voter can be added or removed now, or None."""
        if self._is_changing:
            return ErrorCode.REQUEST_TIMED_OUT, "Another voter change is not committed yet."
        if self._leading.high_watermark < 0:
            return ErrorCode.REQUEST_TIMED_OUT, "The leader has not committed a record in its epoch yet."
        if self._log.kraft_version == 0:
            return (
                ErrorCode.UNSUPPORTED_VERSION,
                f"Voters cannot be added or removed while {KRAFT_VERSION} is 0.",
            )
        if self._is_uncommitted:
            return ErrorCode.REQUEST_TIMED_OUT, "The last voter change is not committed yet."
        return None

    @property
    def _is_changing(self) -> bool:
        return self._change is not None or bool(self._appending)

    @property
    def _is_uncommitted(self) -> bool:
        return self._log.voters_offset >= self._leading.high_watermark

    # --- updates

    def update(
        self, request: UpdateRaftVoterRequest, now_ms: InternodeTime
    ) -> tuple[list[Output], ErrorCode]:
        """Update a voter's endpoints and supported versions; return the outputs and the error or NONE."""
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        knows = request.k_raft_version_feature
        version = self._log.kraft_version
        endpoints = endpoints_of_request(request)
        if (
            key.replica_id < 0
            or key.directory_id == ZERO_UUID
            or address_of(endpoints, self._terms.listener) is None
            or not 0 <= knows.min_supported_version <= knows.max_supported_version
        ):
            return [], ErrorCode.INVALID_REQUEST
        if self._is_changing or self._leading.high_watermark < 0:
            return [], ErrorCode.REQUEST_TIMED_OUT
        if self._is_uncommitted if version > 0 else self._told is None:
            return [], ErrorCode.REQUEST_TIMED_OUT
        if not knows.min_supported_version <= version <= knows.max_supported_version:
            return [], ErrorCode.INVALID_REQUEST
        voter = Voter(key, endpoints, knows.min_supported_version, knows.max_supported_version)
        outputs: list[Output] = []
        if version > 0:
            if self._log.voters.find(key) is None:
                return [], ErrorCode.VOTER_NOT_FOUND
            outputs.append(self._append_voters(self._log.voters.replaced(voter), None))
        else:
            assert self._told is not None
            if self._told.of_id(key.replica_id) is None:
                return [], ErrorCode.VOTER_NOT_FOUND
            self._told = self._told.replaced(voter)
        self._leading.heard(key, now_ms)
        return outputs, ErrorCode.NONE

    def raise_kraft_version(self, version: int, *, validate_only: bool) -> list[Output]:
        """Make the quorum dynamic: from then on, its voters are in the log.

        Raises ApiError INVALID_UPDATE_VERSION if the version is unknown, lower, or not supported by a voter.
        """

        def refused(reason: str) -> ApiError:
            return ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{KRAFT_VERSION} cannot become {version}: {reason}.",
            )

        current = self.kraft_version
        if version == current:
            return []
        if version < current:
            raise refused(f"it is {current}, and cannot be downgraded")
        if version not in KRAFT_VERSIONS or self._told is None:
            raise refused("this version does not exist")
        if not self._told.support(version):
            raise refused("not every voter has registered support for it")
        if any(voter.key.directory_id == ZERO_UUID for voter in self._told):
            raise refused("not every voter has registered its directory id")
        if validate_only:
            return []
        record = KRaftVersionRecord(version=0, k_raft_version=version)
        controls: list[tuple[int, Message]] = [(KRAFT_VERSION_TYPE, record)]
        if self._told != self._log.voters:
            controls.append((VOTERS_TYPE, self._told.record()))
        self._told, self._rises = None, True
        return [self._append(controls, None)]


def endpoints_of_request(request: UpdateRaftVoterRequest) -> tuple[VoterEndpoint, ...]:
    """Return the listeners in an UpdateRaftVoter request."""
    return tuple(sorted(VoterEndpoint(one.name, one.host, one.port) for one in request.listeners))
