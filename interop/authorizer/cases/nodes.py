"""The requests between nodes, on the controller's listener, and requests that no client may send."""

from __future__ import annotations

from interop.authorizer.case import Case, add
from interop.authorizer.cases.records import NO_TOPIC
from interop.authorizer.rights import cluster, topic
from interop.scenarios.raw_envelope import LOCAL, principal
from interop.wire import Fields, encode_request

CONTROLLER = ("controller",)
OTHER = "another-cluster"
FROM_NODES = (cluster("CLUSTER_ACTION"),)


def envelope(name: str) -> Fields:
    created = {"Name": "new", "NumPartitions": 1, "ReplicationFactor": 1}
    inner = encode_request("CreateTopics", 7, {"Topics": [created], "timeoutMs": 5_000, "validateOnly": True})
    return {"RequestData": inner, "RequestPrincipal": principal("User", name), "ClientHostAddress": LOCAL}


def metadata_partition(**fields: object) -> list[Fields]:
    return [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0, **fields}]}]


add(
    Case(
        "Vote",
        {"other cluster": {"ClusterId": OTHER, "Topics": metadata_partition(ReplicaId=9)}},
        FROM_NODES,
        on=CONTROLLER,
    ),
    Case(
        "BeginQuorumEpoch",
        {"other cluster": {"ClusterId": OTHER, "Topics": metadata_partition(LeaderId=9)}},
        FROM_NODES,
        on=CONTROLLER,
    ),
    Case(
        "EndQuorumEpoch",
        {"other cluster": {"ClusterId": OTHER, "Topics": metadata_partition(LeaderId=9)}},
        FROM_NODES,
        on=CONTROLLER,
    ),
    Case(
        "Fetch",
        {
            "other cluster": {
                "ClusterId": OTHER,
                "Topics": [
                    {
                        "Topic": "__cluster_metadata",
                        "TopicId": bytes(15) + b"\1",
                        "Partitions": [{"Partition": 0}],
                    }
                ],
            }
        },
        FROM_NODES,
        versions=(12, 13, 17),
        on=CONTROLLER,
    ),
    Case(
        "FetchSnapshot",
        {
            "other cluster": {
                "ClusterId": OTHER,
                "Topics": [
                    {
                        "Name": "__cluster_metadata",
                        "Partitions": [{"Partition": 0, "SnapshotId": {"EndOffset": 1, "Epoch": 1}}],
                    }
                ],
            }
        },
        FROM_NODES,
        on=CONTROLLER,
    ),
    Case(
        "AlterPartition",
        {"stale": {"BrokerId": 1, "BrokerEpoch": 7, "Topics": [{"TopicId": NO_TOPIC, "Partitions": []}]}},
        FROM_NODES,
        on=CONTROLLER,
    ),
    Case(
        "BrokerRegistration",
        {
            "other cluster": {
                "BrokerId": 9,
                "ClusterId": OTHER,
                "IncarnationId": bytes(15) + b"\x09",
                "Listeners": [],
                "Features": [],
                "Rack": None,
                "LogDirs": [bytes(15) + b"\x09"],
            }
        },
        FROM_NODES,
        on=CONTROLLER,
    ),
    Case("BrokerHeartbeat", {"stale": {"BrokerId": 1, "BrokerEpoch": 7}}, FROM_NODES, on=CONTROLLER),
    Case("AllocateProducerIds", {"stale": {"BrokerId": 1, "BrokerEpoch": 7}}, FROM_NODES, on=CONTROLLER),
    Case(
        "ControllerRegistration",
        {
            "stranger": {
                "ControllerId": 77,
                "IncarnationId": bytes(15) + b"\x09",
                "Listeners": [],
                "Features": [],
            }
        },
        FROM_NODES,
        on=CONTROLLER,
    ),
    Case(
        "AssignReplicasToDirs",
        {"stale": {"BrokerId": 1, "BrokerEpoch": 7, "Directories": []}},
        FROM_NODES,
        on=CONTROLLER,
    ),
    Case(
        "UpdateRaftVoter",
        {
            "other cluster": {
                "ClusterId": OTHER,
                "VoterId": 9,
                "VoterDirectoryId": bytes(15) + b"\x09",
                "Listeners": [],
                "KRaftVersionFeature": {"MinSupportedVersion": 0, "MaxSupportedVersion": 1},
            }
        },
        FROM_NODES,
        on=CONTROLLER,
    ),
    Case(
        "Envelope",
        {name: envelope(name) for name in ("alice", "bob", "admin")},
        (*FROM_NODES, topic("CREATE", "new"), cluster("CREATE")),
        on=CONTROLLER,
    ),
)
