"""Authorized operations as bit fields: bit n stands for ACL operation n. KIP-430.

Without an authorizer, each client may perform every operation that a resource supports.
"""

from __future__ import annotations

from kwire.broker.api.request.gate import Gate
from kwire.broker.api.request.requester import Requester
from kwire.broker.security.authorizer import CLUSTER_NAME, SUPPORTED_OPERATIONS, Operation, ResourceType


def authorized_operations(gate: Gate, context: Requester, resource_type: ResourceType, name: str) -> int:
    """Return the operations that the client may perform on a resource. The audit log has them at TRACE."""
    authorizer, supported = gate.authorizer_of(context), SUPPORTED_OPERATIONS[resource_type]
    if authorizer is None:
        return sum(1 << operation for operation in supported)
    allowed = {
        operation: authorizer.allows(context.principal, context.peer_host, operation, resource_type, name)
        for operation in supported
    }
    if gate.audit_log is not None:
        gate.audit_log.record_operations(authorizer, context, resource_type, name, allowed)
    return sum(is_allowed << operation for operation, is_allowed in allowed.items())


def authorized_cluster_operations(gate: Gate, context: Requester) -> int:
    """Return the operations that the client may perform on the cluster: none without DESCRIBE."""
    if not gate.allows(context, Operation.DESCRIBE):
        return 0
    return authorized_operations(gate, context, ResourceType.CLUSTER, CLUSTER_NAME)
