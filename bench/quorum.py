"""A quorum of three controllers with one broker, and with many partitions.

The clusters run one after the other, because two clusters at a time would share the machine. Timeouts are the
defaults.

- elections: the time from SIGKILL or SIGTERM of the active controller until the others have a new leader, and
  until a topic that is requested then has been created;
- topics: topics created one after the other, and the partitions of one CreateTopics, per second;
- partitions: with three brokers and 20,000 partitions of one replica, the same times after SIGKILL, the
  processor time of idle controllers, and the time from a broker's start until it is leader of its partitions
  again;
- brokers: with as many partitions on 20 brokers of kwire, the processor time of idle controllers.

BENCH_QUORUM_PARTITIONS=2000 reduces the number of partitions. BENCH_QUORUM selects parts: elections, topics,
partitions, brokers.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Collection

from bench.figures import Figure, Samples, percentile
from bench.nodes import BROKERS, CLUSTERS, START_SECONDS, ApacheControllers, Cluster

CONTROLLERS = (100, 101, 102)
MANY_BROKERS = tuple(range(1, 21))
PARTITIONS = int(os.environ.get("BENCH_QUORUM_PARTITIONS", "20000"))
PARTITIONS_PER_TOPIC = 100
TOPICS = 100
LARGE_TOPIC_PARTITIONS = 1_000
"""The number of partitions in one CreateTopics request."""
FAILOVERS = {"killed": 40, "stopped": 10}
MANY_PARTITIONS_FAILOVERS = 3
SETTLE_SECONDS = 4.0
"""The time to wait until a restarted controller has caught up."""
IDLE_SECONDS = 20.0
POLL_SECONDS = 0.005
_LOG = b"__cluster_metadata"
_TOPIC = bytes([len(_LOG) + 1]) + _LOG + b"\2"
"""The encoded topic name, followed by the number of partitions."""
_DESCRIBE = struct.pack(">hhih", 55, 0, 0, -1) + b"\0\2" + _TOPIC + bytes(4) + b"\0\0\0"
"""A DescribeQuorum v0 request for the metadata log."""
_PARTITION_RESPONSE = struct.Struct(">ihi")
"""The first fields of a partition in the DescribeQuorum response: index, error code, leader id."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure the parts that BENCH_QUORUM selects, by default all. `seconds` and `rounds` have no effect."""
    figures: dict[str, Figure] = {}
    parts: dict[str, Callable[[Samples], None]] = {
        "elections": _elections,
        "topics": _topics,
        "partitions": _partitions,
        "brokers": _brokers,
    }
    for part in os.environ.get("BENCH_QUORUM", " ".join(parts)).split():
        for name in names:
            parts[part](Samples(figures, name))
    return list(figures.values())


# --- elections


def _elections(samples: Samples) -> None:
    with CLUSTERS[samples.name](CONTROLLERS, (1,)).start() as cluster:
        cluster.create_topics(["first"], 1)
        for how, times in FAILOVERS.items():
            elected, created = [], []
            for number in range(times):
                elected_s, created_s = _measure_failover(cluster, how, f"{how}-{number}")
                elected.append(elected_s)
                created.append(created_s)
            for percent in (50, 99):
                samples.add(f"{how}: next leader elected, p{percent}", "s", percentile(elected, percent))
                samples.add(f"{how}: topic created, p{percent}", "s", percentile(created, percent))


def _measure_failover(cluster: Cluster, how: str, topic: str) -> tuple[float, float]:
    """End the active controller with SIGKILL, or SIGTERM if `how` is "stopped", and start it again.

    Returns the seconds until the other controllers report a leader, and until the topic is created.
    """
    victim = _await_leader(cluster, CONTROLLERS)
    time.sleep(SETTLE_SECONDS)
    cluster.stop_node(victim, cleanly=how == "stopped")
    stopped_at = time.perf_counter()
    _await_leader(cluster, [each for each in CONTROLLERS if each != victim], other_than=victim)
    elected = time.perf_counter() - stopped_at
    cluster.create_topics([topic], 1)
    created = time.perf_counter() - stopped_at
    cluster.await_end(victim)
    cluster.start_node(victim)
    return elected, created


