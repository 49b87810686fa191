"""ACLs in tests, and requests that were denied for lack of one.

Acl.allow("alice", "READ", topic="orders")
Acl.allow("alice", "READ", group="billing-", prefixed=True)
Acl.deny("*", "DELETE", topic="*")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from kwire.wire.named_tuple import NamedTuple

OperationName = Literal[
    "ALL",
    "ALTER",
    "ALTER_CONFIGS",
    "CLUSTER_ACTION",
    "CREATE",
    "CREATE_TOKENS",
    "DELETE",
    "DESCRIBE",
    "DESCRIBE_CONFIGS",
    "DESCRIBE_TOKENS",
    "IDEMPOTENT_WRITE",
    "READ",
    "TWO_PHASE_COMMIT",
    "WRITE",
]
"""The operations of ACLs, with the names of Kafka's AclOperation."""

CLUSTER: Final = "kafka-cluster"
"""The name of the cluster in ACLs."""
USER_PREFIX: Final = "User:"


class Acl(NamedTuple):
    """An ACL. `allow` and `deny` create it."""

    permission: Literal["ALLOW", "DENY"]
    principal: str
    """The principal, such as `User:alice`."""
    operation: str
    resource_type: str
    """The name of Kafka's ResourceType, such as `TRANSACTIONAL_ID`."""
    resource_name: str
    is_prefixed: bool
    host: str

    @classmethod
    def allow(
        cls,
        user: str,
        operation: OperationName,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        cluster: bool = False,
        delegation_token: str | None = None,
        user_principal: str | None = None,
        prefixed: bool = False,
        host: str = "*",
    ) -> Acl:
        """Return an ACL that allows an operation on one resource.

        `user` is the name of a user, `CN=...` of a client certificate, or `*` for all. The name of a resource
        is `*` for all resources of its type. With `prefixed`, it is the start of their names. `host` is the
        IP address of clients. Raises TypeError or ValueError for wrong arguments.
        """
        names = topic, group, transactional_id, cluster, delegation_token, user_principal
        return _acl("ALLOW", user, operation, names, prefixed, host)

    @classmethod
    def deny(
        cls,
        user: str,
        operation: OperationName,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        cluster: bool = False,
        delegation_token: str | None = None,
        user_principal: str | None = None,
        prefixed: bool = False,
        host: str = "*",
    ) -> Acl:
        """Return an ACL that denies an operation, even if another allows it. See `allow`."""
        names = topic, group, transactional_id, cluster, delegation_token, user_principal
        return _acl("DENY", user, operation, names, prefixed, host)

    def __repr__(self) -> str:
        """Return the call that creates this ACL."""
        argument = self.resource_type.lower()
        if self.resource_type == "USER":
            argument = "user_principal"
        resource = f"{argument}={self.resource_name!r}" if self.resource_type != "CLUSTER" else "cluster=True"
        others = ", prefixed=True" if self.is_prefixed else ""
        others += f", host={self.host!r}" if self.host != "*" else ""
        user = self.principal.removeprefix(USER_PREFIX)
        return f"Acl.{self.permission.lower()}({user!r}, {self.operation!r}, {resource}{others})"


class Denial(NamedTuple):
    """A request that a broker denied."""

    api: str
    """The API's name in Kafka's documentation, such as Produce."""
    client_id: str
    missing: Acl
    """An ACL that would have allowed the request, if no other ACL denies it."""
    denied_by: Acl | None = None
    """The ACL that denied the request; None if no ACL allowed it."""

    def __str__(self) -> str:
        acl = self.missing
        resource = f"{acl.resource_type.lower().replace('_', ' ')} {acl.resource_name}"
        if acl.resource_type == "CLUSTER":
            resource = "the cluster"
        solution = f"allow it with {acl!r}" if self.denied_by is None else f"{self.denied_by!r} denies it"
        if acl.operation == "IDEMPOTENT_WRITE":
            write = acl._replace(operation="WRITE", resource_type="TOPIC", resource_name="NAME")
            solution = f"WRITE on the topic is enough: allow it with {write!r}"
        elif self.denied_by is None and acl.operation == "DESCRIBE":
            solution = self._solution_of_clients() or solution
        return (
            f"{self.api} from {self.client_id or '(no client id)'}: {acl.principal} was denied "
            f"{acl.operation} on {resource}; {solution}"
        )

    def _solution_of_clients(self) -> str:
        """Return the advice for producers and consumers, whose next request needs more than DESCRIBE."""
        operations = _NEXT_OPERATIONS.get((self.api, self.missing.resource_type), ())
        if not operations:
            return ""
        acls = " or ".join(repr(self.missing._replace(operation=one)) for one in operations)
        names = " and ".join(operations)
        return f"allow it with {acls}: {names} {'imply' if len(operations) > 1 else 'implies'} DESCRIBE"


