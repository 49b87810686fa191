"""The supported APIs: their versions, and whether the broker or the controller handles them.

ApiVersions responses are generated from `SUPPORTED_APIS`. As in Apache Kafka, a request for another API or
version closes the connection, unless it is ApiVersions. The roles follow Kafka's message definitions
(`listeners`), KafkaApis, ControllerApis and KIP-590. The handler functions are in `dispatch.handlers`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from kwire.wire.api_keys import ApiKey
from kwire.wire.named_tuple import NamedTuple


class ListenerRole(Enum):
    """The role in which a node serves a listener."""

    BROKER = "broker"
    CONTROLLER = "controller"


class Handlers(NamedTuple):
    """The listener roles that accept an API, and whether broker listeners forward it to the controller."""

    roles: frozenset[ListenerRole]
    is_forwarded: bool = False


class HandledBy(Enum):
    """The roles in which a node handles an API."""

    BROKER = Handlers(frozenset({ListenerRole.BROKER}))
    EACH_NODE = Handlers(frozenset({ListenerRole.BROKER, ListenerRole.CONTROLLER}))
    """Broker and controller listeners: each node handles the API itself."""
    CONTROLLER = Handlers(frozenset({ListenerRole.CONTROLLER}), is_forwarded=True)
    """The controller handles the API. Brokers forward it to the active controller."""
    CONTROLLER_ONLY = Handlers(frozenset({ListenerRole.CONTROLLER}))
    """The controller handles the API for other nodes. Only controller listeners accept it."""


class SupportedApi(NamedTuple):
    """A supported API: its advertised versions, and the roles that handle it."""

    min_version: int
    max_version: int
    handled_by: HandledBy = HandledBy.BROKER
    rejected_below: int = 0
    """The lowest accepted version. Lower versions are advertised but rejected."""
    needs_client_metrics: bool = False
    """Whether the API is advertised only while clients have metrics to push: see docs/decisions/0023."""

    @property
    def min_accepted(self) -> int:
        """The lowest version that a node handles. It may be higher than the advertised one."""
        return max(self.min_version, self.rejected_below)


SUPPORTED_APIS: Final[dict[int, SupportedApi]] = {
    # KAFKA-18659: librdkafka before 2.8 compresses only if Produce v0 is advertised.
    ApiKey.PRODUCE: SupportedApi(0, 13, rejected_below=3),
    ApiKey.FETCH: SupportedApi(4, 18, HandledBy.EACH_NODE),
    ApiKey.LIST_OFFSETS: SupportedApi(1, 11),
    ApiKey.METADATA: SupportedApi(0, 13),
    ApiKey.OFFSET_COMMIT: SupportedApi(2, 10),
    ApiKey.OFFSET_FETCH: SupportedApi(1, 10),
    ApiKey.FIND_COORDINATOR: SupportedApi(0, 6),
    ApiKey.JOIN_GROUP: SupportedApi(0, 9),
    ApiKey.HEARTBEAT: SupportedApi(0, 4),
    ApiKey.LEAVE_GROUP: SupportedApi(0, 5),
    ApiKey.SYNC_GROUP: SupportedApi(0, 5),
    ApiKey.DESCRIBE_GROUPS: SupportedApi(0, 6),
    ApiKey.LIST_GROUPS: SupportedApi(0, 5),
    ApiKey.SASL_HANDSHAKE: SupportedApi(0, 1, HandledBy.EACH_NODE),
    ApiKey.API_VERSIONS: SupportedApi(0, 4, HandledBy.EACH_NODE),
    ApiKey.CREATE_TOPICS: SupportedApi(2, 7, HandledBy.CONTROLLER),
    ApiKey.DELETE_TOPICS: SupportedApi(1, 6, HandledBy.CONTROLLER),
    ApiKey.DELETE_RECORDS: SupportedApi(0, 2),
    ApiKey.INIT_PRODUCER_ID: SupportedApi(0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: SupportedApi(2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: SupportedApi(0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: SupportedApi(0, 4),
    ApiKey.END_TXN: SupportedApi(0, 5),
    ApiKey.WRITE_TXN_MARKERS: SupportedApi(1, 2),
    ApiKey.TXN_OFFSET_COMMIT: SupportedApi(0, 5),
    ApiKey.DESCRIBE_ACLS: SupportedApi(1, 3, HandledBy.EACH_NODE),
    ApiKey.CREATE_ACLS: SupportedApi(1, 3, HandledBy.CONTROLLER),
    ApiKey.DELETE_ACLS: SupportedApi(1, 3, HandledBy.CONTROLLER),
    ApiKey.DESCRIBE_CONFIGS: SupportedApi(1, 4, HandledBy.EACH_NODE),
    ApiKey.ALTER_CONFIGS: SupportedApi(0, 2, HandledBy.CONTROLLER),
    ApiKey.ALTER_REPLICA_LOG_DIRS: SupportedApi(1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: SupportedApi(1, 5),
    ApiKey.SASL_AUTHENTICATE: SupportedApi(0, 2, HandledBy.EACH_NODE),
    ApiKey.CREATE_PARTITIONS: SupportedApi(0, 3, HandledBy.CONTROLLER),
    ApiKey.CREATE_DELEGATION_TOKEN: SupportedApi(1, 3, HandledBy.CONTROLLER),
    ApiKey.RENEW_DELEGATION_TOKEN: SupportedApi(1, 2, HandledBy.CONTROLLER),
    ApiKey.EXPIRE_DELEGATION_TOKEN: SupportedApi(1, 2, HandledBy.CONTROLLER),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: SupportedApi(1, 3, HandledBy.EACH_NODE),
    ApiKey.DELETE_GROUPS: SupportedApi(0, 2),
    ApiKey.ELECT_LEADERS: SupportedApi(0, 2, HandledBy.CONTROLLER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: SupportedApi(0, 1, HandledBy.CONTROLLER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: SupportedApi(0, 1, HandledBy.CONTROLLER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: SupportedApi(0, 0, HandledBy.CONTROLLER),
    ApiKey.OFFSET_DELETE: SupportedApi(0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: SupportedApi(0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: SupportedApi(0, 0, HandledBy.EACH_NODE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: SupportedApi(0, 0, HandledBy.CONTROLLER),
    ApiKey.VOTE: SupportedApi(0, 2, HandledBy.CONTROLLER_ONLY),
    ApiKey.BEGIN_QUORUM_EPOCH: SupportedApi(0, 1, HandledBy.CONTROLLER_ONLY),
    ApiKey.END_QUORUM_EPOCH: SupportedApi(0, 1, HandledBy.CONTROLLER_ONLY),
    ApiKey.DESCRIBE_QUORUM: SupportedApi(0, 2, HandledBy.CONTROLLER),
    ApiKey.ALTER_PARTITION: SupportedApi(2, 3, HandledBy.CONTROLLER_ONLY),
    ApiKey.UPDATE_FEATURES: SupportedApi(0, 2, HandledBy.CONTROLLER),
    ApiKey.ENVELOPE: SupportedApi(0, 0, HandledBy.CONTROLLER_ONLY),
    ApiKey.DESCRIBE_CLUSTER: SupportedApi(0, 2, HandledBy.EACH_NODE),
    ApiKey.FETCH_SNAPSHOT: SupportedApi(0, 1, HandledBy.CONTROLLER_ONLY),
    ApiKey.DESCRIBE_PRODUCERS: SupportedApi(0, 0),
    ApiKey.BROKER_REGISTRATION: SupportedApi(0, 4, HandledBy.CONTROLLER_ONLY),
    ApiKey.BROKER_HEARTBEAT: SupportedApi(0, 2, HandledBy.CONTROLLER_ONLY),
    ApiKey.UNREGISTER_BROKER: SupportedApi(0, 0, HandledBy.CONTROLLER),
    ApiKey.DESCRIBE_TRANSACTIONS: SupportedApi(0, 0),
    ApiKey.LIST_TRANSACTIONS: SupportedApi(0, 2),
    ApiKey.ALLOCATE_PRODUCER_IDS: SupportedApi(0, 0, HandledBy.CONTROLLER_ONLY),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: SupportedApi(0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: SupportedApi(0, 1),
    ApiKey.CONTROLLER_REGISTRATION: SupportedApi(0, 0, HandledBy.CONTROLLER_ONLY),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: SupportedApi(0, 0, needs_client_metrics=True),
    ApiKey.PUSH_TELEMETRY: SupportedApi(0, 0, needs_client_metrics=True),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: SupportedApi(0, 0, HandledBy.CONTROLLER_ONLY),
    ApiKey.LIST_CONFIG_RESOURCES: SupportedApi(0, 1),
    ApiKey.ADD_RAFT_VOTER: SupportedApi(0, 1, HandledBy.CONTROLLER),
    ApiKey.REMOVE_RAFT_VOTER: SupportedApi(0, 0, HandledBy.CONTROLLER),
    ApiKey.UPDATE_RAFT_VOTER: SupportedApi(0, 0, HandledBy.CONTROLLER_ONLY),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: SupportedApi(0, 0),
}


def apis_for(role: ListenerRole) -> dict[int, SupportedApi]:
    """Return the APIs that listeners of this role accept, including those that brokers forward."""
    return {
        key: one
        for key, one in SUPPORTED_APIS.items()
        if role in one.handled_by.value.roles
        or (one.handled_by.value.is_forwarded and role is ListenerRole.BROKER)
    }
