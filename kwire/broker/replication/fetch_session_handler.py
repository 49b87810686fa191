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

    __slots__ = ("_changed", "_forgotten", "_id", "_known", "epoch")

    def __init__(self) -> None:
        self._id = INVALID_SESSION_ID
        self.epoch = INITIAL_EPOCH
        """That of the next request."""
        self._known: dict[TopicIdPartition, FetchPosition] = {}
        """What the leader knows, or will when the request has arrived that is under way."""
        self._changed: dict[TopicIdPartition, FetchPosition] = {}
        """What it is to be told."""
        self._forgotten: dict[TopicIdPartition, None] = {}

    def __len__(self) -> int:
        """How many partitions are followed."""
        return len(self._known) + sum(key not in self._known for key in self._changed)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to ask, nor to take back."""
        return not (self._known or self._changed or self._forgotten)

    # --- what is followed

    def follow(self, key: TopicIdPartition, asked: FetchPosition) -> None:
        """Fetch a partition from here on, whether it was fetched before or not."""
        self._forgotten.pop(key, None)
        if self._known.get(key) == asked:
            self._changed.pop(key, None)
        else:
            self._changed[key] = asked

    def forget(self, key: TopicIdPartition) -> None:
        """Do not fetch a partition, until it is to be followed again. What is answered of it is stale."""
        self._changed.pop(key, None)
        if self._known.pop(key, None) is not None:
            self._forgotten[key] = None

    # --- requests and answers

    def request(self, max_bytes: int) -> FetchRequest:
        """The next request; the session has moved on to it. At most `max_bytes` of each partition.

        Who asks, and how long the leader may wait, is for the caller to fill in.
        """
        known, changed = self._known, self._changed
        known.update(changed)
        forgotten, self._forgotten = self._forgotten, {}
        self._changed = {}
        asked, taken_back = (known, ()) if self.epoch == INITIAL_EPOCH else (changed, forgotten)
        return FetchRequest(
            session_id=self._id,
            session_epoch=self.epoch,
            topics=[
                FetchTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in _by_topic(asked, max_bytes).items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in _indexes(taken_back).items()
            ],
        )

    def answered(self, response: FetchResponse) -> str | None:
        """Move on with the session; why this answer is of no use, or None where `fresh` tells what it has."""
        if response.error_code:
            self.failed(forgotten=response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return ErrorCode(response.error_code).name
        if self.epoch != INITIAL_EPOCH:
            if response.session_id == INVALID_SESSION_ID:
                self.failed(forgotten=True)  # the leader has ended it, with this answer
            else:
                self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
            return None
        told = {
            (topic.topic_id, data.partition_index)
            for topic in response.responses
            for data in topic.partitions
        }
        if not told and response.throttle_time_ms:
            return f"the leader wants it to wait {response.throttle_time_ms} ms"  # KIP-219
        if not told >= self._known.keys():
            self.failed()
            return f"{len(self._known.keys() - told)} partitions are missing in the first answer of a session"
        self._id = response.session_id
        self.epoch = INITIAL_EPOCH if response.session_id == INVALID_SESSION_ID else 1
        return None

    def fresh(
        self, response: FetchResponse
    ) -> Iterator[tuple[TopicIdPartition, FetchPosition, PartitionData]]:
        """What an answer tells of partitions that are still to be fetched where they were when it was asked.

        Anything else is stale: since then the partition was forgotten, cut, or has another leader.
        """
        known, changed = self._known, self._changed
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                asked = known.get(key)
                if asked is not None and key not in changed:
                    yield key, asked, data

    def failed(self, *, forgotten: bool = False) -> None:
        """Begin anew: the request was not answered, or the leader has forgotten the session."""
        if forgotten:
            self._id = INVALID_SESSION_ID
        # A new session ends the one that its first request names.
        self.epoch = INITIAL_EPOCH


def _by_topic(
    asked: dict[TopicIdPartition, FetchPosition], max_bytes: int
) -> dict[Uuid, list[FetchPartition]]:
    found: dict[Uuid, list[FetchPartition]] = {}
    for (topic_id, index), wanted in asked.items():
        found.setdefault(topic_id, []).append(
            FetchPartition(
                partition=index,
                current_leader_epoch=wanted.leader_epoch,
                fetch_offset=wanted.offset,
                last_fetched_epoch=wanted.last_fetched_epoch,
                log_start_offset=wanted.log_start_offset,
                partition_max_bytes=max_bytes,
            )
        )
    return found


def _indexes(keys: Iterable[TopicIdPartition]) -> dict[Uuid, list[int]]:
    found: dict[Uuid, list[int]] = {}
    for topic_id, index in keys:
        found.setdefault(topic_id, []).append(index)
    return found
