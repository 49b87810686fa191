"""The operations and resource types of authorization. KIP-11, KIP-373, KIP-939."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the cluster in ACLs."""


ANY_NAME: Final = "hardcode"
"""The name that Apache Kafka checks first for a right on any resource of a type."""

NODE_RIGHTS: Final = "must be in super.users of the controllers, or needs CLUSTER_ACTION on the cluster"
"""The rights that a node lacks if a controller denies its requests."""


class Operation(IntEnum):
    """The operations of ACLs, with the codes of Kafka's AclOperation."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """The resource types of ACLs, with the codes of Kafka's ResourceType."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


SUPPORTED_OPERATIONS: Final[Mapping[int, frozenset[Operation]]] = {
    ResourceType.TOPIC: frozenset(
        {
            *(Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER),
            *(Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
        }
    ),
    ResourceType.GROUP: frozenset(
        {
            *(Operation.READ, Operation.DELETE, Operation.DESCRIBE),
            *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
        }
    ),
    ResourceType.CLUSTER: frozenset(
        {
            *(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION),
            *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE),
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset(
        {Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT}
    ),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}
"""The operations that requests can need on each resource type. An ACL with another one has no effect."""
