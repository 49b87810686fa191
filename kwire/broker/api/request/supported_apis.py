"""The supported APIs: their versions, and whether the broker or the controller handles them.

ApiVersions responses are generated from `SUPPORTED_APIS`. As in Apache Kafka, a request for another API or
version closes the connection, unless it is ApiVersions. The roles follow Kafka's message definitions
(`listeners`), KafkaApis, ControllerApis and KIP-590. The handler functions are in `dispatch.handlers`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from kwire.broker.api.request.needs import ByHandler, ItemNeed, Need, Needs, References
from kwire.broker.security.authorizer import Operation, ResourceType
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
    needs: Needs
    """The operations that the API needs. There is no default: each API declares them, or why it cannot."""
    handled_by: HandledBy = HandledBy.BROKER
    rejected_below: int = 0
    """The lowest accepted version. Lower versions are advertised but rejected."""
    needs_client_metrics: bool = False
    """Whether the API is advertised only while clients have metrics to push: see docs/decisions/0023."""

    @property
    def accepted_versions(self) -> range:
        """The versions that a node handles. The lowest one may be higher than the advertised one."""
        return range(max(self.min_version, self.rejected_below), self.max_version + 1)


CLUSTER_ACTION: Final = Operation.CLUSTER_ACTION
READ, WRITE, CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
DELETE, ALTER, DESCRIBE = Operation.DELETE, Operation.ALTER, Operation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

ITEMS, PARTITIONS = References.ITEMS, References.PARTITIONS

READ_GROUP: Final = Need(READ, GROUP, "group_id")
WRITE_TRANSACTION: Final = Need(WRITE, TRANSACTIONAL_ID, "transactional_id")
FROM_NODES: Final = (Need(CLUSTER_ACTION),)
EACH_NODE, CONTROLLER = HandledBy.EACH_NODE, HandledBy.CONTROLLER
CONTROLLER_ONLY: Final = HandledBy.CONTROLLER_ONLY
CODES_FIRST: Final = ByHandler("unknown codes close the connection before")
BEFORE_AUTHENTICATION: Final = ByHandler("clients call it before they have authenticated")

SUPPORTED_APIS: Final[dict[int, SupportedApi]] = {
    # KAFKA-18659: librdkafka before 2.8 compresses only if Produce v0 is advertised.
    ApiKey.PRODUCE: SupportedApi(
        0,
        13,
        (ItemNeed(WRITE, TOPIC, None, PARTITIONS), ByHandler("transactional batches need more")),
        rejected_below=3,
    ),
    ApiKey.FETCH: SupportedApi(4, 18, (ByHandler("the fetch session has the partitions"),), EACH_NODE),
    ApiKey.LIST_OFFSETS: SupportedApi(1, 11, (ItemNeed(DESCRIBE, TOPIC, None, ITEMS),)),
    ApiKey.METADATA: SupportedApi(0, 13, (ByHandler("all topics, or topics to be created"),)),
    ApiKey.OFFSET_COMMIT: SupportedApi(2, 10, (READ_GROUP, ItemNeed(READ, TOPIC, None, ITEMS))),
    ApiKey.OFFSET_FETCH: SupportedApi(1, 10, (ByHandler("topics are listed per group"),)),
    ApiKey.FIND_COORDINATOR: SupportedApi(0, 6, (ByHandler("the key type is the resource type"),)),
    ApiKey.JOIN_GROUP: SupportedApi(0, 9, (READ_GROUP,)),
    ApiKey.HEARTBEAT: SupportedApi(0, 4, (READ_GROUP,)),
    ApiKey.LEAVE_GROUP: SupportedApi(0, 5, (READ_GROUP,)),
    ApiKey.SYNC_GROUP: SupportedApi(0, 5, (ByHandler("the protocol is checked first"),)),
    ApiKey.DESCRIBE_GROUPS: SupportedApi(0, 6, (ItemNeed(DESCRIBE, GROUP),)),
    ApiKey.LIST_GROUPS: SupportedApi(0, 5, (ByHandler("omits denied groups"),)),
    ApiKey.SASL_HANDSHAKE: SupportedApi(0, 1, (BEFORE_AUTHENTICATION,), EACH_NODE),
    ApiKey.API_VERSIONS: SupportedApi(0, 4, (BEFORE_AUTHENTICATION,), EACH_NODE),
    ApiKey.CREATE_TOPICS: SupportedApi(
        2, 7, (ItemNeed(CREATE, TOPIC, CREATE), ByHandler("configurations need more")), CONTROLLER
    ),
    ApiKey.DELETE_TOPICS: SupportedApi(1, 6, (ItemNeed(DELETE, TOPIC, DELETE),), CONTROLLER),
    ApiKey.DELETE_RECORDS: SupportedApi(0, 2, (ItemNeed(DELETE, TOPIC, None, ITEMS),)),
    ApiKey.INIT_PRODUCER_ID: SupportedApi(0, 5, (ByHandler("it depends on the transactional id"),)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: SupportedApi(2, 4, (ItemNeed(DESCRIBE, TOPIC, CLUSTER_ACTION, ITEMS),)),
    ApiKey.ADD_PARTITIONS_TO_TXN: SupportedApi(0, 5, (ByHandler("one denied topic fails all topics"),)),
    ApiKey.ADD_OFFSETS_TO_TXN: SupportedApi(0, 4, (WRITE_TRANSACTION, READ_GROUP)),
    ApiKey.END_TXN: SupportedApi(0, 5, (WRITE_TRANSACTION,)),
    ApiKey.WRITE_TXN_MARKERS: SupportedApi(1, 2, (Need(CLUSTER_ACTION, or_on_cluster=ALTER),)),
    ApiKey.TXN_OFFSET_COMMIT: SupportedApi(
        0, 5, (WRITE_TRANSACTION, READ_GROUP, ItemNeed(READ, TOPIC, None, ITEMS))
    ),
    ApiKey.DESCRIBE_ACLS: SupportedApi(1, 3, (CODES_FIRST,), EACH_NODE),
    ApiKey.CREATE_ACLS: SupportedApi(1, 3, (CODES_FIRST,), CONTROLLER),
    ApiKey.DELETE_ACLS: SupportedApi(1, 3, (CODES_FIRST,), CONTROLLER),
    ApiKey.DESCRIBE_CONFIGS: SupportedApi(1, 4, (ItemNeed(DESCRIBE_CONFIGS, None),), EACH_NODE),
    ApiKey.ALTER_CONFIGS: SupportedApi(0, 2, (ItemNeed(ALTER_CONFIGS, None),), CONTROLLER),
    ApiKey.ALTER_REPLICA_LOG_DIRS: SupportedApi(1, 2, (Need(ALTER),)),
    ApiKey.DESCRIBE_LOG_DIRS: SupportedApi(1, 5, (Need(DESCRIBE),)),
    ApiKey.SASL_AUTHENTICATE: SupportedApi(0, 2, (BEFORE_AUTHENTICATION,), EACH_NODE),
    ApiKey.CREATE_PARTITIONS: SupportedApi(0, 3, (ItemNeed(ALTER, TOPIC),), CONTROLLER),
    ApiKey.CREATE_DELEGATION_TOKEN: SupportedApi(1, 3, (ByHandler("it depends on the owner"),), CONTROLLER),
    ApiKey.RENEW_DELEGATION_TOKEN: SupportedApi(1, 2, (ByHandler("owner and renewers"),), CONTROLLER),
    ApiKey.EXPIRE_DELEGATION_TOKEN: SupportedApi(1, 2, (ByHandler("owner and renewers"),), CONTROLLER),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: SupportedApi(1, 3, (ByHandler("omits denied tokens"),), EACH_NODE),
    ApiKey.DELETE_GROUPS: SupportedApi(0, 2, (ItemNeed(DELETE, GROUP, None, References.NAMES),)),
    ApiKey.ELECT_LEADERS: SupportedApi(0, 2, (Need(ALTER),), CONTROLLER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: SupportedApi(0, 1, (ItemNeed(ALTER_CONFIGS, None),), CONTROLLER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: SupportedApi(0, 1, (Need(ALTER),), CONTROLLER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: SupportedApi(0, 0, (Need(DESCRIBE),), CONTROLLER),
    ApiKey.OFFSET_DELETE: SupportedApi(
        0, 0, (Need(DELETE, GROUP, "group_id"), ItemNeed(READ, TOPIC, None, ITEMS))
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: SupportedApi(0, 1, (Need(DESCRIBE_CONFIGS),)),
    ApiKey.ALTER_CLIENT_QUOTAS: SupportedApi(0, 1, (Need(ALTER_CONFIGS),), CONTROLLER),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: SupportedApi(0, 0, (Need(DESCRIBE),), EACH_NODE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: SupportedApi(0, 0, (Need(ALTER),), CONTROLLER),
    ApiKey.VOTE: SupportedApi(0, 2, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.BEGIN_QUORUM_EPOCH: SupportedApi(0, 1, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.END_QUORUM_EPOCH: SupportedApi(0, 1, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.DESCRIBE_QUORUM: SupportedApi(0, 2, (Need(DESCRIBE),), CONTROLLER),
    ApiKey.ALTER_PARTITION: SupportedApi(2, 3, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.UPDATE_FEATURES: SupportedApi(0, 2, (Need(ALTER),), CONTROLLER),
    ApiKey.ENVELOPE: SupportedApi(
        0, 0, (*FROM_NODES, ByHandler("without an authorizer, too")), CONTROLLER_ONLY
    ),
    ApiKey.DESCRIBE_CLUSTER: SupportedApi(0, 2, (ByHandler("only on a controller"),), EACH_NODE),
    ApiKey.FETCH_SNAPSHOT: SupportedApi(0, 1, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.DESCRIBE_PRODUCERS: SupportedApi(0, 0, (ItemNeed(READ, TOPIC),)),
    ApiKey.BROKER_REGISTRATION: SupportedApi(0, 4, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.BROKER_HEARTBEAT: SupportedApi(0, 2, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.UNREGISTER_BROKER: SupportedApi(0, 0, (Need(ALTER),), CONTROLLER),
    ApiKey.DESCRIBE_TRANSACTIONS: SupportedApi(
        0, 0, (ItemNeed(DESCRIBE, TRANSACTIONAL_ID), ByHandler("omits denied topics"))
    ),
    ApiKey.LIST_TRANSACTIONS: SupportedApi(0, 2, (ByHandler("omits denied transactional ids"),)),
    ApiKey.ALLOCATE_PRODUCER_IDS: SupportedApi(0, 0, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: SupportedApi(
        0, 1, (READ_GROUP, Need(DESCRIBE, TOPIC, "subscribed_topic_names"))
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: SupportedApi(
        0, 1, (ItemNeed(DESCRIBE, GROUP), ByHandler("denied topics hide a group"))
    ),
    ApiKey.CONTROLLER_REGISTRATION: SupportedApi(0, 0, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: SupportedApi(
        0, 0, (ByHandler("open to all"),), needs_client_metrics=True
    ),
    ApiKey.PUSH_TELEMETRY: SupportedApi(0, 0, (ByHandler("open to all"),), needs_client_metrics=True),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: SupportedApi(0, 0, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.LIST_CONFIG_RESOURCES: SupportedApi(0, 1, (Need(DESCRIBE_CONFIGS),)),
    ApiKey.ADD_RAFT_VOTER: SupportedApi(0, 1, (Need(ALTER),), CONTROLLER),
    ApiKey.REMOVE_RAFT_VOTER: SupportedApi(0, 0, (Need(ALTER),), CONTROLLER),
    ApiKey.UPDATE_RAFT_VOTER: SupportedApi(0, 0, FROM_NODES, CONTROLLER_ONLY),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: SupportedApi(0, 0, (ByHandler("all topics, or those named"),)),
}


def apis_for(role: ListenerRole) -> dict[int, SupportedApi]:
    """Return the APIs that listeners of this role accept, including those that brokers forward."""
    return {
        key: one
        for key, one in SUPPORTED_APIS.items()
        if role in one.handled_by.value.roles
        or (one.handled_by.value.is_forwarded and role is ListenerRole.BROKER)
    }
