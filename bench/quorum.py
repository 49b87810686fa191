"""A quorum of three controllers over one broker, or over three with many partitions.

One cluster after the other, since two would have half of the machine each; the times are the defaults:

- how long after SIGKILL of the active controller, or its SIGTERM, those that are left have another, and until
  a topic is made that was asked for then;
- topics made one after the other, and the partitions of one CreateTopics, a second;
- with 20,000 partitions of one replica: the same after a SIGKILL, the processor time of controllers that have
  nothing to do, and how long a broker takes from its launch until it leads again;
- with as many on 20 brokers, all of kwire's: the processor time of controllers of either kind at rest.

With BENCH_QUORUM_PARTITIONS=2000 there are fewer. BENCH_QUORUM names parts: elections, topics, partitions,
brokers.
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
AT_ONCE = 1_000
"""Partitions of one CreateTopics."""
ENDS = {"killed": 40, "stopped": 10}
MANY_ENDS = 3
SETTLE_SECONDS = 4.0
"""A controller that is back has caught up by then."""
IDLE_SECONDS = 20.0
POLL_SECONDS = 0.005
_LOG = b"__cluster_metadata"
_TOPIC = bytes([len(_LOG) + 1]) + _LOG + b"\2"
"""In a flexible version: one partition follows."""
_DESCRIBE = struct.pack(">hhih", 55, 0, 0, -1) + b"\0\2" + _TOPIC + bytes(4) + b"\0\0\0"
"""DescribeQuorum v0 of the metadata log."""
_TOLD = struct.Struct(">ihi")
"""Of the answer: the partition, the error code, the leader."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """All parts, of one cluster after the other. The times are not to be had shorter, or again and again."""
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
        for how, times in ENDS.items():
            elected, made = [], []
            for number in range(times):
                one, other = _ends(cluster, how, f"{how}-{number}")
                elected.append(one)
                made.append(other)
            for percent in (50, 99):
                samples.add(f"{how}, until another leads, p{percent}", "s", percentile(elected, percent))
                samples.add(f"{how}, until a topic is made, p{percent}", "s", percentile(made, percent))


def _ends(cluster: Cluster, how: str, topic: str) -> tuple[float, float]:
    """Seconds until the controllers that are left say who leads, and until a topic is made."""
    victim = _active(cluster, CONTROLLERS)
    time.sleep(SETTLE_SECONDS)
    cluster.end_node(victim, cleanly=how == "stopped")
    struck = time.perf_counter()
    _active(cluster, [each for each in CONTROLLERS if each != victim], than=victim)
    elected = time.perf_counter() - struck
    cluster.create_topics([topic], 1)
    made = time.perf_counter() - struck
    cluster.await_end(victim)
    cluster.start_node(victim)
    return elected, made


def _active(cluster: Cluster, asked: Collection[int], *, than: int = -1) -> int:
    """Who leads, as soon as somebody else does than who is given, and says so."""
    deadline = time.perf_counter() + START_SECONDS
    while time.perf_counter() < deadline:
        for node in asked:
            leader_id = _leader(cluster.ports[node])
            if leader_id not in (-1, than):
                return leader_id
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"{cluster.name} elects nobody: {cluster.directory}")


def _leader(port: int) -> int:
    """Who leads the quorum, as a controller says that leads it; -1 where it does not."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as link:
            link.sendall(len(_DESCRIBE).to_bytes(4, "big") + _DESCRIBE)
            with link.makefile("rb") as stream:
                frame = stream.read(int.from_bytes(stream.read(4), "big"))
        _, error_code, leader_id = _TOLD.unpack_from(frame, frame.index(_TOPIC) + len(_TOPIC))
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
        samples.add("topics made, one after the other", "topics/s", TOPICS / taken)
        for number in range(3):
            began = time.perf_counter()
            cluster.create_topics([f"many-{number}"], AT_ONCE)
            taken = time.perf_counter() - began
        samples.add(f"a topic of {AT_ONCE:,} partitions", "partitions/s", AT_ONCE / taken)


# --- many partitions


def _filled(cluster: Cluster) -> list[str]:
    """Make all partitions; gives their topics."""
    topics = [f"topic-{number:04}" for number in range(PARTITIONS // PARTITIONS_PER_TOPIC)]
    for first in range(0, len(topics), 10):
        cluster.create_topics(topics[first : first + 10], PARTITIONS_PER_TOPIC)
    cluster.await_all(lambda one: one.leader >= 0, *topics)
    return topics


def _percent_at_rest(cluster: Cluster) -> float:
    """Of a core, all controllers together."""
    time.sleep(2 * SETTLE_SECONDS)
    before = cluster.cpu_seconds(CONTROLLERS)
    time.sleep(IDLE_SECONDS)
    return (cluster.cpu_seconds(CONTROLLERS) - before) / IDLE_SECONDS * 100


def _brokers(samples: Samples) -> None:
    kind = ApacheControllers if samples.name == "apache" else CLUSTERS[samples.name]
    with kind(CONTROLLERS, MANY_BROKERS, replicas=1).start() as cluster:
        _filled(cluster)
        what = f"{len(MANY_BROKERS)} brokers, {PARTITIONS:,} partitions: CPU of the controllers at rest"
        samples.add(what, "% of a core", _percent_at_rest(cluster))


def _partitions(samples: Samples) -> None:
    with CLUSTERS[samples.name](CONTROLLERS, BROKERS, replicas=1).start() as cluster:
        topics = _filled(cluster)
        what = f"{PARTITIONS:,} partitions"
        samples.add(f"{what}: CPU of the controllers at rest", "% of a core", _percent_at_rest(cluster))
        for number in range(MANY_ENDS):
            elected, made = _ends(cluster, "killed", f"after-{number}")
            samples.add(f"{what}: killed, until another leads", "s", elected)
            samples.add(f"{what}: killed, until a topic is made", "s", made)
        cluster.end_node(BROKERS[-1], cleanly=True)
        cluster.await_end(BROKERS[-1])
        began = time.perf_counter()
        cluster.start_node(BROKERS[-1])
        done = cluster.await_all(lambda one: one.leader >= 0, *topics)
        samples.add(f"{what}: from a broker's launch until it leads", "s", done - began)
