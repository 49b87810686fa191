"""The audit log of the authorizer, `kafka.authorizer.logger`, and the rates of its decisions.

As in Apache Kafka, an allowed operation is logged at DEBUG and a denied one at INFO. A denied operation is
logged at TRACE if the client did not ask for just this operation: a list has fewer items then, or another
right may suffice. The operations that a response only lists (KIP-430) are logged at TRACE, too. Clients
choose the names of resources, so unlike in Apache Kafka, unprintable characters are escaped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kwire.broker.security.acl import acl_host
from kwire.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from kwire.host.loggers import AUDIT_LOGGER, TRACE, escape_unprintable
from kwire.host.windows import Windows
from kwire.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kwire.broker.api.request.requester import Requester
    from kwire.broker.security.principal import Principal
    from kwire.broker.security.standard_authorizer import Decision, StandardAuthorizer
    from kwire.host.host import Host

    OnDenied = Callable[[Requester, Operation, ResourceType, str, Decision], None]

BATCH: Final = 1024
"""The number of decisions that are added to the rates together."""


class AuditLog:
    """The audit log of one node."""

    def __init__(self, host: Host) -> None:
        self._logger = host.logger(AUDIT_LOGGER)
        self._now_ms = host.monotonic_ms
        self._allowed, self._denied = Windows(), Windows()
        self._is_enabled = self._logger.logger.isEnabledFor
        self._counts, self._pending = [0, 0], 0
        """The denied and the allowed operations that are not part of the rates yet, and their sum."""
        self.recorded = 0
        """The number of recorded operations."""
        self.on_denied: OnDenied | None = None
        """A callback for each denied operation for which a client asked."""

    def record(
        self,
        authorizer: StandardAuthorizer,
        context: Requester,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        is_allowed: bool,
        is_asked: bool = True,
        is_used: bool = True,
        references: int = 1,
    ) -> None:
        """Record a decision of an authorizer, which also knows the reason.

        `is_asked` is False if the client did not ask for this operation, and `is_used` is False if the
        response only lists the operation. `references` is the number of times that the request names the
        resource.
        """
        self._count(1, is_allowed=is_allowed)
        if is_asked and not is_allowed:
            self.report_denied(authorizer, context, operation, resource_type, name)
        level = logging.DEBUG if is_allowed and is_used else TRACE
        if is_asked and not is_allowed:
            level = logging.INFO
        if self._is_enabled(level):
            client = context.principal, context.peer_host
            decision = authorizer.decide(*client, operation, resource_type, name)
            request = _words(ApiKey(context.header.api_key).name)
            self._log(
                *(level, *client, operation, resource_type, name, request, decision),
                is_allowed=is_allowed,
                references=references,
            )

    def record_page(
        self,
        authorizer: StandardAuthorizer,
        principal: Principal,
        host: str,
        method: str,
        path: str,
        *,
        is_allowed: bool,
    ) -> None:
        """Record whether a client of the HTTP port may read a page, which needs DESCRIBE on the cluster."""
        self._count(1, is_allowed=is_allowed)
        level = logging.DEBUG if is_allowed else logging.INFO
        if self._is_enabled(level):
            what = Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
            decision = authorizer.decide(principal, host, *what)
            self._log(level, principal, host, *what, f"{method} {path}", decision, is_allowed=is_allowed)

    def _log(
        self,
        level: int,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        request: str,
        decision: Decision,
        *,
        is_allowed: bool,
        references: int = 1,
    ) -> None:
        self._logger.log(
            level,
            "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s "
            "for request = %s with resourceRefCount = %d based on rule %s",
            escape_unprintable(str(principal)),
            "Allowed" if is_allowed else "Denied",
            operation.name,
            acl_host(host),
            _words(resource_type.name),
            escape_unprintable(name),
            escape_unprintable(request),
            references,
            escape_unprintable(str(decision)),
        )

    def report_denied(
        self,
        authorizer: StandardAuthorizer,
        context: Requester,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> None:
        """Call `on_denied`, without a line in the log."""
        if self.on_denied is not None:
            decision = authorizer.decide(context.principal, context.peer_host, operation, resource_type, name)
            self.on_denied(context, operation, resource_type, name, decision)

    def record_allowed(
        self,
        authorizer: StandardAuthorizer,
        context: Requester,
        operation: Operation,
        resource_type: ResourceType,
        references: Sequence[tuple[str, int]],
    ) -> None:
        """Record that an operation on several resources is allowed. Each has a name and `references`."""
        for name, count in references:
            self.record(
                *(authorizer, context, operation, resource_type, name), is_allowed=True, references=count
            )

    def record_operations(
        self,
        authorizer: StandardAuthorizer,
        context: Requester,
        resource_type: ResourceType,
        name: str,
        allowed: Mapping[Operation, bool],
    ) -> None:
        """Record the decisions about operations that a response lists."""
        if not self._is_enabled(TRACE):
            count = sum(allowed.values())
            self._count(count, is_allowed=True)
            self._count(len(allowed) - count, is_allowed=False)
            return
        for operation, is_allowed in allowed.items():
            self.record(
                *(authorizer, context, operation, resource_type, name),
                is_allowed=is_allowed,
                is_asked=False,
                is_used=False,
            )

    @property
    def logs_allowed(self) -> bool:
        """Whether allowed operations are logged."""
        return self._is_enabled(logging.DEBUG)

    def count_allowed(self, count: int) -> bool:
        """Add allowed operations to the rates, unless they must be logged. Return whether they were added."""
        if self._is_enabled(logging.DEBUG):
            return False
        self.recorded += count
        self._counts[True] += count
        self._pending += count
        if self._pending >= BATCH:
            self._add_counts()
        return True

    def _count(self, count: int, *, is_allowed: bool) -> None:
        self.recorded += count
        self._counts[is_allowed] += count
        self._pending += count
        if self._pending >= BATCH:
            self._add_counts()

    def per_minute(self) -> tuple[float, float]:
        """Return the rates of allowed and of denied operations per minute."""
        self._add_counts()
        now_ms = self._now_ms()
        return self._allowed.per_second(now_ms) * 60, self._denied.per_second(now_ms) * 60

    def _add_counts(self) -> None:
        for window, count in zip((self._denied, self._allowed), self._counts, strict=True):
            if count:
                window.record(count, self._now_ms())
        self._counts, self._pending = [0, 0], 0


def _words(name: str) -> str:
    """Return Kafka's form of a name, such as `TransactionalId`."""
    return name.title().replace("_", "")
