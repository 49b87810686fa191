"""What is served: each API with its versions and its handler.

This is the truth about what is offered: ApiVersions is made from it, and a request outside of it closes its
connection, as Apache Kafka does. Who answers an API is as Kafka has it (`listeners` in its message
definitions, KafkaApis and ControllerApis; KIP-590).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from importlib import import_module
from typing import Any, Final

from kwire.wire.api_keys import ApiKey
from kwire.wire.named_tuple import NamedTuple


class ListenerRole(Enum):
    """What a node is to whom it listens to."""

    BROKER = "broker"
    CONTROLLER = "controller"


class Answers(NamedTuple):
    """Which listeners an API has, and whether that of a broker only passes it on."""

    roles: frozenset[ListenerRole]
    is_forwarded: bool = False


class By(Enum):
    """Who answers an API."""

    BROKER = Answers(frozenset({ListenerRole.BROKER}))
    EACH = Answers(frozenset({ListenerRole.BROKER, ListenerRole.CONTROLLER}))
    """Broker and controller, each of itself."""
    CONTROLLER = Answers(frozenset({ListenerRole.CONTROLLER}), is_forwarded=True)
    """Brokers forward it to the active one."""
    CONTROLLER_ALONE = Answers(frozenset({ListenerRole.CONTROLLER}))
    """It is asked by other nodes, on the controller's own listener."""


class Served(NamedTuple):
    """An API that is offered: in which versions, where its handler is, and who answers it."""

    min_version: int
    max_version: int
    handler: str
    by: By = By.BROKER
    first: str = ""
    """What a broker does with the request before it forwards it, if anything."""
    as_controller: str = ""
    """Where the handler for the controller's listener is, if it is another one."""
    refused_below: int = 0
    """Versions below this one are advertised, but not accepted."""
    for_receiver: bool = False
    """Whether it is advertised only while somebody is shown what clients push of their metrics."""


