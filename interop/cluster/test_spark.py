"""Spark streams and batch reads while the brokers that lead the partitions are killed in turn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from interop.cluster.load import ConfluentWriter, Load, read_all
from interop.cluster.nodes import CLUSTER_KINDS, Cluster
from interop.scenarios.spark import SparkJob

if TYPE_CHECKING:
    from interop.record import Record

PARTITIONS: Final = 2
KILLS: Final = 3
JOB_SECONDS: Final = 600.0
Values = dict[int, list[str]]
"""The values of each partition, in the order of their offsets."""


class Seen(NamedTuple):
    """The content of the topics once the streams have processed all records of the source topic."""

    source: Values
    copy: Values
    counts: dict[int, int]
    """The last count that the stream wrote for each partition."""


def seen(job: SparkJob) -> Seen:
    assert job.next_event() == {"ask": "read"}
    job.resume()
    event = job.next_event()
    counts = (value.split() for value in values(event["counts"])[0])
    return Seen(values(event["source"]), values(event["copy"]), {int(of): int(count) for of, count in counts})


def values(rows: dict[str, list[Any]]) -> Values:
    return {int(partition): [value for _, value in of] for partition, of in rows.items()}


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_spark_streams_survive_leader_kills(cluster_kind: str, tmp_path: Path, record: Record) -> None:
    with Cluster(CLUSTER_KINDS[cluster_kind], {"auto.leader.rebalance.enable": "false"}).start() as cluster:
        # The controller is never killed and is the last replica, so only the other two brokers take turns as
        # leader.
        for topic in ("in", "out"):
            cluster.make_topic(topic, [[2, 3, 1], [3, 2, 1]])
        cluster.make_topic("counts", [[2, 3, 1]])
        with (
            Load(cluster.bootstrap, "in", PARTITIONS) as load,
            SparkJob(
                "stream_failover",
                cluster,
                tmp_path,
                seconds=JOB_SECONDS,
                source="in",
                copy="out",
                counts="counts",
            ) as job,
        ):
            load.start(ConfluentWriter)
            load.wait_until_all_write()
            seen(job)
            took = []
            for _ in range(KILLS):
                victim = cluster.leader("in")
                assert victim not in cluster.controllers
                acknowledged = load.history.acknowledged_count
                began = time.monotonic()
                cluster.nodes[victim].kill()
                # This batch read starts before another leader is elected.
                assert sum(map(len, seen(job).source.values())) >= acknowledged
                took.append(round(time.monotonic() - began, 1))
                load.wait_until_all_write()
                cluster.start_node(victim)
                for topic in ("in", "out", "counts"):
                    cluster.wait_until_in_sync(topic, PARTITIONS if topic != "counts" else 1)
                seen(job)
            load.stop()
            load.check()
            last = seen(job)
        written: Values = {partition: [] for partition in range(PARTITIONS)}
        for (_, partition), _, value in read_all(cluster.bootstrap, "in", PARTITIONS):
            written[partition].append(value.decode())
        assert last.source == written
        # If Spark retries a task, the sink may write a record again. No task was retried here.
        assert last.copy == written
        assert last.counts == {partition: len(found) for partition, found in written.items()}
        record.save(f"cluster.spark.{cluster_kind}", {"seconds until the streams have passed a kill": took})
        for topic, partitions in cluster.all_partitions().items():
            cluster.wait_until_replicas_equal(topic, partitions)
        cluster.check_logs()