def _await_leader(cluster: Cluster, controllers: Collection[int], *, other_than: int = -1) -> int:
    """Wait until a controller other than `other_than` is leader, and return its node id."""
    deadline = time.perf_counter() + START_SECONDS
    while time.perf_counter() < deadline:
        for node in controllers:
            leader_id = _leader(cluster.ports[node])
            if leader_id not in (-1, other_than):
                return leader_id
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"{cluster.name} elects no leader: {cluster.directory}")


def _leader(port: int) -> int:
    """Return the node id of the controller at this port if it is the leader, or -1 otherwise."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as link:
            link.sendall(len(_DESCRIBE).to_bytes(4, "big") + _DESCRIBE)
            with link.makefile("rb") as stream:
                frame = stream.read(int.from_bytes(stream.read(4), "big"))
        _, error_code, leader_id = _PARTITION_RESPONSE.unpack_from(frame, frame.index(_TOPIC) + len(_TOPIC))
    except (OSError, ValueError, struct.error):
        return -1
    return -1 if error_code else int(leader_id)


# --- commands


def _topics(samples: Samples) -> None:
    with CLUSTERS[samples.name](CONTROLLERS, (1,)).start() as cluster:
        for label in ("warm", "topic"):
            began = time.perf_counter()
            for number in range(TOPICS):
                cluster.create_topics([f"{label}-{number}"], 1)
            taken = time.perf_counter() - began
        samples.add("topics created one after the other", "topics/s", TOPICS / taken)
        for number in range(3):
            began = time.perf_counter()
            cluster.create_topics([f"many-{number}"], LARGE_TOPIC_PARTITIONS)
            taken = time.perf_counter() - began
        samples.add(
            f"a topic of {LARGE_TOPIC_PARTITIONS:,} partitions",
            "partitions/s",
            LARGE_TOPIC_PARTITIONS / taken,
        )


# --- many partitions


def _create_all_topics(cluster: Cluster) -> list[str]:
    """Create all partitions and return the names of their topics."""
    topics = [f"topic-{number:04}" for number in range(PARTITIONS // PARTITIONS_PER_TOPIC)]
    for first in range(0, len(topics), 10):
        cluster.create_topics(topics[first : first + 10], PARTITIONS_PER_TOPIC)
    cluster.await_all(lambda one: one.leader >= 0, *topics)
    return topics


def _idle_cpu_percent(cluster: Cluster) -> float:
    """Return the processor time of all idle controllers, in percent of one core."""
    time.sleep(2 * SETTLE_SECONDS)
    before = cluster.cpu_seconds(CONTROLLERS)
    time.sleep(IDLE_SECONDS)
    return (cluster.cpu_seconds(CONTROLLERS) - before) / IDLE_SECONDS * 100


def _brokers(samples: Samples) -> None:
    kind = ApacheControllers if samples.name == "apache" else CLUSTERS[samples.name]
    with kind(CONTROLLERS, MANY_BROKERS, replicas=1).start() as cluster:
        _create_all_topics(cluster)
        what = f"{len(MANY_BROKERS)} brokers, {PARTITIONS:,} partitions: idle CPU of the controllers"
        samples.add(what, "% of a core", _idle_cpu_percent(cluster))


def _partitions(samples: Samples) -> None:
    with CLUSTERS[samples.name](CONTROLLERS, BROKERS, replicas=1).start() as cluster:
        topics = _create_all_topics(cluster)
        what = f"{PARTITIONS:,} partitions"
        samples.add(f"{what}: idle CPU of the controllers", "% of a core", _idle_cpu_percent(cluster))
        for number in range(MANY_PARTITIONS_FAILOVERS):
            elected, created = _measure_failover(cluster, "killed", f"after-{number}")
            samples.add(f"{what}, killed: next leader elected", "s", elected)
            samples.add(f"{what}, killed: topic created", "s", created)
        cluster.stop_node(BROKERS[-1], cleanly=True)
        cluster.await_end(BROKERS[-1])
        began = time.perf_counter()
        cluster.start_node(BROKERS[-1])
        done = cluster.await_all(lambda one: one.leader >= 0, *topics)
        samples.add(f"{what}: broker start until it is leader", "s", done - began)
