"""Replication quotas: limits for the traffic of replicas that are catching up. KIP-73.

`leader.replication.throttled.rate` limits the bytes that a broker sends to followers, and
`follower.replication.throttled.rate` limits the bytes that a broker fetches from leaders. Each limit applies
only to replicas in the topic config `leader.replication.throttled.replicas` or
`follower.replication.throttled.replicas`, respectively. The rate is measured over the last
`replication.quota.window.num` windows. In-sync replicas are never throttled, so throttling never shrinks an
ISR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_TOPIC, MetadataImage
from kwire.host.host import Host

LEADER_SIDE: Final = "leader"
FOLLOWER_SIDE: Final = "follower"
EVERY_REPLICA: Final = "*"
NO_REPLICA: Final = ("", "none")
MAX_PARSED: Final = 1_000


def configured_rate(image: MetadataImage, node_id: int, name: str) -> int | None:
    """Return the dynamic configuration `name` of this broker, or else of all brokers, in bytes per second.

    None means no limit.
    """
    for resource in (str(node_id), ""):
        text = image.config(RESOURCE_BROKER, resource).get(name, "")
        if text.isdigit():
            return int(text)
    return None


class ReplicationQuota:
    """The replication quota of one side, leader or follower."""

    def __init__(
        self, side: str, config: BrokerConfig, host: Host, image: Callable[[], MetadataImage]
    ) -> None:
        """`side` is LEADER_SIDE or FOLLOWER_SIDE; `image` returns the current metadata."""
        self._rate = f"{side}.replication.throttled.rate"
        self._replicas = f"{side}.replication.throttled.replicas"
        self._config = config
        self._host = host
        self._image = image
        self._windows: deque[list[int]] = deque()
        """The start of each window in ms, and the bytes recorded in the window."""
        self._parsed: dict[str, frozenset[int]] = {}

    def is_throttled(self, topic: str, index: int) -> bool:
        """Whether the quota applies to this broker's replica of the partition."""
        listed = self._image().config(RESOURCE_TOPIC, topic).get(self._replicas, "")
        if listed in NO_REPLICA:
            return False
        return listed == EVERY_REPLICA or index in self._indexes(listed)

    def _indexes(self, listed: str) -> frozenset[int]:
        found = self._parsed.get(listed)
        if found is None:
            if len(self._parsed) >= MAX_PARSED:
                self._parsed.clear()
            mine = f":{self._config.node_id}"
            entries = (entry.strip() for entry in listed.split(","))
            found = self._parsed[listed] = frozenset(
                int(entry.removesuffix(mine)) for entry in entries if entry.endswith(mine)
            )
        return found

    def record(self, size_bytes: int) -> None:
        """Record replication traffic of throttled replicas."""
        now_ms, windows = int(self._host.internode_clock.monotonic_ms()), self._windows
        if not windows or now_ms - windows[-1][0] >= self._window_ms:
            windows.append([now_ms, 0])
        windows[-1][1] += size_bytes

    @property
    def is_quota_exceeded(self) -> bool:
        """Whether the recorded traffic exceeds the limit, so that throttled replicas have to wait."""
        rate = configured_rate(self._image(), self._config.node_id, self._rate)
        if rate is None:
            return False
        now_ms, windows = int(self._host.internode_clock.monotonic_ms()), self._windows
        window_ms = self._window_ms
        while windows and now_ms - windows[0][0] >= window_ms * self._config.replication_quota_window_num:
            windows.popleft()
        if not windows:
            return False
        copied_bytes = sum(size_bytes for _, size_bytes in windows)
        return copied_bytes * 1000 > rate * max(window_ms, now_ms - windows[0][0])

    @property
    def _window_ms(self) -> int:
        return self._config.replication_quota_window_size_seconds * 1000
