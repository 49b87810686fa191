"""Helpers for scenarios with several controllers, which run load, change voters, and check the result."""

from __future__ import annotations

import base64
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from interop.brokers import Broker, Kwire
from interop.cluster.load import ALL_CLIENTS, Client, Load
from interop.cluster.metadata_images import image_at
from interop.cluster.nodes import Cluster, SmallKafka, wait_until
from interop.raw import TOPIC_ALREADY_EXISTS
from interop.tools import TOOLS, a_file, run

QUORUM = f"{TOOLS}.MetadataQuorumCommand"
VOTER_KINDS: dict[str, tuple[type[Broker], ...]] = {
    "kwire": (Kwire, Kwire, Kwire),
    "two of kwire": (Kwire, SmallKafka, Kwire),
    "one of kwire": (SmallKafka, Kwire, SmallKafka),
    "kafka": (SmallKafka, SmallKafka, SmallKafka),
}
"""By name, the kinds of the three voters."""
BATCH_HEAD = struct.Struct(">qi11xi")
"""The base offset, length and last offset delta of a record batch."""
SNAPSHOTS_OFTEN = {
    "metadata.log.max.record.bytes.between.snapshots": "4000",
    "metadata.max.retention.bytes": "8000",
    "internal.metadata.log.segment.bytes": "8192",
    "internal.metadata.delete.delay.millis": "1000",
}
"""Small limits that make nodes take snapshots often and delete the beginning of the metadata log."""


@contextmanager
def under_load(
    cluster: Cluster,
    *,
    clients: Collection[type[Client]] = ALL_CLIENTS,
    partitions: int = 1,
    also: str = "(?!)",
    of: Collection[int] = (),
) -> Iterator[Load]:
    """Run unmodified clients on topic `t`. Then check that no record is lost and that all nodes are equal.

    `also` and `of` are passed to `Cluster.check_logs`.
    """
    login = None if cluster.logins is None else cluster.logins.client
    with Load(cluster.bootstrap, "t", partitions, login) as load:
        load.start(*clients)
        # The first client makes the brokers create the coordinators' topics, for which all brokers must run.
        load.wait_until_all_write()
        yield load
        load.wait_until_all_write()
        load.stop()
        load.check()
    cluster.wait_until_all_replicas_equal()
    check_same_metadata(cluster)
    cluster.check_logs(also, of)


def create_topics_through_each_broker(cluster: Cluster, title: str) -> None:
    """Create a topic through each running broker, which forwards the request to the active controller.

    The names of the topics are `title` and the broker id.
    """
    awake = [each for each in cluster.brokers if cluster.nodes[each].is_running]
    for queried_id in awake:
        # If the controller failed, the broker sends the request again. The first request may have created the
        # topic already.
        expected = (0, TOPIC_ALREADY_EXISTS)
        cluster.create_topic_through(queried_id, f"{title}-{queried_id}", [awake[-2:]], {}, expected=expected)


def check_same_metadata(cluster: Cluster) -> None:
    """Check that all nodes have byte-identical committed metadata logs, and the same metadata image."""
    active = cluster.active_controller()
    committed = wait_until_metadata_replicated(cluster, active)
    logs = {node_id: metadata_batches(cluster, node_id) for node_id in cluster.nodes}
    # Nodes that take snapshots delete old segments of the metadata log at different times.
    first = max(min(log) for log in logs.values())
    last = min(max(log) for log in logs.values())
    assert first < committed <= last + 1
    [*_, held] = compared = [
        {offset: batch for offset, batch in log.items() if first <= offset <= last} for log in logs.values()
    ]
    assert [node_id for node_id, log in zip(logs, compared, strict=True) if log != held] == []
    # Each node writes its own snapshots, so the files differ. Compare the images that the files contain.
    images: dict[int, list[str]] = {}

    def are_read() -> bool:
        # A node may delete a snapshot while this function reads it.
        images.update({node_id: image_at(metadata_home(cluster, node_id), last) for node_id in logs})
        return True

    wait_until(are_read, "the metadata cannot be read")
    for node_id, image in images.items():
        assert image == images[active], f"the metadata of {node_id} is not that of {active}"


