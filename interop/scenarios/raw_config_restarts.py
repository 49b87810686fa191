"""Dynamic configurations that contradict the static configurations of a later start, and their repair.

Each dynamic value is valid with the static configurations of the first start. After a start with other static
configurations, the broker must still serve requests. If the dynamic configurations of a level (broker or
cluster) contain a contradiction, the broker ignores all dynamic configurations of this level.
"""

from __future__ import annotations

import time
from typing import Any

from interop.brokers import Broker
from interop.raw import create_topic, fetch
from interop.raw_client import RawClient
from interop.scenario import scenario
from interop.scenarios.raw_config_values import BROKER, DELETE, SET, TOPIC, change, entries

FIRST = {
    "max.connections.per.ip.overrides": "127.0.0.1:900",
    "num.io.threads": "32",
    "log.cleaner.threads": "4",
    "log.retention.ms": "1000000",
    "group.consumer.max.assignment.interval.ms": "60000",
}
DYNAMIC = {
    "": {"max.connections.per.ip": "0", "message.max.bytes": "5000"},
    "1": {
        "num.io.threads": "64",
        "log.cleaner.threads": "8",
        "log.local.retention.ms": "1000000",
        "log.segment.bytes": "2000000",
        "group.consumer.assignment.interval.ms": "50000",
    },
}
LATER: dict[str, dict[str, str]] = {
    "fewer threads": {"num.io.threads": "8", "log.cleaner.threads": "1"},
    "a shorter interval": {"group.consumer.max.assignment.interval.ms": "20000"},
    "no overrides": {"max.connections.per.ip.overrides": ""},
}
NAMES = sorted({*FIRST, *(name for settings in DYNAMIC.values() for name in settings)})
SECONDS = 10.0


def described_configs(client: RawClient) -> dict[str, Any]:
    """Wait until the broker has applied the stored configurations, and describe all `NAMES`.

    Apache Kafka describes a stored value before it applies the value. So this function waits until two
    successive descriptions are equal.
    """
    deadline = time.monotonic() + SECONDS
    before: dict[str, Any] = {}
    while True:
        found = {
            where: sorted(entries(client, BROKER, where, NAMES), key=lambda entry: str(entry["Name"]))
            for where in ("1", "")
        }
        is_stored = any(synonym["Source"] == 2 for entry in found["1"] for synonym in entry["Synonyms"])
        if is_stored and found == before:
            return found
        before = found
        assert time.monotonic() < deadline, "the stored configurations were not applied"
        time.sleep(1)


@scenario(seconds=150)
def conflicting_static_configs(broker: Broker) -> Any:
    """Restart on the same directory with different static configurations."""
    seen: dict[str, Any] = {}
    own = type(broker)(FIRST)
    own.start()
    try:
        with RawClient(own.bootstrap) as client:
            for where, settings in DYNAMIC.items():
                created = [(name, SET, value) for name, value in settings.items()]
                assert change(client, BROKER, where, created, check=False) == [0, None]
            seen["made"] = described_configs(client)
        for label, settings in LATER.items():
            own.stop()
            own.properties.update(FIRST | settings)
            own.start()
            with RawClient(own.bootstrap) as client:
                seen[label] = described_configs(client)
        with RawClient(own.bootstrap) as client:
            seen["another change"] = change(client, BROKER, "", [("message.max.bytes", SET, "6000")])
            repair = [("max.connections.per.ip", DELETE, None)]
            seen["repaired"] = change(client, BROKER, "", repair, check=False)
            deadline = time.monotonic() + SECONDS
            while "5000" not in [entry["Value"] for entry in entries(client, BROKER, "1", NAMES)]:
                assert time.monotonic() < deadline, "never applied"
                time.sleep(0.1)
            seen["then"] = described_configs(client)
    finally:
        own.discard()
    return seen


@scenario(seconds=150)
def rarely_set_keys(broker: Broker) -> Any:
    """Use a key that is described only if it is set, a retention below -1, and 8 or 0 fetch session slots."""
    settings = {
        "log.initial.task.delay.ms": "100",
        "log.retention.ms": "-5",
        "max.incremental.fetch.session.cache.slots": "8",
    }
    own = type(broker)(settings)
    own.start()
    try:
        with RawClient(own.bootstrap) as client:
            create_topic(client, "t")
            seen: dict[str, Any] = {
                "broker": sorted(
                    entries(client, BROKER, "1", sorted(settings)), key=lambda entry: str(entry["Name"])
                ),
                "topic": entries(client, TOPIC, "t", ["retention.ms"]),
            }
            for slots in ("0", "8"):
                own.stop()
                own.properties["max.incremental.fetch.session.cache.slots"] = slots
                own.start()
                with RawClient(own.bootstrap) as again:
                    response = fetch(again, "t", 0, SessionId=0, SessionEpoch=0)
                    seen[f"a session with {slots} slots"] = response["SessionId"] != 0
    finally:
        own.discard()
    return seen
