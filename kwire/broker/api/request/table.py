"""What is served: each API with its versions, and who answers it.

This is the truth about what is offered: ApiVersions is made from it, and a request outside of it closes its
connection, as Apache Kafka does. Who answers an API is as Kafka has it (`listeners` in its message
definitions, KafkaApis and ControllerApis; KIP-590). Its function is named in `handlers`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

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
    """An API that is offered: in which versions, and who answers it."""

    min_version: int
    max_version: int
    by: By = By.BROKER
    refused_below: int = 0
    """Versions below this one are advertised, but not accepted."""
    for_receiver: bool = False
    """Whether it is advertised only while somebody is shown what clients push of their metrics."""


SERVED: Final[dict[int, Served]] = {
    # KAFKA-18659: librdkafka before 2.8 stops compressing where Produce 0 is not advertised.
    ApiKey.PRODUCE: Served(0, 13, refused_below=3),
    ApiKey.FETCH: Served(4, 18, By.EACH),
    ApiKey.LIST_OFFSETS: Served(1, 11),
    ApiKey.METADATA: Served(0, 13),
    ApiKey.OFFSET_COMMIT: Served(2, 10),
    ApiKey.OFFSET_FETCH: Served(1, 10),
    ApiKey.FIND_COORDINATOR: Served(0, 6),
    ApiKey.JOIN_GROUP: Served(0, 9),
    ApiKey.HEARTBEAT: Served(0, 4),
    ApiKey.LEAVE_GROUP: Served(0, 5),
    ApiKey.SYNC_GROUP: Served(0, 5),
    ApiKey.DESCRIBE_GROUPS: Served(0, 6),
    ApiKey.LIST_GROUPS: Served(0, 5),
    ApiKey.SASL_HANDSHAKE: Served(0, 1, By.EACH),
    ApiKey.API_VERSIONS: Served(0, 4, By.EACH),
    ApiKey.CREATE_TOPICS: Served(2, 7, By.CONTROLLER),
    ApiKey.DELETE_TOPICS: Served(1, 6, By.CONTROLLER),
    ApiKey.DELETE_RECORDS: Served(0, 2),
    ApiKey.INIT_PRODUCER_ID: Served(0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: Served(0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: Served(0, 4),
    ApiKey.END_TXN: Served(0, 5),
    ApiKey.WRITE_TXN_MARKERS: Served(1, 2),
    ApiKey.TXN_OFFSET_COMMIT: Served(0, 5),
    ApiKey.DESCRIBE_CONFIGS: Served(1, 4, By.EACH),
    ApiKey.ALTER_CONFIGS: Served(0, 2, By.CONTROLLER),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Served(1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: Served(1, 5),
    ApiKey.SASL_AUTHENTICATE: Served(0, 2, By.EACH),
    ApiKey.CREATE_PARTITIONS: Served(0, 3, By.CONTROLLER),
    ApiKey.CREATE_DELEGATION_TOKEN: Served(1, 3, By.CONTROLLER),
    ApiKey.RENEW_DELEGATION_TOKEN: Served(1, 2, By.CONTROLLER),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Served(1, 2, By.CONTROLLER),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Served(1, 3, By.EACH),
    ApiKey.DELETE_GROUPS: Served(0, 2),
    ApiKey.ELECT_LEADERS: Served(0, 2, By.CONTROLLER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(0, 1, By.CONTROLLER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Served(0, 1, By.CONTROLLER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Served(0, 0, By.CONTROLLER),
    ApiKey.OFFSET_DELETE: Served(0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Served(0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Served(0, 0, By.EACH),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Served(0, 0, By.CONTROLLER),
    ApiKey.VOTE: Served(0, 2, By.CONTROLLER_ALONE),
    ApiKey.BEGIN_QUORUM_EPOCH: Served(0, 1, By.CONTROLLER_ALONE),
    ApiKey.END_QUORUM_EPOCH: Served(0, 1, By.CONTROLLER_ALONE),
    ApiKey.DESCRIBE_QUORUM: Served(0, 2, By.CONTROLLER),
    ApiKey.ALTER_PARTITION: Served(2, 3, By.CONTROLLER_ALONE),
    ApiKey.UPDATE_FEATURES: Served(0, 2, By.CONTROLLER),
    ApiKey.ENVELOPE: Served(0, 0, By.CONTROLLER_ALONE),
    ApiKey.DESCRIBE_CLUSTER: Served(0, 2, By.EACH),
    ApiKey.FETCH_SNAPSHOT: Served(0, 1, By.CONTROLLER_ALONE),
    ApiKey.DESCRIBE_PRODUCERS: Served(0, 0),
    ApiKey.BROKER_REGISTRATION: Served(0, 4, By.CONTROLLER_ALONE),
    ApiKey.BROKER_HEARTBEAT: Served(0, 2, By.CONTROLLER_ALONE),
    ApiKey.UNREGISTER_BROKER: Served(0, 0, By.CONTROLLER),
    ApiKey.DESCRIBE_TRANSACTIONS: Served(0, 0),
    ApiKey.LIST_TRANSACTIONS: Served(0, 2),
    ApiKey.ALLOCATE_PRODUCER_IDS: Served(0, 0, By.CONTROLLER_ALONE),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Served(0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Served(0, 1),
    ApiKey.CONTROLLER_REGISTRATION: Served(0, 0, By.CONTROLLER_ALONE),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Served(0, 0, for_receiver=True),
    ApiKey.PUSH_TELEMETRY: Served(0, 0, for_receiver=True),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: Served(0, 0, By.CONTROLLER_ALONE),
    ApiKey.LIST_CONFIG_RESOURCES: Served(0, 1),
    ApiKey.ADD_RAFT_VOTER: Served(0, 1, By.CONTROLLER),
    ApiKey.REMOVE_RAFT_VOTER: Served(0, 0, By.CONTROLLER),
    ApiKey.UPDATE_RAFT_VOTER: Served(0, 0, By.CONTROLLER_ALONE),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(0, 0),
}


def served_by(role: ListenerRole) -> dict[int, Served]:
    """The APIs of a controller's listener, or of a broker's, with what brokers forward."""
    return {
        key: one
        for key, one in SERVED.items()
        if role in one.by.value.roles or (one.by.value.is_forwarded and role is ListenerRole.BROKER)
    }
