"""The topic configuration that a log uses. Keys, meanings and defaults are Kafka's."""

from __future__ import annotations

from enum import Enum
from typing import Final

from kwire.wire.named_tuple import NamedTuple

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
LONG_MAX = (1 << 63) - 1
_DAY_MS = 24 * 60 * 60 * 1000


class AppendOrigin(Enum):
    """The source of an append, which decides what is validated. Kafka's AppendOrigin."""

    REPLICATION = 0
    """A follower appends batches that its leader has validated."""
    COORDINATOR = 1
    """A group or transaction coordinator appends its own records or transaction markers."""
    CLIENT = 2
    """A client's Produce request."""
    RAFT_LEADER = 3
    """The leader of the metadata quorum appends records and assigns their offsets and epochs."""


CLIENT: Final = AppendOrigin.CLIENT
"""An alias for the check at each append: looking up a member of an enumeration takes six times as long."""


class LogConfig(NamedTuple):
    """A topic's settings. A field is named after its topic config, with underscores for dots."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = _DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    segment_bytes: int = 1024 * 1024 * 1024
    segment_index_bytes: int = 10 * 1024 * 1024
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * _DAY_MS
    unclean_leader_election_enable: bool = False

    @property
    def compact(self) -> bool:
        """Whether the log is compacted, so that every record needs a key."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether old segments are deleted by retention time and size."""
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """The value of segment.ms, limited to max.compaction.lag.ms if the log is compacted. KIP-354."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    @property
    def uses_log_append_time(self) -> bool:
        return self.message_timestamp_type == LOG_APPEND_TIME
