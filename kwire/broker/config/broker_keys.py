"""All keys of a broker, and the keys that can change while the broker runs. KIP-226."""

from __future__ import annotations

from typing import Final

from kwire.broker.config.coordinator_keys import COORDINATOR_KEYS
from kwire.broker.config.definition import ConfigType, Key, UpdateMode, at_least
from kwire.broker.config.security_keys import SECURITY_KEYS
from kwire.broker.config.server_keys import SERVER_KEYS
from kwire.broker.config.storage_keys import STORAGE_KEYS

BROKER_KEYS: Final[dict[str, Key]] = {
    key.name: key for keys in (SERVER_KEYS, STORAGE_KEYS, COORDINATOR_KEYS, SECURITY_KEYS) for key in keys
}

THROTTLE_KEYS: Final[dict[str, Key]] = {
    name: Key(name, ConfigType.LONG, None, at_least(0), update_mode=UpdateMode.CLUSTER_WIDE)
    for name in (
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
}
"""Keys that can only be set dynamically. They are described only if they are set."""

LISTENER_PREFIX: Final = "listener.name."
"""The prefix of a key for one listener: listener.name.<name>.<key>."""

DYNAMIC_KEYS: Final[dict[str, Key]] = THROTTLE_KEYS | {
    name: key for name, key in BROKER_KEYS.items() if key.update_mode is not UpdateMode.READ_ONLY
}
"""The keys that can change while brokers run."""