SERVED: Final[dict[int, Served]] = {
    # KAFKA-18659: librdkafka before 2.8 stops compressing where Produce 0 is not advertised.
    ApiKey.PRODUCE: Served(0, 13, "records.produce.handle", refused_below=3),
    ApiKey.FETCH: Served(4, 18, "records.fetch.handle", By.EACH, as_controller="quorum.fetch.fetch"),
    ApiKey.LIST_OFFSETS: Served(1, 11, "records.list_offsets.handle"),
    ApiKey.METADATA: Served(0, 13, "topics.metadata.metadata"),
    ApiKey.OFFSET_COMMIT: Served(2, 10, "groups.offsets.offset_commit"),
    ApiKey.OFFSET_FETCH: Served(1, 10, "groups.offsets.offset_fetch"),
    ApiKey.FIND_COORDINATOR: Served(0, 6, "groups.find_coordinator.find_coordinator"),
    ApiKey.JOIN_GROUP: Served(0, 9, "groups.membership.join_group"),
    ApiKey.HEARTBEAT: Served(0, 4, "groups.membership.heartbeat"),
    ApiKey.LEAVE_GROUP: Served(0, 5, "groups.membership.leave_group"),
    ApiKey.SYNC_GROUP: Served(0, 5, "groups.membership.sync_group"),
    ApiKey.DESCRIBE_GROUPS: Served(0, 6, "groups.administration.describe_groups"),
    ApiKey.LIST_GROUPS: Served(0, 5, "groups.administration.list_groups"),
    ApiKey.SASL_HANDSHAKE: Served(0, 1, "security.handshake.sasl_handshake", By.EACH),
    ApiKey.API_VERSIONS: Served(0, 4, "cluster.api_versions.api_versions", By.EACH),
    ApiKey.CREATE_TOPICS: Served(2, 7, "topics.changes.create_topics", By.CONTROLLER),
    ApiKey.DELETE_TOPICS: Served(1, 6, "topics.changes.delete_topics", By.CONTROLLER),
    ApiKey.DELETE_RECORDS: Served(0, 2, "records.delete_records.handle"),
    ApiKey.INIT_PRODUCER_ID: Served(0, 5, "transactions.producers.init_producer_id"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(2, 4, "records.offset_for_leader_epoch.handle"),
    ApiKey.ADD_PARTITIONS_TO_TXN: Served(0, 5, "transactions.producers.add_partitions_to_txn"),
    ApiKey.ADD_OFFSETS_TO_TXN: Served(0, 4, "transactions.producers.add_offsets_to_txn"),
    ApiKey.END_TXN: Served(0, 5, "transactions.producers.end_txn"),
    ApiKey.WRITE_TXN_MARKERS: Served(1, 2, "transactions.markers.write_txn_markers"),
    ApiKey.TXN_OFFSET_COMMIT: Served(0, 5, "transactions.offsets.txn_offset_commit"),
    ApiKey.DESCRIBE_CONFIGS: Served(1, 4, "configs.describe.describe_configs", By.EACH),
    ApiKey.ALTER_CONFIGS: Served(
        0, 2, "configs.alter.decide_configs", By.CONTROLLER, "configs.alter.alter_configs"
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Served(1, 2, "cluster.log_dirs.alter_replica_log_dirs"),
    ApiKey.DESCRIBE_LOG_DIRS: Served(1, 5, "cluster.log_dirs.describe_log_dirs"),
    ApiKey.SASL_AUTHENTICATE: Served(0, 2, "security.handshake.sasl_authenticate", By.EACH),
    ApiKey.CREATE_PARTITIONS: Served(0, 3, "topics.changes.create_partitions", By.CONTROLLER),
    ApiKey.CREATE_DELEGATION_TOKEN: Served(
        1,
        3,
        "security.tokens.create_delegation_token",
        By.CONTROLLER,
        "security.tokens.check_create",
        as_controller="security.tokens.create_directly",
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: Served(
        1,
        2,
        "security.tokens.move_end",
        By.CONTROLLER,
        "security.tokens.check_end",
        as_controller="security.tokens.move_end_directly",
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Served(
        1,
        2,
        "security.tokens.move_end",
        By.CONTROLLER,
        "security.tokens.check_end",
        as_controller="security.tokens.move_end_directly",
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Served(
        1,
        3,
        "security.tokens.describe_delegation_token",
        By.EACH,
        as_controller="security.controllers.describe_in_vain",
    ),
    ApiKey.DELETE_GROUPS: Served(0, 2, "groups.administration.delete_groups"),
    ApiKey.ELECT_LEADERS: Served(0, 2, "cluster.leaders.elect_leaders", By.CONTROLLER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(
        0, 1, "configs.alter.decide_configs", By.CONTROLLER, "configs.alter.alter_configs"
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Served(
        0, 1, "cluster.leaders.alter_partition_reassignments", By.CONTROLLER
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Served(
        0, 0, "cluster.leaders.list_partition_reassignments", By.CONTROLLER
    ),
    ApiKey.OFFSET_DELETE: Served(0, 0, "groups.offsets.offset_delete"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Served(0, 1, "cluster.quotas.describe_client_quotas"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Served(
        0,
        0,
        "security.scram.describe_user_scram_credentials",
        By.EACH,
        as_controller="security.controllers.describe_in_vain",
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Served(
        0, 0, "security.scram.alter_user_scram_credentials", By.CONTROLLER
    ),
    ApiKey.VOTE: Served(0, 2, "quorum.changes.handle", By.CONTROLLER_ALONE),
    ApiKey.BEGIN_QUORUM_EPOCH: Served(0, 1, "quorum.changes.handle", By.CONTROLLER_ALONE),
    ApiKey.END_QUORUM_EPOCH: Served(0, 1, "quorum.changes.handle", By.CONTROLLER_ALONE),
    ApiKey.DESCRIBE_QUORUM: Served(0, 2, "quorum.describe.describe_quorum", By.CONTROLLER),
    ApiKey.ALTER_PARTITION: Served(2, 3, "nodes.replicas.alter_partition", By.CONTROLLER_ALONE),
    ApiKey.UPDATE_FEATURES: Served(0, 2, "cluster.administration.update_features", By.CONTROLLER),
    ApiKey.ENVELOPE: Served(0, 0, "nodes.envelope.envelope", By.CONTROLLER_ALONE),
    ApiKey.DESCRIBE_CLUSTER: Served(0, 2, "cluster.describe.describe_cluster", By.EACH),
    ApiKey.FETCH_SNAPSHOT: Served(0, 1, "quorum.fetch_snapshot.fetch_snapshot", By.CONTROLLER_ALONE),
    ApiKey.DESCRIBE_PRODUCERS: Served(0, 0, "transactions.describe.describe_producers"),
    ApiKey.BROKER_REGISTRATION: Served(0, 4, "nodes.lives.broker_registration", By.CONTROLLER_ALONE),
    ApiKey.BROKER_HEARTBEAT: Served(0, 2, "nodes.lives.broker_heartbeat", By.CONTROLLER_ALONE),
    ApiKey.UNREGISTER_BROKER: Served(
        0,
        0,
        "cluster.administration.unregister_broker",
        By.CONTROLLER,
        "cluster.administration.spare_this_broker",
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Served(0, 0, "transactions.describe.describe_transactions"),
    ApiKey.LIST_TRANSACTIONS: Served(0, 2, "transactions.describe.list_transactions"),
    ApiKey.ALLOCATE_PRODUCER_IDS: Served(0, 0, "nodes.lives.allocate_producer_ids", By.CONTROLLER_ALONE),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Served(0, 1, "groups.membership.consumer_group_heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Served(0, 1, "groups.administration.consumer_group_describe"),
    ApiKey.CONTROLLER_REGISTRATION: Served(0, 0, "nodes.lives.controller_registration", By.CONTROLLER_ALONE),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Served(
        0, 0, "telemetry.push.get_telemetry_subscriptions", for_receiver=True
    ),
    ApiKey.PUSH_TELEMETRY: Served(0, 0, "telemetry.push.push_telemetry", for_receiver=True),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: Served(
        0, 0, "nodes.replicas.assign_replicas_to_dirs", By.CONTROLLER_ALONE
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Served(0, 1, "configs.describe.list_config_resources"),
    ApiKey.ADD_RAFT_VOTER: Served(0, 1, "quorum.changes.handle", By.CONTROLLER),
    ApiKey.REMOVE_RAFT_VOTER: Served(0, 0, "quorum.changes.handle", By.CONTROLLER),
    ApiKey.UPDATE_RAFT_VOTER: Served(0, 0, "quorum.changes.handle", By.CONTROLLER_ALONE),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(0, 0, "topics.describe.describe_topic_partitions"),
}


def served_by(role: ListenerRole) -> dict[int, Served]:
    """The APIs of a controller's listener, or of a broker's, with what brokers forward."""
    return {
        key: one
        for key, one in SERVED.items()
        if role in one.by.value.roles or (one.by.value.is_forwarded and role is ListenerRole.BROKER)
    }


def imported(name: str) -> Callable[..., Any]:
    """A handler by its name in the table. Looked up when its API is first called: most never are."""
    module, _, function = name.rpartition(".")
    handler: Callable[..., Any] = getattr(import_module("kwire.broker.api." + module), function)
    return handler
