"""Incremental fetch sessions. KIP-227, topic ids KIP-516.

A session remembers which partitions a consumer or follower fetches, and what was last sent for each
partition. So requests and responses contain only changes. The cache has a fixed number of slots.

A follower's session has thousands of partitions, of which few change between two fetches. So the session
keeps a separate list of the partitions that may have changed, and reads only these. The leader's replica of a
partition adds the partition to that list.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Protocol

from kwire.broker.api.request.slices import SLICE_PARTITIONS
from kwire.host.host import InternodeTime
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import FIRST_VERSION_WITH_REPLICA_STATE, FetchRequest, PartitionData
from kwire.wire.primitives import ZERO_UUID, Uuid

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
FIRST_VERSION_WITH_TOPIC_IDS = 13

TargetKey = tuple[str | Uuid, int]
"""A partition as a request names it: by topic name before version 13, and by topic id from version 13 on."""


class FetchTarget:
    """One partition in a fetch: the fields from the request, and what was last sent to the client."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "max_bytes",
        "sent_high_watermark",
        "sent_log_start_offset",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str | None, topic_id: Uuid, index: int) -> None:
        self.topic = topic
        """The topic name; None while this broker does not know the topic id."""
        self.topic_id = topic_id
        self.index = index
        self.fetch_offset = 0
        self.max_bytes = 0
        self.current_leader_epoch = -1
        """The leader epoch that the client knows; -1 if unknown. Fetch treats any negative epoch like -1."""
        self.last_fetched_epoch = -1
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1


class FollowerTarget(FetchTarget):
    """One partition in a follower's fetch. The leader's replica of the partition calls `changed`."""

    __slots__ = ("log_start_offset", "session")

    def __init__(self, topic: str | None, topic_id: Uuid, index: int, session: FollowerSession) -> None:
        super().__init__(topic, topic_id, index)
        self.log_start_offset = -1
        """The log start offset of the follower."""
        self.session = session

    @property
    def fetched_ms(self) -> InternodeTime:
        """The monotonic time in ms at which the session was last used."""
        return self.session.last_used_ms

    def changed(self, *, wake: bool) -> None:
        """Add the partition to the session's `maybe_changed`. With `wake`, also wake a delayed fetch."""
        session = self.session
        key = _key(self, session.uses_topic_ids)
        if session.targets.get(key) is self:  # false if the session has dropped or replaced this target
            session.maybe_changed[key] = self
            if wake and session.waiting_fetch is not None:
                session.waiting_fetch.wake()


NameOf = Callable[[Uuid], str | None]
"""A function that returns the current name of a topic id, or None."""


class FetchSession:
    __slots__ = (
        "created_ms",
        "epoch",
        "has_unknown_topics",
        "id",
        "last_used_ms",
        "privileged",
        "targets",
        "uses_topic_ids",
    )

    def __init__(
        self,
        session_id: int,
        targets: OrderedDict[TargetKey, FetchTarget],
        *,
        uses_topic_ids: bool,
        privileged: bool,
        now_ms: InternodeTime,
    ) -> None:
        self.id = session_id
        self.targets = targets
        self.uses_topic_ids = uses_topic_ids
        self.privileged = privileged
        """Whether the session belongs to a replica, not to a consumer."""
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.epoch = 1
        self.has_unknown_topics = _has_unknown_topics(targets)
        """Whether the session has topic ids that this broker does not know."""

    def to_read(self) -> Iterable[FetchTarget]:
        """Return the targets that a fetch in this session reads, in the order in which to read them."""
        return self.targets.values()

    def record_read(self, target: FetchTarget) -> None:
        """Move a target that had records to the end, so that busy partitions do not starve others."""
        self.targets.move_to_end(_key(target, self.uses_topic_ids))


def _has_unknown_topics(targets: Mapping[TargetKey, FetchTarget]) -> bool:
    return any(target.topic is None for target in targets.values())


class WaitingFetch(Protocol):
    """A follower's fetch that is delayed."""

    def wake(self) -> None:
        """Check whether the fetch can respond now."""


