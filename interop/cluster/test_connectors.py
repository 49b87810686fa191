"""Kafka Connect and MirrorMaker 2 while the brokers that lead their partitions are killed in turn."""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from interop.cluster.load import read_all
from interop.cluster.nodes import CLUSTER_KINDS, Cluster
from interop.java_programs import JavaProgram
from interop.scenarios.clients_confluent import producer_of
from interop.scenarios.connect import SourceFile, Worker, line_count, sink_config, source_config
from interop.scenarios.mirror import MirroredCluster, mirror_maker

KILLS: Final = 3
LINES: Final = 1000
"""The number of lines that are written before each kill, and again after it."""
RECORDS: Final = 500
WAIT_S: Final = 150.0
SETTINGS: Final = {"auto.leader.rebalance.enable": "false", "default.replication.factor": "3"}
AS_THE_BROKER_SAYS: Final = -1


def wait_until_all_in_sync(cluster: Cluster) -> None:
    for topic, partitions in cluster.all_partitions().items():
        cluster.wait_until_in_sync(topic, partitions)


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_connect_neither_loses_nor_duplicates_records(cluster_kind: str, tmp_path: Path) -> None:
    """Check that lines of a file reach a topic exactly once, and from there another file at least once."""
    settings = {
        "exactly.once.source.support": "enabled",
        **{f"{kind}.storage.replication.factor": "3" for kind in ("config", "offset", "status")},
    }
    given, out = SourceFile(tmp_path / "in"), tmp_path / "out"
    with Cluster(CLUSTER_KINDS[cluster_kind], SETTINGS).start() as cluster:
        # The controller is never killed and is the last replica, so only the other two brokers take turns as
        # leader.
        cluster.make_topic("lines", [[2, 3, 1]])
        given.add(LINES)
        with Worker(cluster, tmp_path, "connect", **settings) as worker:

            def until_out(lines: int) -> None:
                worker.until(lambda: line_count(out) >= lines, f"{lines} lines come out", WAIT_S)

            worker.create_connector("source", **source_config(given.path, "lines", "strings"))
            worker.create_connector("sink", **sink_config(out, "lines", "strings"))
            until_out(given.count)
            for _ in range(KILLS):
                wait_until_all_in_sync(cluster)
                victim = cluster.leader("lines")
                assert victim not in cluster.controllers
                before = given.count
                given.add(LINES)
                until_out(before + 1)
                cluster.nodes[victim].kill()
                given.add(LINES)
                until_out(given.count)
                cluster.start_node(victim)
            worker.wait_until_running("source")
            worker.wait_until_running("sink")
            worker.stop()
        wait_until_all_in_sync(cluster)
        wanted = given.path.read_bytes().splitlines()
        assert [value for _, _, value in read_all(cluster.bootstrap, "lines", 1)] == wanted
        # After a rebalance, a sink connector receives records again whose offsets were not committed.
        assert list(dict.fromkeys(out.read_bytes().splitlines())) == wanted
        for topic, partitions in cluster.all_partitions().items():
            cluster.wait_until_replicas_equal(topic, partitions)
        cluster.check_logs()


class Writing:
    """A writer of numbered records, RECORDS at a time, to the topic of one cluster."""

    def __init__(self, side: MirroredCluster, partitions: int) -> None:
        self.side = side
        self.partitions = partitions
        self.count = 0
        self._numbers = count()

    def write(self) -> None:
        producer = producer_of(self.side.broker, **{"enable.idempotence": True})
        for _ in range(RECORDS):
            number = next(self._numbers)
            value = f"{self.side.name} {number}"
            producer.produce(self.side.topic, value, key=value, partition=number % self.partitions)
        assert producer.flush(WAIT_S) == 0
        self.count += RECORDS


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_mirror_maker_survives_broker_kills(cluster_kind: str, tmp_path: Path) -> None:
    """Check replication with group offsets, in both directions, between the cluster and a single broker."""
    members = CLUSTER_KINDS[cluster_kind]
    other = members[-1].kind()
    with Cluster(members, SETTINGS).start() as cluster:
        try:
            other.start()
            east, west = MirroredCluster("east", cluster, "west"), MirroredCluster("west", other, "east")
            cluster.make_topic("mirror-east", [[2, 3, 1], [3, 2, 1]])
            west.create_topic(1)
            writings = [(Writing(east, 2), west), (Writing(west, 1), east)]
            with mirror_maker(tmp_path, east, west, replication_factor=AS_THE_BROKER_SAYS) as program:
                for _ in range(KILLS):
                    for writing, _ in writings:
                        writing.write()
                    for writing, target in writings:
                        until_mirrored(program, target, writing.count - RECORDS + 1)
                    wait_until_all_in_sync(cluster)
                    victim = cluster.leader("mirror-east")
                    assert victim not in cluster.controllers
                    cluster.nodes[victim].kill()
                    for writing, _ in writings:
                        writing.write()
                    for writing, target in writings:
                        until_mirrored(program, target, writing.count)
                    cluster.start_node(victim)
                wait_until_all_in_sync(cluster)
                for writing, target in writings:
                    writing.side.commit_ends()
                    program.until(target.is_group_caught_up, f"{target.name} has the group's offsets", WAIT_S)
                program.stop()
            for writing, target in writings:
                side = writing.side
                mirrored = [list(dict.fromkeys(rows)) for rows in target.read(target.mirrored_topic)]
                assert mirrored == side.read(side.topic)
                assert sum(map(len, mirrored)) == writing.count
                check_statuses(target, side.name)
        finally:
            other.discard()
        for topic, partitions in cluster.all_partitions().items():
            cluster.wait_until_replicas_equal(topic, partitions)
        cluster.check_logs()


def until_mirrored(program: JavaProgram, target: MirroredCluster, records: int) -> None:
    what = f"{target.name} has {records} records of {target.mirrored_topic}"
    program.until(partial(target.has_mirrored, records), what, WAIT_S)


def check_statuses(side: MirroredCluster, origin: str) -> None:
    """Check that no connector or task that writes to this cluster has ever failed."""
    topic = f"mm2-status.{origin}.internal"
    found = read_all(side.broker.bootstrap, topic, len(side.partitions_of(topic)))
    statuses = [value for _, _, value in found if value]
    assert any(b"RUNNING" in value for value in statuses)
    assert not [value for value in statuses if b"FAILED" in value]