def wait_until_metadata_replicated(cluster: Cluster, active: int) -> int:
    """Wait until every node has the metadata up to the current high watermark, and return that offset.

    `active` is the active controller, which reports the high watermark.
    """
    committed: int = cluster.quorum(active)["HighWatermark"]

    def have_all() -> bool:
        # Another voter may become leader meanwhile. It then has all committed records.
        found = cluster.quorum(cluster.active_controller())
        ends = [each["LogEndOffset"] for each in (*found["CurrentVoters"], *found["Observers"])]
        return len(ends) == len(cluster.nodes) and min(ends) >= committed

    wait_until(have_all, f"not everybody has the metadata up to {committed}")
    return committed


def metadata_home(cluster: Cluster, node_id: int) -> Path:
    return cluster.nodes[node_id].log_dir / "__cluster_metadata-0"


def metadata_batches(cluster: Cluster, node_id: int) -> dict[int, bytes]:
    """Return the batches of a node's metadata log, by last offset."""
    found = {}
    for path in sorted(metadata_home(cluster, node_id).glob("*.log")):
        log, at = path.read_bytes(), 0
        while at + BATCH_HEAD.size <= len(log):
            base_offset, length, last_delta = BATCH_HEAD.unpack_from(log, at)
            batch = log[at : at + 12 + length]
            if length <= 0 or len(batch) < 12 + length:
                break
            found[base_offset + last_delta] = batch
            at += len(batch)
    return found


def voters(cluster: Cluster) -> list[int]:
    found = cluster.quorum(cluster.active_controller())["CurrentVoters"]
    return sorted(each["ReplicaId"] for each in found)


def voter_directory_ids(cluster: Cluster) -> list[str]:
    """Return the directory ids of the voters, in the same format as `directory_id`."""
    found = cluster.quorum(cluster.active_controller())["CurrentVoters"]
    return [base64.urlsafe_b64encode(each["ReplicaDirectoryId"]).decode().rstrip("=") for each in found]


def add_voter(cluster: Cluster, node_id: int) -> None:
    """Add a voter with Kafka's tool. The tool reads the properties of the node, which must be running."""
    progress = [f"node {node_id} does not become a voter"]

    def is_added() -> bool:
        # The controller rejects a new voter that has not caught up yet.
        properties = str(cluster.nodes[node_id].properties_path)
        outcome = run(
            QUORUM,
            *("--bootstrap-server", cluster.bootstrap, "--command-config", properties, "add-controller"),
        )
        progress[1:] = [outcome.stdout + outcome.stderr]
        # A request that timed out may have added the voter nevertheless.
        return f"Added controller {node_id} " in progress[1] or node_id in voters(cluster)

    wait_until(is_added, progress)
    wait_until(lambda: node_id in voters(cluster), f"node {node_id} is no voter")


def directory_id(cluster: Cluster, node_id: int) -> str:
    lines = (cluster.nodes[node_id].log_dir / "meta.properties").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("directory.id="))


def remove_voter(cluster: Cluster, node_id: int, directory: str) -> None:
    """Remove the voter with this node id and directory id with Kafka's tool."""
    progress = [f"node {node_id} still votes"]

    def is_removed() -> bool:
        # A leader that removes itself may resign before it sends the response.
        with a_file("request.timeout.ms=20000\n") as config:
            outcome = run(
                QUORUM,
                *("--bootstrap-server", cluster.bootstrap, "--command-config", config, "remove-controller"),
                *("--controller-id", str(node_id), "--controller-directory-id", directory),
            )
        progress.append(outcome.stdout + outcome.stderr)
        return node_id not in voters(cluster)

    wait_until(is_removed, progress)