class FollowerSession(FetchSession):
    """A follower's session. A follower's fetch without a session uses a temporary session with id 0."""

    __slots__ = ("maybe_changed", "waiting_fetch")

    def __init__(self, *, uses_topic_ids: bool, now_ms: InternodeTime) -> None:
        super().__init__(
            INVALID_SESSION_ID, OrderedDict(), uses_topic_ids=uses_topic_ids, privileged=True, now_ms=now_ms
        )
        self.maybe_changed: OrderedDict[TargetKey, FetchTarget] = OrderedDict()
        """The targets that may have changed since they were last sent."""
        self.waiting_fetch: WaitingFetch | None = None

    def begin(self, targets: OrderedDict[TargetKey, FetchTarget]) -> None:
        """Set the targets of a new session. All of them must be read."""
        self.targets, self.maybe_changed = targets, targets.copy()
        self.has_unknown_topics = _has_unknown_topics(targets)

    def to_read(self) -> Iterable[FetchTarget]:
        return self.maybe_changed.values()

    def record_read(self, target: FetchTarget) -> None:
        key = _key(target, self.uses_topic_ids)
        if key in self.maybe_changed:
            self.maybe_changed.move_to_end(key)

    def mark_quiet(self, target: FetchTarget) -> None:
        """Remove a target from `maybe_changed`, until its partition calls `changed`."""
        self.maybe_changed.pop(_key(target, self.uses_topic_ids), None)


def next_epoch(epoch: int) -> int:
    """Return the next session epoch, which wraps to 1, because 0 means a new session. -1 (final) stays -1."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == 0x7FFFFFFF else epoch + 1


class FetchContext:
    """The partitions that one Fetch request reads, and the session of the request, if it has one."""

    __slots__ = ("_creates", "_epoch", "_sent", "_session", "_uses_topic_ids", "follower", "targets")

    def __init__(
        self,
        targets: OrderedDict[TargetKey, FetchTarget],
        *,
        cache: FetchSessionCache | None = None,
        session: FetchSession | None = None,
        uses_topic_ids: bool = False,
        follower: FollowerSession | None = None,
    ) -> None:
        self.targets = targets
        self.follower = follower
        """The session of a follower, possibly a temporary one; None for a consumer's fetch."""
        self._creates = cache if session is None else None
        if self._creates is not None:
            self._sent: OrderedDict[TargetKey, FetchTarget] = OrderedDict()
            """The targets of the session that the response creates."""
        self._session = session
        self._epoch = session.epoch if session is not None else 0
        self._uses_topic_ids = uses_topic_ids

    @property
    def is_incremental(self) -> bool:
        """Whether the response contains only changes."""
        return self._session is not None

    def trim(
        self, fetched: Sequence[tuple[FetchTarget, PartitionData]], now_ms: InternodeTime
    ) -> tuple[int, Sequence[tuple[FetchTarget, PartitionData]]]:
        """Return the session id and the partitions for the response, and record them as sent.

        A full fetch with epoch 0 creates a session; the id is 0 if the cache has no free slot. Raises
        ApiError INVALID_FETCH_SESSION_EPOCH if another request has advanced the session in the meantime.
        """
        changed = self.record_sent(fetched)
        return self.create_session(now_ms), changed

    def throttled_session_id(self) -> int:
        """Return the session id for an empty response to a throttled Fetch, which changes no session.

        Raises ApiError INVALID_FETCH_SESSION_EPOCH like `trim`.
        """
        session = self._session
        if session is None:
            return INVALID_SESSION_ID
        if session.epoch != self._epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        return session.id

    def record_sent(
        self, fetched: Sequence[tuple[FetchTarget, PartitionData]]
    ) -> Sequence[tuple[FetchTarget, PartitionData]]:
        """Record partitions as sent, and return those for the response. The first part of `trim`.

        It may be called for one slice of the partitions after the other.
        """
        session = self._session
        if session is not None:
            if session.epoch != self._epoch:
                raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            changed = [pair for pair in fetched if _update_sent(*pair)]
            for target, data in changed:
                if data.records is not None and size_of(data.records):
                    session.record_read(target)
            return changed
        if self._creates is not None:
            # The session takes the order of this response, in which unknown topics and partitions come last.
            for target, data in fetched:
                _update_sent(target, data)
                self._sent[_key(target, self._uses_topic_ids)] = target
        return fetched

    def create_session(self, now_ms: InternodeTime) -> int:
        """Return the session id, after creating a session if the request does. The second part of `trim`."""
        if self._session is not None:
            return self._session.id
        if self._creates is None:
            return INVALID_SESSION_ID
        created: FetchSession
        if self.follower is not None:
            created = self.follower
            created.targets = self._sent
        else:
            created = FetchSession(
                INVALID_SESSION_ID,
                self._sent,
                uses_topic_ids=self._uses_topic_ids,
                privileged=False,
                now_ms=now_ms,
            )
        return self._creates.admit(created, now_ms)