def check_acls(acls: object) -> list[Acl]:
    """Return ACLs as a list. Raises TypeError unless they are ACLs."""
    if isinstance(acls, Acl) or not isinstance(acls, Sequence):
        raise TypeError(
            f"acls are a list, such as [Acl.allow('alice', 'READ', topic='*')], not {acls!r:.100}"
        )
    for acl in acls:
        if not isinstance(acl, Acl):
            raise TypeError(f"acls are made by Acl.allow and Acl.deny, not {acl!r:.100}")
    return list(acls)


_RESOURCE_TYPES: Final = "TOPIC", "GROUP", "TRANSACTIONAL_ID", "CLUSTER", "DELEGATION_TOKEN", "USER"
_NEXT_OPERATIONS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("Metadata", "TOPIC"): ("WRITE", "READ"),
    ("ListOffsets", "TOPIC"): ("READ",),
    ("OffsetFetch", "TOPIC"): ("READ",),
    ("OffsetForLeaderEpoch", "TOPIC"): ("READ",),
    ("ConsumerGroupHeartbeat", "TOPIC"): ("READ",),
    ("FindCoordinator", "GROUP"): ("READ",),
    ("OffsetFetch", "GROUP"): ("READ",),
    ("FindCoordinator", "TRANSACTIONAL_ID"): ("WRITE",),
}
"""The operations that producers and consumers need, by an API that needs DESCRIBE and a resource type."""
_ON_CONFIGS: Final = "DESCRIBE_CONFIGS", "ALTER_CONFIGS"
_OPERATIONS: Final = {
    "TOPIC": ("READ", "WRITE", "CREATE", "DESCRIBE", "DELETE", "ALTER", *_ON_CONFIGS),
    "GROUP": ("READ", "DESCRIBE", "DELETE", *_ON_CONFIGS),
    "TRANSACTIONAL_ID": ("DESCRIBE", "WRITE", "TWO_PHASE_COMMIT"),
    "CLUSTER": ("CREATE", "CLUSTER_ACTION", "IDEMPOTENT_WRITE", "ALTER", "DESCRIBE", *_ON_CONFIGS),
    "DELEGATION_TOKEN": ("DESCRIBE",),
    "USER": ("CREATE_TOKENS", "DESCRIBE_TOKENS"),
}
"""The operations that have an effect on each resource type, besides ALL. Others would be a mistake."""


def _acl(
    permission: Literal["ALLOW", "DENY"],
    user: object,
    operation: OperationName,
    names: Sequence[object],
    prefixed: bool,
    host: object,
) -> Acl:
    """Return an ACL. `names` are the resource arguments, of which exactly one is set."""
    if operation not in get_args(OperationName):
        raise ValueError(
            f"there is no operation {operation!r}: use one of {', '.join(get_args(OperationName))}"
        )
    given = [
        (kind, name)
        for kind, name in zip(_RESOURCE_TYPES, names, strict=True)
        if name is not None and name is not False
    ]
    if len(given) != 1:
        raise TypeError(
            "an ACL has one resource: pass topic=, group=, transactional_id=, cluster=True, "
            f"delegation_token= or user_principal=, not {len(given)} of them"
        )
    [(resource_type, name)] = given
    if resource_type == "CLUSTER":
        name = CLUSTER
    for text in (user, name, host):
        if not isinstance(text, str) or not text:
            raise TypeError(
                f"users, resources and hosts of ACLs are str that are not empty, not {text!r:.100}"
            )
    assert isinstance(user, str)
    assert isinstance(name, str)
    assert isinstance(host, str)
    if operation not in ("ALL", *_OPERATIONS[resource_type]):
        raise ValueError(
            f"{operation} has no effect on a {resource_type.lower()}: "
            f"use one of ALL, {', '.join(_OPERATIONS[resource_type])}"
        )
    if resource_type == "USER":
        name = _principal(name)
    return Acl(permission, _principal(user), operation, resource_type, name, bool(prefixed), host)


def _principal(name: str) -> str:
    return name if name.startswith(USER_PREFIX) else USER_PREFIX + name
