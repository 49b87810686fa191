"""Lookups of a broker's logs, by partition and by log directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC, LogDirectory
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.flush_metrics import FlushMetrics
from kwire.broker.storage.log.log import Log
from kwire.wire.primitives import TopicPartition, Uuid


class BrokerLogs:
    """The log directories of a broker and their logs. `LogManager` adds the methods that change them."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self._directories = directories
        self.flush_metrics = FlushMetrics()
        self._logs: dict[TopicPartition, Log] = {}
        """The current log of each partition, including the metadata log if it is open."""
        self._future_logs: dict[TopicPartition, Log] = {}
        """The future log of each partition that is being moved to another directory."""
        self._parents: dict[Log, LogDirectory] = {}
        """The directory of each current log and future log."""
        self._replaced_logs: dict[Log, LogDirectory] = {}
        """Logs that were replaced by future logs, and that a restarted broker would still find."""

    @property
    def cluster_id(self) -> str:
        """The cluster id of the directories; empty before the directories are formatted."""
        for directory in self._directories:
            if directory.properties is not None:
                return directory.properties.cluster_id
        return ""

    def directories(self) -> list[LogDirectory]:
        return list(self._directories)

    def _directory(self, path: str) -> LogDirectory:
        found = self.directory(path.rstrip("/"))
        if found is None:
            raise StorageError(f"{path} is not in log.dirs")
        return found

    def directory(self, path: str) -> LogDirectory | None:
        """Return the configured directory with exactly this path."""
        return next((directory for directory in self._directories if directory.path == path), None)

    def directory_of_id(self, directory_id: Uuid | None) -> LogDirectory | None:
        """Return the online directory with this id, or None. A metadata-only directory is not returned."""
        usable = (one for one in self._directories if not one.offline and not one.holds_only_metadata)
        return next((one for one in usable if directory_id and one.directory_id == directory_id), None)

    def logs(self) -> Iterable[Log]:
        """Return the current log of each partition, including the metadata log if it is open."""
        return self._logs.values()

    def logs_in(self, path: str) -> list[Log]:
        return [log for log, parent in self._parents.items() if parent.path == path]

    def _logs_on_disk(self, path: str) -> list[Log]:
        """Return the logs that a restarted broker would find in a directory, including replaced logs."""
        return [
            *self.logs_in(path),
            *(log for log, parent in self._replaced_logs.items() if parent.path == path),
        ]

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    def future_log(self, topic: str, partition: int) -> Log | None:
        """Return the future log of the partition, or None if the partition is not being moved."""
        return self._future_logs.get((topic, partition))

    def future_logs(self) -> list[Log]:
        return list(self._future_logs.values())

    @property
    def any_offline(self) -> bool:
        return any(directory.offline for directory in self._directories)

    def directory_of(self, log: Log) -> LogDirectory:
        return self._parents.get(log) or self._replaced_logs[log]

    def _next_directory(self) -> LogDirectory:
        """Return the online directory with the fewest logs; if possible, not a cordoned directory (KIP-1066).

        Raises StorageError if no directory is online.
        """
        online = [known for known in self._directories if not known.offline and not known.holds_only_metadata]
        if not online:
            raise StorageError("all log directories are offline")
        if len(online) == 1:
            return online[0]
        counts = dict.fromkeys((known.path for known in online), 0)
        for log, parent in self._parents.items():
            # As in Kafka, future logs count, but the metadata log does not.
            if parent.path in counts and log.topic != METADATA_TOPIC:
                counts[parent.path] += 1
        return min(online, key=lambda known: (known.cordoned, counts[known.path]))
