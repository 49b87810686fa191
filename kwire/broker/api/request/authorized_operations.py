"""Authorized operations as bit fields: bit n stands for ACL operation n. KIP-430.

Without an authorizer, each client may perform every operation that a resource supports.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.api.request.gate import Gate, Requester
from kwire.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType

SUPPORTED_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that responses report, by resource type."""


def authorized_operations(gate: Gate, context: Requester, resource_type: ResourceType, name: str) -> int:
    """Return the operations that the client may perform on a resource."""
    return sum(
        1 << operation
        for operation in SUPPORTED_OPERATIONS[resource_type]
        if gate.allows(context, operation, resource_type, name)
    )


def authorized_cluster_operations(gate: Gate, context: Requester) -> int:
    """Return the operations that the client may perform on the cluster: none without DESCRIBE."""
    if not gate.allows(context, Operation.DESCRIBE):
        return 0
    return authorized_operations(gate, context, ResourceType.CLUSTER, CLUSTER_NAME)
