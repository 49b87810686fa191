"""The cluster: brokers, log directories, quotas, features, users, reassignments and the quorum."""

from __future__ import annotations

from interop.authorizer.case import Case, add
from interop.authorizer.cases.records import TOPICS
from interop.authorizer.rights import cluster, topic
from interop.wire import Fields

BOTH = ("broker", "controller")
QUOTA: Fields = {
    "Entity": [{"EntityType": "user", "EntityName": "alice"}],
    "Ops": [{"Key": "producer_byte_rate", "Value": 1e9, "Remove": False}],
}


def partitions_of(field: str, **more: object) -> list[Fields]:
    return [{"Name": name, field: [0], **more} for name in TOPICS]


add(
    Case(
        "DescribeCluster",
        {
            f"{kind}{', operations' if wants else ''}": {
                "IncludeClusterAuthorizedOperations": wants,
                "EndpointType": endpoint,
            }
            for kind, endpoint in (("brokers", 1), ("controllers", 2))
            for wants in (False, True)
        },
        (cluster("DESCRIBE"), cluster("ALTER")),
        versions=(0, 1, 2),
        on=BOTH,
        more={
            "some operations": (cluster("ALTER"), cluster("IDEMPOTENT_WRITE"), cluster("CREATE").denied()),
            "all but some": (cluster("ALL"), cluster("CREATE").denied()),
        },
    ),
    Case(
        "AlterReplicaLogDirs",
        {
            "nowhere": {
                "Dirs": [
                    {"Path": "/nowhere", "Topics": [{"Name": name, "Partitions": [0]} for name in TOPICS]}
                ]
            }
        },
        (cluster("ALTER"),),
    ),
    Case(
        "DescribeLogDirs",
        {
            "some": {"Topics": [{"Topic": name, "Partitions": [0]} for name in TOPICS]},
            "none": {"Topics": []},
        },
        (cluster("DESCRIBE"),),
    ),
    Case(
        "ElectLeaders",
        {
            "preferred": {
                "TopicPartitions": [{"Topic": name, "Partitions": [0]} for name in TOPICS],
                "TimeoutMs": 5_000,
            },
            "all": {"TopicPartitions": None, "TimeoutMs": 5_000},
            "none": {"TopicPartitions": [], "TimeoutMs": 5_000},
            "unknown kind": {"ElectionType": 7, "TopicPartitions": None, "TimeoutMs": 5_000},
        },
        (cluster("ALTER"),),
        on=BOTH,
        only={"unknown kind": (1, 2)},
    ),
    Case(
        "AlterPartitionReassignments",
        {
            "cancel": {
                "Topics": [
                    {"Name": name, "Partitions": [{"PartitionIndex": 0, "Replicas": None}]} for name in TOPICS
                ],
                "TimeoutMs": 5_000,
            }
        },
        (cluster("ALTER"),),
        on=BOTH,
    ),
    Case(
        "ListPartitionReassignments",
        {
            "all": {"Topics": None, "TimeoutMs": 5_000},
            "some": {"Topics": partitions_of("PartitionIndexes"), "TimeoutMs": 5_000},
        },
        (cluster("DESCRIBE"),),
        on=BOTH,
    ),
    Case(
        "DescribeClientQuotas",
        {
            "all": {"Components": []},
            "odd": {"Components": [{"EntityType": "odd", "MatchType": 0, "Match": "a"}]},
        },
        (cluster("DESCRIBE_CONFIGS"),),
    ),
    Case(
        "AlterClientQuotas",
        {
            "valid": {"Entries": [QUOTA], "ValidateOnly": True},
            "odd": {
                "Entries": [{**QUOTA, "Entity": [{"EntityType": "odd", "EntityName": "a"}]}, QUOTA],
                "ValidateOnly": True,
            },
            "none": {"Entries": [], "ValidateOnly": True},
        },
        (cluster("ALTER_CONFIGS"),),
        on=BOTH,
    ),
    Case(
        "DescribeUserScramCredentials",
        {"all": {"Users": []}, "some": {"Users": [{"Name": "alice"}, {"Name": "alice"}, {"Name": ""}]}},
        (cluster("DESCRIBE"),),
    ),
    Case(
        "AlterUserScramCredentials",
        {
            "delete": {
                "Deletions": [{"Name": "unknown", "Mechanism": 1}, {"Name": "", "Mechanism": 1}],
                "Upsertions": [],
            }
        },
        (cluster("ALTER"),),
        on=BOTH,
    ),
    Case(
        "DescribeQuorum",
        {
            "metadata": {
                "Topics": [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]
            },
            "other": {"Topics": [{"TopicName": "orders", "Partitions": [{"PartitionIndex": 0}]}]},
        },
        (cluster("DESCRIBE"),),
        on=BOTH,
    ),
    Case(
        "UpdateFeatures",
        {
            "odd": {
                "FeatureUpdates": [{"Feature": "odd", "MaxVersionLevel": 1}],
                "timeoutMs": 5_000,
                "ValidateOnly": True,
            }
        },
        (cluster("ALTER"),),
        on=BOTH,
    ),
    Case("UnregisterBroker", {"missing": {"BrokerId": 77}}, (cluster("ALTER"),), on=BOTH),
    Case(
        "ListConfigResources",
        {"topics": {"ResourceTypes": [2]}, "odd": {"ResourceTypes": [99]}, "all": {"ResourceTypes": []}},
        (cluster("DESCRIBE_CONFIGS"),),
    ),
    Case(
        "AddRaftVoter",
        {
            "stranger": {
                "ClusterId": None,
                "TimeoutMs": 1_000,
                "VoterId": 9,
                "VoterDirectoryId": bytes(15) + b"\x09",
                "Listeners": [],
            }
        },
        (cluster("ALTER"),),
        on=BOTH,
    ),
    Case(
        "RemoveRaftVoter",
        {"stranger": {"ClusterId": None, "VoterId": 9, "VoterDirectoryId": bytes(15) + b"\x09"}},
        (cluster("ALTER"),),
        on=BOTH,
    ),
    Case(
        "ApiVersions",
        {"code": {"ClientSoftwareName": "-", "ClientSoftwareVersion": "1"}},
        (topic("READ"),),
        on=BOTH,
        versions=(3, 4),
    ),
)
