"""The follower's side of an incremental fetch session with one leader. KIP-227.

The leader remembers the partitions of the session. A request carries only positions that have changed, and
a response carries only partitions that have new data or state. The handler starts a new session with all
partitions if the leader does not know the session, or if the leader may not have received a request.

    add, remove -> build_request -> handle_response | reset -> build_request -> ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural
from kwire.wire.primitives import TopicIdPartition, Uuid

INVALID_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
MAX_EPOCH: Final = 0x7FFFFFFF


class FetchPosition(NamedTuple):
    """The fetch offset of a partition (the end of the follower's log), and the follower's epochs.

    `leader_epoch` is the current leader epoch; `last_fetched_epoch` is that of the follower's last record.
    """

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class FetchSessionHandler:
    """One fetch session, with at most one request in flight."""

    __slots__ = ("_session_id", "_session_partitions", "_to_forget", "_to_send", "epoch")

    def __init__(self) -> None:
        self._session_id = INVALID_SESSION_ID
        self.epoch = INITIAL_EPOCH
        """The session epoch of the next request."""
        self._session_partitions: dict[TopicIdPartition, FetchPosition] = {}
        """The positions that the leader knows, or will know after it has received the request in flight."""
        self._to_send: dict[TopicIdPartition, FetchPosition] = {}
        """New and changed positions for the next request."""
        self._to_forget: dict[TopicIdPartition, None] = {}

    def __len__(self) -> int:
        """Return the number of partitions to fetch."""
        return len(self._session_partitions) + sum(
            key not in self._session_partitions for key in self._to_send
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is no partition to fetch, and none to remove from the session."""
        return not (self._session_partitions or self._to_send or self._to_forget)

    @property
    def has_new_positions(self) -> bool:
        """Whether the next request has positions that the request in flight does not have."""
        return bool(self._to_send)

    # --- partitions

    def add(self, key: TopicIdPartition, position: FetchPosition) -> None:
        """Fetch a partition from this position on. The partition may already be in the session."""
        self._to_forget.pop(key, None)
        if self._session_partitions.get(key) == position:
            self._to_send.pop(key, None)
        else:
            self._to_send[key] = position

    def remove(self, key: TopicIdPartition) -> None:
        """Stop fetching a partition.

        If a response in flight has data for the partition, the data is ignored.
        """
        self._to_send.pop(key, None)
        if self._session_partitions.pop(key, None) is not None:
            self._to_forget[key] = None

    # --- requests and responses

    def build_request(self, max_bytes: int) -> FetchRequest:
        """Build the next request, with at most `max_bytes` per partition, and advance the session.

        The caller sets the replica id and the time that the leader may wait.
        """
        known, changed = self._session_partitions, self._to_send
        known.update(changed)
        forgotten, self._to_forget = self._to_forget, {}
        self._to_send = {}
        positions, to_forget = (known, ()) if self.epoch == INITIAL_EPOCH else (changed, forgotten)
        return FetchRequest(
            session_id=self._session_id,
            session_epoch=self.epoch,
            topics=[
                FetchTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in _by_topic(positions, max_bytes).items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in _indexes(to_forget).items()
            ],
        )

    def handle_response(self, response: FetchResponse) -> str | None:
        """Advance the session. Return None, or the reason why the response cannot be used."""
        if response.error_code:
            self.reset(session_lost=response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return ErrorCode(response.error_code).name
        if self.epoch != INITIAL_EPOCH:
            if response.session_id == INVALID_SESSION_ID:
                self.reset(session_lost=True)  # the leader has closed the session with this response
            else:
                self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
            return None
        returned = {
            (topic.topic_id, data.partition_index)
            for topic in response.responses
            for data in topic.partitions
        }
        if not returned and response.throttle_time_ms:
            return f"the leader throttles this broker for {response.throttle_time_ms} ms"  # KIP-219
        if not returned >= self._session_partitions.keys():
            self.reset()
            missing = self._session_partitions.keys() - returned
            return f"the first response of the session lacks {plural(len(missing), 'partition')}"
        self._session_id = response.session_id
        self.epoch = INITIAL_EPOCH if response.session_id == INVALID_SESSION_ID else 1
        return None

    def fetched_partitions(
        self, response: FetchResponse
    ) -> Iterator[tuple[TopicIdPartition, FetchPosition, PartitionData]]:
        """Yield the response's data for each partition whose position is the same as in the request.

        Other data is stale: the partition was removed or truncated, or its leader has changed.
        """
        known, changed = self._session_partitions, self._to_send
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                position = known.get(key)
                if position is not None and key not in changed:
                    yield key, position, data

    def reset(self, *, session_lost: bool = False) -> None:
        """Start a new session with the next request, because a request failed or the session was lost."""
        if session_lost:
            self._session_id = INVALID_SESSION_ID
        # The first request of a new session carries the old session's id, so that the leader closes the old
        # one.
        self.epoch = INITIAL_EPOCH


def _by_topic(
    positions: dict[TopicIdPartition, FetchPosition], max_bytes: int
) -> dict[Uuid, list[FetchPartition]]:
    found: dict[Uuid, list[FetchPartition]] = {}
    for (topic_id, index), position in positions.items():
        found.setdefault(topic_id, []).append(
            FetchPartition(
                partition=index,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=position.log_start_offset,
                partition_max_bytes=max_bytes,
            )
        )
    return found


def _indexes(keys: Iterable[TopicIdPartition]) -> dict[Uuid, list[int]]:
    found: dict[Uuid, list[int]] = {}
    for topic_id, index in keys:
        found.setdefault(topic_id, []).append(index)
    return found
