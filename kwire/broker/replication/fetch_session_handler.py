"""What a follower asks of one leader, request after request: KIP-227, as the one that fetches.

The leader remembers what was asked, so that a request carries only what has changed since, and its answer
only what is new. A session that the leader does not know, or that has gone wrong, is begun anew with all
there is; so it is when it is not known whether a request has arrived.

    follow, forget -> request -> answered | failed -> request -> ...
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
from kwire.wire.primitives import Uuid

INVALID_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
MAX_EPOCH: Final = 0x7FFFFFFF

TopicIdPartition = tuple[Uuid, int]
"""A partition: the id of its topic, and its number."""


class FetchPosition(NamedTuple):
    """What the leader is asked for of one partition: where the follower's log ends, and in which epochs."""

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class FetchSessionHandler:
    """One session, with at most one request under way."""

    __slots__ = ("_session_id", "_session_partitions", "_to_forget", "_to_send", "epoch")

    def __init__(self) -> None:
        self._session_id = INVALID_SESSION_ID
        self.epoch = INITIAL_EPOCH
        """That of the next request."""
        self._session_partitions: dict[TopicIdPartition, FetchPosition] = {}
        """What the leader knows, or will when the request has arrived that is under way."""
        self._to_send: dict[TopicIdPartition, FetchPosition] = {}
        """What it is to be told."""
        self._to_forget: dict[TopicIdPartition, None] = {}

    def __len__(self) -> int:
        """How many partitions are followed."""
        return len(self._session_partitions) + sum(
            key not in self._session_partitions for key in self._to_send
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to ask, nor to take back."""
        return not (self._session_partitions or self._to_send or self._to_forget)

    # --- what is followed

    def add(self, key: TopicIdPartition, asked: FetchPosition) -> None:
        """Fetch a partition from here on, whether it was fetched before or not."""
        self._to_forget.pop(key, None)
        if self._session_partitions.get(key) == asked:
            self._to_send.pop(key, None)
        else:
            self._to_send[key] = asked

    def remove(self, key: TopicIdPartition) -> None:
        """Do not fetch a partition, until it is to be followed again. What is answered of it is stale."""
        self._to_send.pop(key, None)
        if self._session_partitions.pop(key, None) is not None:
            self._to_forget[key] = None

    # --- requests and answers

    def build_request(self, max_bytes: int) -> FetchRequest:
        """The next request; the session has moved on to it. At most `max_bytes` of each partition.

        Who asks, and how long the leader may wait, is for the caller to fill in.
        """
        known, changed = self._session_partitions, self._to_send
        known.update(changed)
        forgotten, self._to_forget = self._to_forget, {}
        self._to_send = {}
        asked, to_forget = (known, ()) if self.epoch == INITIAL_EPOCH else (changed, forgotten)
        return FetchRequest(
            session_id=self._session_id,
            session_epoch=self.epoch,
            topics=[
                FetchTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in _by_topic(asked, max_bytes).items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in _indexes(to_forget).items()
            ],
        )

    def handle_response(self, response: FetchResponse) -> str | None:
        """Move on with the session; why this answer is of no use, or None where `fresh` tells what it has."""
        if response.error_code:
            self.reset(forgotten=response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return ErrorCode(response.error_code).name
        if self.epoch != INITIAL_EPOCH:
            if response.session_id == INVALID_SESSION_ID:
                self.reset(forgotten=True)  # the leader has ended it, with this answer
            else:
                self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
            return None
        returned = {
            (topic.topic_id, data.partition_index)
            for topic in response.responses
            for data in topic.partitions
        }
        if not returned and response.throttle_time_ms:
            return f"the leader wants it to wait {response.throttle_time_ms} ms"  # KIP-219
        if not returned >= self._session_partitions.keys():
            self.reset()
            missing = self._session_partitions.keys() - returned
            return f"the first response of the session lacks {len(missing)} partitions"
        self._session_id = response.session_id
        self.epoch = INITIAL_EPOCH if response.session_id == INVALID_SESSION_ID else 1
        return None

    def fetched_partitions(
        self, response: FetchResponse
    ) -> Iterator[tuple[TopicIdPartition, FetchPosition, PartitionData]]:
        """What an answer tells of partitions that are still to be fetched where they were when it was asked.

        Anything else is stale: since then the partition was forgotten, cut, or has another leader.
        """
        known, changed = self._session_partitions, self._to_send
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                asked = known.get(key)
                if asked is not None and key not in changed:
                    yield key, asked, data

    def reset(self, *, forgotten: bool = False) -> None:
        """Begin anew: the request was not answered, or the leader has forgotten the session."""
        if forgotten:
            self._session_id = INVALID_SESSION_ID
        # A new session ends the one that its first request names.
        self.epoch = INITIAL_EPOCH


def _by_topic(
    asked: dict[TopicIdPartition, FetchPosition], max_bytes: int
) -> dict[Uuid, list[FetchPartition]]:
    found: dict[Uuid, list[FetchPartition]] = {}
    for (topic_id, index), position in asked.items():
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
