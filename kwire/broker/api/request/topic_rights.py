"""The rights of a client on the topics of one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kwire.broker.api.request.gate import Gate
from kwire.broker.api.request.requester import Requester
from kwire.broker.security.authorizer import Operation, ResourceType


class TopicRights(dict[str, bool]):
    """Whether the client may perform an operation on topics, by name.

    Each decision is made when it is first needed, and the audit log has it once, as in Apache Kafka.
    """

    def __init__(
        self, gate: Gate, context: Requester, operation: Operation, names: Iterable[str | None]
    ) -> None:
        """`names` has a topic once for each reference of the request."""
        self._gate = gate
        self._context = context
        self._operation = operation
        self._references = Counter(iter(names))  # the values of a mapping would be counts

    def __missing__(self, name: str) -> bool:
        is_allowed = self[name] = self._gate.allows(
            self._context,
            self._operation,
            ResourceType.TOPIC,
            name,
            references=self._references[name],
        )
        return is_allowed
