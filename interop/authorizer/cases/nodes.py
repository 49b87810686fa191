"""The requests between nodes, on the controller's listener, and requests that no client may send."""

from __future__ import annotations

from interop.authorizer.case import Case, add
from interop.authorizer.cases.records import NO_TOPIC
from interop.authorizer.rights import cluster, topic
from interop.scenarios.raw_envelope import LOCAL, principal
from interop.wire import Fields, encode_request, versions_of

CONTROLLER = ("controller",)
OTHER = "another-cluster"
OTHER_HOST = bytes((10, 1, 2, 3))
FROM_NODES = (cluster("CLUSTER_ACTION"),)


CREATED = {"Name": "new", "NumPartitions": 1, "ReplicationFactor": 1}
CREATE_TOPICS: Fields = {"Topics": [CREATED], "timeoutMs": 5_000, "validateOnly": True}
TOKEN_REQUESTS: dict[str, Fields] = {
    "CreateDelegationToken": {"Renewers": [], "MaxLifetimeMs": 0},
    "RenewDelegationToken": {"Hmac": b"nothing", "RenewPeriodMs": -1},
    "ExpireDelegationToken": {"Hmac": b"nothing", "ExpiryTimePeriodMs": -1},
}


def envelope(
    name: str,
    api: str = "CreateTopics",
    inner: Fields = CREATE_TOPICS,
    *,
    host: bytes = LOCAL,
    by_token: bool = False,
) -> Fields:
    """Return an Envelope with the request of a principal, which may have authenticated with a token."""
    return {
        "RequestData": encode_request(api, versions_of(api)[-1], inner),
        "RequestPrincipal": principal("User", name, by_token=by_token),
        "ClientHostAddress": host,
    }


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
        {
            **{name: envelope(name) for name in ("alice", "bob", "admin")},
            "alice by token": envelope("alice", by_token=True),
            "alice at another host": envelope("alice", host=OTHER_HOST),
            "alice at an IPv6 address": envelope("alice", host=bytes(15) + b"\1"),
            **{
                f"{api} of {name} by token": envelope(name, api, inner, by_token=True)
                for api, inner in TOKEN_REQUESTS.items()
                for name in ("alice", "admin")
            },
        },
        (*FROM_NODES, topic("CREATE", "new"), cluster("CREATE")),
        on=CONTROLLER,
        more={
            f"inner request at {host}": (*FROM_NODES, topic("CREATE", "new")._replace(host=host))
            for host in ("127.0.0.1", "10.1.2.3", "0:0:0:0:0:0:0:1", "::1")
        },
    ),
)
