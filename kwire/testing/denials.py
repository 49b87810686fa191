"""The requests that a broker has denied, as its audit log reports them."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

from kwire.host.system_time import libc_time_ns
from kwire.testing.acl import Acl, Denial

if TYPE_CHECKING:
    from kwire.broker.api.request.requester import Requester
    from kwire.broker.security.acl import Acl as BrokerAcl
    from kwire.broker.security.authorizer import Operation, ResourceType
    from kwire.broker.security.standard_authorizer import Decision

MAX_DENIALS: Final = 1_000
"""The maximum number of different denials. Beyond it, the oldest are dropped."""


class Denials:
    """The last denied requests of all clients, without repetitions. Can be used from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._denied_at_s: dict[Denial, float] = {}
        """The time of the last request of each kind, in order."""

    def find(self, since_s: float = 0.0) -> list[Denial]:
        """Return the denied requests since `since_s`, in seconds since 1970, in order."""
        with self._lock:
            return [one for one, at_s in self._denied_at_s.items() if at_s >= since_s]

    def record(
        self,
        context: Requester,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        decision: Decision,
    ) -> None:
        """Add a denied request (`AuditLog.on_denied`)."""
        from kwire.wire.registry import API_VERSIONS

        header = context.header
        missing = Acl(
            "ALLOW",
            str(context.principal),
            operation.name,
            resource_type.name,
            name,
            is_prefixed=False,
            host="*",
        )
        denied_by = None if decision.acl is None else _testing_acl(decision.acl)
        denial = Denial(API_VERSIONS[header.api_key].name, header.client_id or "", missing, denied_by)
        with self._lock:
            self._denied_at_s.pop(denial, None)
            self._denied_at_s[denial] = libc_time_ns() / 1_000_000_000
            if len(self._denied_at_s) > MAX_DENIALS:
                del self._denied_at_s[next(iter(self._denied_at_s))]


def _testing_acl(acl: BrokerAcl) -> Acl:
    from kwire.broker.security.acl import PatternType, Permission, name_of, operation_name
    from kwire.broker.security.authorizer import ResourceType

    return Acl(
        "DENY" if acl.permission_type == Permission.DENY else "ALLOW",
        acl.principal,
        operation_name(acl.operation),
        name_of(ResourceType, acl.resource_type),
        acl.resource_name,
        acl.pattern_type == PatternType.PREFIXED,
        acl.host,
    )
