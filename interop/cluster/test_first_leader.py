"""The first leader of a new quorum writes the formatted metadata, whichever program formatted its directory.

Apache Kafka 4.4 formats the metadata into the first snapshot of the metadata log (KIP-1170). Older releases
and kwire format it into `bootstrap.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from interop.brokers import Broker, Kwire
from interop.cluster.load import ConfluentReader, ConfluentWriter, PythonWriter
from interop.cluster.metadata_images import bootstrap_values
from interop.cluster.nodes import COMBINED, FEATURES, Cluster, Member, SmallKafka, wait_until
from interop.cluster.quorums import (
    VOTER_KINDS,
    create_topics_through_each_broker,
    metadata_batches,
    under_load,
    voters,
)
from interop.cluster.test_features import features

FORMATTED = [
    ("metadata.version", 30),
    ("eligible.leader.replicas.version", 1),
    ("group.version", 1),
    ("transaction.version", 2),
    ("alice", None),
    ("min.insync.replicas", "2"),
]
"""The features and the user, in the order of every tool. The first leader adds the setting (KIP-966)."""
ALICE = ("--add-scram", "SCRAM-SHA-256=[name=alice,password=secret]")
NEWER = 31
ELECTION = "controller.quorum.election.timeout.ms"
SOON_MS, NEVER_MS = "100", "1000000000"
MIXED = {name: kinds for name, kinds in VOTER_KINDS.items() if len(set(kinds)) > 1}
OTHER: Mapping[type[Broker], type[Broker]] = {Kwire: SmallKafka, SmallKafka: Kwire}


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("voters_in_log", [False, True], ids=["static voters", "voters in the log"])
@pytest.mark.parametrize("formatted_by", ["own tool", "other's tool"])
@pytest.mark.parametrize("kinds", MIXED)
def test_first_leader_writes_the_formatted_metadata(
    kinds: str, formatted_by: str, *, voters_in_log: bool, first: int
) -> None:
    members = tuple(Member(kind, COMBINED) for kind in MIXED[kinds])
    with Cluster(members, voters_in_log=voters_in_log) as cluster:
        for node_id, node in cluster.nodes.items():
            node.properties[ELECTION] = SOON_MS if node_id == first else NEVER_MS
        tools = formatting_tools(members, formatted_by)
        cluster.start(format_arguments=(*FEATURES, *ALICE), tools=tools, first=first)
        assert cluster.active_controller() == first
        check_first_records(cluster)
        for node in cluster.nodes.values():
            del node.properties[ELECTION]
        cluster.kill_and_restart_all()
        cluster.make_topic("t", [[1, 2, 3]])
        with under_load(cluster, clients=[ConfluentReader, ConfluentWriter, PythonWriter]) as load:
            load.wait_until_all_write()
            create_topics_through_each_broker(cluster, "first")
            # The next leader finds the records in the log.
            active = cluster.active_controller()
            cluster.nodes[active].stop()
            cluster.active_controller(than=active)
            cluster.start_node(active)
            create_topics_through_each_broker(cluster, "next")
        check_first_records(cluster)


@pytest.mark.parametrize("standalone", [Kwire, SmallKafka], ids=["kwire", "kafka"])
@pytest.mark.parametrize("formatted_by", ["own tool", "other's tool"])
def test_standalone_voter_writes_the_formatted_metadata(formatted_by: str, standalone: type[Broker]) -> None:
    """The other controllers are formatted with --no-initial-controllers, and fetch the metadata."""
    other = OTHER[standalone]
    members = (Member(standalone, COMBINED), Member(other, COMBINED), Member(other))
    with Cluster(members, voters_in_log=True, first_voters=[1]) as cluster:
        cluster.start(format_arguments=(*FEATURES, *ALICE), tools=formatting_tools(members, formatted_by))
        assert voters(cluster) == [1]
        check_first_records(cluster)
        cluster.make_topic("t", [[1, 2, 3]])
        create_topics_through_each_broker(cluster, "first")
        # No node of kwire supports 4.4-IV0, and no node of Apache Kafka 4.3.
        output = features(cluster, "upgrade", "--feature", f"metadata.version={NEWER}")
        assert "Could not upgrade metadata.version" in output, output
        cluster.wait_until_all_replicas_equal()
        cluster.check_logs(f"Invalid update version {NEWER} for feature metadata.version")


def formatting_tools(members: tuple[Member, ...], formatted_by: str) -> dict[int, type[Broker]]:
    kinds = enumerate((member.kind for member in members), 1)
    return {node_id: kind if formatted_by == "own tool" else OTHER[kind] for node_id, kind in kinds}


def check_first_records(cluster: Cluster) -> None:
    """Check that every node has the formatted records once, and the cluster-wide min.insync.replicas."""

    def are_there() -> bool:
        logs = [b"".join(metadata_batches(cluster, node_id).values()) for node_id in cluster.nodes]
        return all(bootstrap_values(log) == FORMATTED for log in logs)

    wait_until(are_there, "the metadata log does not begin with the formatted records")
