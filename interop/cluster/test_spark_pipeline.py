"""Jobs of the pipeline on a cluster, while a broker that leads their partitions is killed."""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from interop.cluster.nodes import CLUSTER_KINDS, Cluster
from interop.pipeline.job_runs import JOB_SECONDS, Jobs, kafka, output_of, produce_odd, read
from interop.pipeline_kills.checker import check_archive
from interop.pipeline_kills.processes import JobProcess
from interop.pipeline_kills.reading import Records, read_ends
from interop.scenarios.clients_confluent import producer_of

RECORDS: Final = 12_000
BEGAN_MS: Final = 1_700_000_000_000
PARTITIONS: Final = 2
SOURCE: Final = {
    # The micro-batches are small, so that the broker is killed in the middle of one.
    "maxOffsetsPerTrigger": "1000",
    # These timeouts are the same as in interop/spark_jobs/stream_failover.py.
    "kafka.request.timeout.ms": "10000",
    "kafka.default.api.timeout.ms": "10000",
}
COMMITTED: Final = {"kafka.isolation.level": "read_committed"}
SETTINGS: Final = {"auto.leader.rebalance.enable": "false", "default.replication.factor": "3"}


def fill(cluster: Cluster) -> None:
    """Write plain records, and transactions whose markers and aborts leave gaps between offsets."""
    producer = producer_of(cluster)
    for number in range(RECORDS):
        value = b"%d %s" % (number, b"x" * (number % 50))
        producer.produce(
            "events", value, b"%d" % (number % 7), number % PARTITIONS, timestamp=BEGAN_MS + number * 1000
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    produce_odd(cluster, "events", PARTITIONS, BEGAN_MS)


def records(cluster: Cluster, topic: str) -> Records:
    """Return the committed records of a topic."""
    return {place: list(found.values()) for place, found in read(cluster, topic).items()}


def contents(found: Records) -> dict[int, list[tuple[Any, ...]]]:
    """Return the contents of the records by partition, in the order of their offsets."""
    return {partition: [record.content for record in of] for (_, partition), of in found.items()}


def killed_amid(cluster: Cluster, job: JobProcess, topic: str, has_begun: Callable[[], bool]) -> None:
    """When `has_begun` is true, kill a broker that leads a partition of the topic.

    The job must succeed. Then the broker is started again.
    """
    deadline = time.monotonic() + JOB_SECONDS
    while not has_begun():
        assert not job.has_ended, job.tail()
        assert time.monotonic() < deadline, job.tail()
        time.sleep(0.05)
    leaders = [cluster.leader(topic, index) for index in range(PARTITIONS)]
    victim = next(leader for leader in leaders if leader not in cluster.controllers)
    assert not job.has_ended, "it was done before the broker was killed"
    cluster.nodes[victim].kill()
    output_of(job)
    cluster.start_node(victim)
    for name, partitions in cluster.all_partitions().items():
        cluster.wait_until_in_sync(name, partitions)


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_pipeline_jobs_are_exact_despite_a_leader_kill(cluster_kind: str, tmp_path: Path) -> None:
    jobs, archived = Jobs(tmp_path), tmp_path / "archive"
    with Cluster(CLUSTER_KINDS[cluster_kind], SETTINGS).start() as cluster:
        cluster.make_topic("events", [[2, 3, 1], [3, 2, 1]], **{"retention.ms": "-1"})
        fill(cluster)
        truth = records(cluster, "events")
        ends = read_ends(cluster.bootstrap, ["events"])

        mirror = {
            "input": kafka(cluster, "events", **SOURCE, **COMMITTED),
            "mirror": {
                "job": "m",
                "checkpoint": str(tmp_path / "checkpoint"),
                "suffix": ".mirror",
                "client": {"bootstrap.servers": cluster.bootstrap},
            },
        }
        killed_amid(
            cluster,
            jobs.start("mirror", mirror),
            "events.mirror",
            lambda: any(b"".join(cluster.segments(1, "events.mirror", at).values()) for at in (0, 1)),
        )
        assert contents(records(cluster, "events.mirror")) == contents(truth)

        archive: dict[str, Any] = {
            "input": kafka(cluster, "events", **SOURCE, **COMMITTED),
            "archive": {"directory": str(archived)},
        }
        killed_amid(
            cluster,
            jobs.start("archive", archive),
            "events",
            lambda: any((archived / "_manifests").glob("*.json")),
        )
        assert check_archive(truth, ends, archived) == []
        for name, partitions in cluster.all_partitions().items():
            cluster.wait_until_replicas_equal(name, partitions)
        cluster.check_logs()
