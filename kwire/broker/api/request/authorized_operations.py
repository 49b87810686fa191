"""Authorized operations as bit fields: bit n stands for ACL operation n. KIP-430.

Without an authorizer, each client may perform every operation that a resource supports.
"""

from __future__ import annotations

from kwire.broker.api.request.gate import Gate
from kwire.broker.api.request.requester import Requester
from kwire.broker.security.authorizer import CLUSTER_NAME, SUPPORTED_OPERATIONS, Operation, ResourceType


def authorized_operations(gate: Gate, context: Requester, resource_type: ResourceType, name: str) -> int:
    """Return the operations that the client may perform on a resource. This is not part of the audit log."""
    authorizer = gate.authorizer_of(context)
    return sum(
        1 << operation
        for operation in SUPPORTED_OPERATIONS[resource_type]
        if authorizer is None
        or authorizer.allows(context.principal, context.peer_host, operation, resource_type, name)
    )


def authorized_cluster_operations(gate: Gate, context: Requester) -> int:
    """Return the operations that the client may perform on the cluster: none without DESCRIBE."""
    if not gate.allows(context, Operation.DESCRIBE, is_asked=False):
        return 0
    return authorized_operations(gate, context, ResourceType.CLUSTER, CLUSTER_NAME)
