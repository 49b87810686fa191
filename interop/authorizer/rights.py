"""ACLs, and the sets of ACLs with which each case is tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from interop.wire import Fields

OPERATIONS: Final = {
    "ALL": 2,
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
    "CREATE_TOKENS": 13,
    "DESCRIBE_TOKENS": 14,
    "TWO_PHASE_COMMIT": 15,
}
RESOURCE_TYPES: Final = {"topic": 2, "group": 3, "cluster": 4, "transactional-id": 5, "token": 6, "user": 7}
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
ALICE, BOB, EVERYONE, ANONYMOUS = "User:alice", "User:bob", "User:*", "User:ANONYMOUS"
CLUSTER_NAME: Final = "kafka-cluster"
CLUSTER: Final = RESOURCE_TYPES["cluster"]
USER: Final = RESOURCE_TYPES["user"]


class Right(NamedTuple):
    """An ACL. By default it allows alice an operation on one resource, from every host."""

    operation: int
    resource_type: int
    name: str
    pattern_type: int = LITERAL
    principal: str = ALICE
    host: str = "*"
    permission_type: int = ALLOW

    def creation(self) -> Fields:
        """Return the ACL as an item of CreateAcls."""
        return {
            "ResourceType": self.resource_type,
            "ResourceName": self.name,
            "ResourcePatternType": self.pattern_type,
            "Principal": self.principal,
            "Host": self.host,
            "Operation": self.operation,
            "PermissionType": self.permission_type,
        }

    @property
    def label(self) -> str:
        names = {code: name for name, code in OPERATIONS.items()}
        kinds = {code: name for name, code in RESOURCE_TYPES.items()}
        return f"{names[self.operation]} {kinds[self.resource_type]} {self.name}"

    def denied(self) -> Right:
        return self._replace(permission_type=DENY)

    def everywhere(self) -> Right:
        """Return the ACL for all resources of its type; the cluster has only one."""
        return self if self.resource_type == CLUSTER else self._replace(name="*")

    def prefixed(self) -> Right:
        if self.resource_type == CLUSTER:
            return self
        return self._replace(name=self.name[:-1], pattern_type=PREFIXED)


def topic(operation: str, name: str = "orders") -> Right:
    return Right(OPERATIONS[operation], RESOURCE_TYPES["topic"], name)


def group(operation: str, name: str = "team") -> Right:
    return Right(OPERATIONS[operation], RESOURCE_TYPES["group"], name)


def cluster(operation: str) -> Right:
    return Right(OPERATIONS[operation], CLUSTER, CLUSTER_NAME)


def transactional_id(operation: str, name: str = "payments") -> Right:
    return Right(OPERATIONS[operation], RESOURCE_TYPES["transactional-id"], name)


def token(operation: str, name: str) -> Right:
    return Right(OPERATIONS[operation], RESOURCE_TYPES["token"], name)


def user(operation: str, name: str) -> Right:
    return Right(OPERATIONS[operation], USER, name)


Rights = tuple[Right, ...]


def right_sets(needs: Sequence[Right]) -> dict[str, Rights]:
    """Return the sets of ACLs with which a case is tried, by label."""
    all_needs = tuple(needs)
    sets: dict[str, Rights] = {"none": ()}
    if not all_needs:
        return sets
    for need in all_needs:
        sets[f"only {need.label}"] = (need,)
    for need in all_needs if len(all_needs) > 2 else ():
        sets[f"all but {need.label}"] = tuple(one for one in all_needs if one != need)
    sets["all"] = all_needs
    for need in all_needs:
        sets[f"all, denied {need.label}"] = (*all_needs, need.denied())
    for need in all_needs:
        if need.resource_type != CLUSTER:
            sets[f"all, denied everywhere {need.label}"] = (*all_needs, need.everywhere().denied())
    sets["another principal"] = tuple(one._replace(principal=BOB) for one in all_needs)
    sets["another host"] = tuple(one._replace(host="10.1.2.3") for one in all_needs)
    sets["every principal"] = tuple(one._replace(principal=EVERYONE) for one in all_needs)
    sets["every operation"] = tuple(
        dict.fromkeys(one._replace(operation=OPERATIONS["ALL"]) for one in all_needs)
    )
    sets["every operation, every resource"] = tuple(
        dict.fromkeys(one._replace(operation=OPERATIONS["ALL"]).everywhere() for one in all_needs)
    )
    if any(one.prefixed() != one for one in all_needs):
        sets["prefixed"] = tuple(one.prefixed() for one in all_needs)
        sets["every resource"] = tuple(one.everywhere() for one in all_needs)
    return sets