def _key(target: FetchTarget, by_id: bool) -> TargetKey:
    if by_id:
        return (target.topic_id, target.index)
    assert target.topic is not None
    return (target.topic, target.index)


def size_of(records: object) -> int:
    """Return the size in bytes of the records in a response, in memory or in a file."""
    size = getattr(records, "size_bytes", None)
    return size if isinstance(size, int) else len(records)  # type: ignore[arg-type]


def _update_sent(target: FetchTarget, data: PartitionData) -> bool:
    """Return whether an incremental response must contain this partition, and record `data` as sent."""
    news = data.records is not None and size_of(data.records) > 0
    if target.sent_high_watermark != data.high_watermark:
        news = True
        target.sent_high_watermark = data.high_watermark
    if target.sent_log_start_offset != data.log_start_offset:
        news = True
        target.sent_log_start_offset = data.log_start_offset
    diverges = data.diverging_epoch.epoch >= 0
    if data.error_code or diverges:
        # The partition must be sent again once the error is gone or the follower has truncated its log,
        # because until then the follower ignores the high watermark.
        target.sent_high_watermark = -1
        news = True
    return news or data.preferred_read_replica >= 0


def _read_targets(
    request: FetchRequest, by_id: bool, name_of: NameOf, follower: FollowerSession | None
) -> Iterable[tuple[TargetKey, FetchTarget]]:
    for topic in request.topics:
        name = name_of(topic.topic_id) if by_id else topic.topic
        topic_id = topic.topic_id if by_id else ZERO_UUID
        for requested in topic.partitions:
            target: FetchTarget
            if follower is None:
                target = FetchTarget(name, topic_id, requested.partition)
            else:
                target = FollowerTarget(name, topic_id, requested.partition, follower)
                target.log_start_offset = requested.log_start_offset
            target.fetch_offset = requested.fetch_offset
            target.max_bytes = requested.partition_max_bytes
            if requested.current_leader_epoch >= 0:
                target.current_leader_epoch = requested.current_leader_epoch
            target.last_fetched_epoch = requested.last_fetched_epoch
            yield (topic_id if by_id else topic.topic, requested.partition), target


def targets_in_slices(
    request: FetchRequest, version: int, name_of: NameOf
) -> Generator[None, None, OrderedDict[TargetKey, FetchTarget]]:
    """Return the targets in the large request of a consumer. Yield between slices of them."""
    targets: OrderedDict[TargetKey, FetchTarget] = OrderedDict()
    some = _read_targets(request, version >= FIRST_VERSION_WITH_TOPIC_IDS, name_of, None)
    for number, (key, target) in enumerate(some, 1):
        targets[key] = target
        if not number % SLICE_PARTITIONS:
            yield
    return targets


def replica_id_of(request: FetchRequest, version: int) -> int:
    """Return the id of the replica that sent the Fetch; negative for clients."""
    if version >= FIRST_VERSION_WITH_REPLICA_STATE:
        return request.replica_state.replica_id
    return request.replica_id


def _eviction_key(session: FetchSession) -> tuple[bool, int, int]:
    """Return the key for comparing sessions: a new session can evict a session with a lower key."""
    return (session.privileged, len(session.targets), session.id)


