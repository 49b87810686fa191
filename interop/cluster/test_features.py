"""Feature upgrades and downgrades of a running cluster, with brokers that do not support a feature level."""

from __future__ import annotations

import pytest

from interop.cluster.load import ConfluentReader, ConfluentWriter, Load, PythonWriter
from interop.cluster.nodes import CLUSTER_KINDS, FEATURES, KWIRE_JOINS_KAFKA, Cluster, wait_until
from interop.tools import TOOLS, run

COMMAND = f"{TOOLS}.FeatureCommand"
PARTITIONS = 3
LATEST = "4.3-IV0"
WAY = ("4.1-IV1", "4.0-IV3", "4.2-IV1", "4.0-IV3", LATEST)
"""Successive metadata versions: the first upgrades are reverted, the last one is final."""


def features(cluster: Cluster, *arguments: str) -> str:
    output = run(COMMAND, "--bootstrap-server", cluster.bootstrap, *arguments)
    return output.stdout + output.stderr


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_metadata_version_upgrades_and_downgrades_under_load(cluster_kind: str) -> None:
    patient = {"broker.session.timeout.ms": "30000"}
    with Cluster(CLUSTER_KINDS[cluster_kind], patient).start(
        format_arguments=("--release-version", "4.0")
    ) as cluster:
        cluster.make_topic("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        with Load(cluster.bootstrap, "t", PARTITIONS) as load:
            load.start(ConfluentReader, ConfluentWriter, PythonWriter)
            load.wait_until_all_write()
            for release in WAY:
                kind = "downgrade" if release == "4.0-IV3" else "upgrade"
                output = features(cluster, kind, "--metadata", release)
                assert f"metadata.version was {kind}d to" in output, output
                wait_until(
                    lambda release=release: (
                        f"FinalizedVersionLevel: {release}"  # type: ignore[misc]
                        in features(cluster, "describe")
                    ),
                    f"the release is never {release}",
                )
                load.wait_until_all_write()
            assert "downgrade" in features(cluster, "downgrade", "--metadata", "4.0-IV3")
            for feature in ("eligible.leader.replicas.version=1", "transaction.version=1"):
                kind = "downgrade" if feature.startswith("transaction") else "upgrade"
                output = features(cluster, kind, "--feature", feature)
                assert f"was {kind}d to" in output, output
                load.wait_until_all_write()
            cluster.nodes[3].stop()
            cluster.wait_for_another_leader("t", 2, than=3)
            cluster.start_node(3)
            cluster.wait_until_in_sync("t", PARTITIONS)
            load.stop()
            load.check()
        cluster.wait_until_replicas_equal("t", PARTITIONS)
        cluster.check_logs()


@pytest.mark.parametrize(
    "cluster_kind", [cluster_kind for cluster_kind in CLUSTER_KINDS if "kwire" in cluster_kind]
)
def test_unsupported_feature_upgrade_is_rejected(cluster_kind: str) -> None:
    with Cluster(CLUSTER_KINDS[cluster_kind]).start() as cluster:
        for feature in ("share.version", "streams.version"):
            output = features(cluster, "upgrade", "--feature", f"{feature}=1")
            assert "does not support this feature." in output, output
        assert "FinalizedVersionLevel: 1" not in [
            line for line in features(cluster, "describe").splitlines() if line.startswith("Feature: s")
        ]


def test_broker_registers_once_unsupported_features_are_downgraded() -> None:
    with Cluster(KWIRE_JOINS_KAFKA).start(without=[3], format_arguments=()) as cluster:
        node = cluster.nodes[3]
        node.start(wait=False)
        advice = "run kafka-features downgrade --feature share.version=0 --feature streams.version=0"
        wait_until(lambda: advice in node.log_text(), "the node does not log the advice")
        output = features(cluster, "downgrade", *FEATURES)
        assert output.count("was downgraded to 0") == 2, output
        node.wait_until_serving()
        cluster.wait_until_unfenced(3)
        assert node.log_text().count(advice) == 1
