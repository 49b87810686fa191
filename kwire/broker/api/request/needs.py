"""The operations that the client of an API must be allowed, or the reason why the handler decides."""

from __future__ import annotations

from enum import Enum

from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.wire.named_tuple import NamedTuple


class References(Enum):
    """The number of checks if a request names a resource several times, and their `resourceRefCount`.

    Both are visible in the audit log. Apache Kafka has no common rule.
    """

    EACH = "one check per item"
    ITEMS = "one check per name, which counts the items"
    PARTITIONS = "one check per name, which counts the partitions"
    NAMES = "one check per name, which counts as one"


class Need(NamedTuple):
    """An operation that the complete request needs. If it is denied, the complete request fails."""

    operation: Operation
    resource_type: ResourceType = ResourceType.CLUSTER
    field: str = ""
    """The field of the request with the resource's name, or with several names; empty for the cluster."""
    or_on_cluster: Operation | None = None
    """An operation on the cluster that suffices instead."""


class ItemNeed(NamedTuple):
    """An operation that each item of the request needs. A denied item gets an error; others are handled."""

    operation: Operation
    resource_type: ResourceType | None
    """The type of the resource that an item names; None if an item has a configuration resource type."""
    or_on_cluster: Operation | None = None
    """An operation on the cluster that suffices for all items."""
    references: References = References.EACH
    """How the audit log counts an item."""


class ByHandler(NamedTuple):
    """The reason why the handler itself authorizes a part of the request, or why the API needs nothing."""

    reason: str


Needs = tuple[Need | ItemNeed | ByHandler, ...]
"""The needs of an API, in the order in which they are checked."""