class FetchSessionCache:
    """The fetch sessions of this broker, at most `slots`."""

    def __init__(self, slots: int, eviction_ms: int, rng: random.Random) -> None:
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._rng = rng
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """The sessions by id, with the least recently used first."""
        self.evictions = 0
        """The number of sessions that were evicted for others."""

    def __len__(self) -> int:
        return len(self._sessions)

    def partition_count(self) -> int:
        """Return the number of partitions of all sessions."""
        return sum(len(session.targets) for session in self._sessions.values())

    def context(
        self,
        request: FetchRequest,
        version: int,
        name_of: NameOf,
        now_ms: InternodeTime,
        consumer_targets: OrderedDict[TargetKey, FetchTarget] | None = None,
    ) -> FetchContext:
        """Apply a request to its session, and return the partitions that the request fetches.

        `consumer_targets` is the result of `targets_in_slices`, or None if the request is not large.

        Raises ApiError with a session error, which becomes the top-level error of the response:
        FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR.
        """
        by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # A full fetch request closes the session that it names.
            self._sessions.pop(session_id, None)
            follower = None
            if replica_id_of(request, version) >= 0:
                follower = FollowerSession(uses_topic_ids=by_id, now_ms=now_ms)
            if follower is None and consumer_targets is not None:
                requested = consumer_targets
            else:
                requested = OrderedDict(_read_targets(request, by_id, name_of, follower))
            if follower is not None:
                follower.begin(requested)
            return FetchContext(
                requested,
                cache=self if epoch == INITIAL_EPOCH else None,
                uses_topic_ids=by_id,
                follower=follower,
            )
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != by_id:
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        follower = session if isinstance(session, FollowerSession) else None
        if follower is None and consumer_targets is not None:
            requested = consumer_targets
        else:
            requested = OrderedDict(_read_targets(request, by_id, name_of, follower))
        self._update(session, requested, request, by_id, name_of)
        if not session.targets:
            # The session has no partitions left, so close it. This request still gets a response. A delayed
            # fetch of the session gets INVALID_FETCH_SESSION_EPOCH.
            del self._sessions[session.id]
            session.epoch = FINAL_EPOCH
            if follower is not None:
                follower.begin(requested)
            return FetchContext(requested, follower=follower)
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.id)
        session.epoch = next_epoch(session.epoch)
        return FetchContext(session.targets, session=session, uses_topic_ids=by_id, follower=follower)

    def _update(
        self,
        session: FetchSession,
        requested: OrderedDict[TargetKey, FetchTarget],
        request: FetchRequest,
        by_id: bool,
        name_of: NameOf,
    ) -> None:
        targets = session.targets
        if session.has_unknown_topics:
            for target in targets.values():
                if target.topic is None:
                    target.topic = name_of(target.topic_id)
            session.has_unknown_topics = _has_unknown_topics(targets)
        session.has_unknown_topics |= _has_unknown_topics(requested)
        for key, new in requested.items():
            known = targets.get(key)
            if known is None:
                known = targets[key] = new
            else:
                known.fetch_offset = new.fetch_offset
                known.max_bytes = new.max_bytes
                if known.current_leader_epoch != new.current_leader_epoch and isinstance(
                    known, FollowerTarget
                ):
                    # The follower has ignored a response that it got in the old leader epoch.
                    known.sent_high_watermark = known.sent_log_start_offset = -1
                known.current_leader_epoch = new.current_leader_epoch
                known.last_fetched_epoch = new.last_fetched_epoch
            if isinstance(session, FollowerSession):
                assert isinstance(known, FollowerTarget)
                assert isinstance(new, FollowerTarget)
                known.log_start_offset = new.log_start_offset
                session.maybe_changed.setdefault(key, known)
        for forgotten in request.forgotten_topics_data:
            topic: str | Uuid = forgotten.topic_id if by_id else forgotten.topic
            for index in forgotten.partitions:
                targets.pop((topic, index), None)
                if isinstance(session, FollowerSession):
                    session.maybe_changed.pop((topic, index), None)

    def admit(self, session: FetchSession, now_ms: InternodeTime) -> int:
        """Add a new session and return its id; 0 if no slot is available."""
        if not self._try_evict(privileged=session.privileged, size=len(session.targets), now_ms=now_ms):
            return INVALID_SESSION_ID
        while (session_id := self._rng.randrange(1, 1 << 31)) in self._sessions:
            pass
        session.id = session_id
        self._sessions[session_id] = session
        return session_id

    def _try_evict(self, *, privileged: bool, size: int, now_ms: InternodeTime) -> bool:
        """Return whether a slot is available for a session of `size` partitions, after evicting another.

        If all slots are in use, the least recently used session is evicted if it was unused for more than
        `eviction_ms`. Otherwise the evictable session with the lowest key is evicted, if the key of the new
        session is higher.
        """
        sessions = self._sessions
        if len(sessions) < self._slots:
            return True
        if not sessions:
            return False
        evicted = next(iter(sessions.values()))
        if now_ms - evicted.last_used_ms <= self._eviction_ms:
            evictable = [session for session in sessions.values() if self._is_evictable(session, privileged)]
            if not evictable:
                return False
            evicted = min(evictable, key=_eviction_key)
            if (privileged, size, INVALID_SESSION_ID) < _eviction_key(evicted):
                return False
        del sessions[evicted.id]
        self.evictions += 1
        return True

    def _is_evictable(self, session: FetchSession, to_privileged: bool) -> bool:
        if to_privileged and not session.privileged:
            return True
        # A session's age is that at its last use: it does not grow while the session is unused.
        return session.last_used_ms - session.created_ms > self._eviction_ms
