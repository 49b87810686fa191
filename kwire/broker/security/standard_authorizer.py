"""The decisions of Apache Kafka's StandardAuthorizer, from the ACLs of one moment.

Super users have full access. For others the ACLs decide whose pattern matches the resource. A DENY ACL takes
precedence over all ALLOW ACLs. If ACLs match the resource but not the request, it is denied. If no ACL
matches the resource, `allow.everyone.if.no.acl.found` decides.

An authorizer never changes, so that a request sees one version of the ACLs. Changed ACLs are another object,
which shares the parts that did not change. A decision costs a few lookups: one for the name, one for each
length of the prefixes of the resource type, and one for the wildcard. Decisions are kept until the ACLs
change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kwire.broker.security.acl import (
    ALL_OPERATIONS,
    EVERYONE,
    WILDCARD,
    Acl,
    PatternType,
    Permission,
    acl_host,
)
from kwire.broker.security.authorizer import ANY_NAME, Operation, ResourceType
from kwire.broker.security.principal import Principal
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple

MAX_KEPT_DECISIONS: Final = 20_000
"""The limit for kept decisions. Clients choose the names of resources."""
MAX_KEPT_NAME_LENGTH: Final = 249
"""The limit for names in kept decisions: that of topic names. Other names may have up to 32 KiB."""

_IMPLIED_BY: Final = {
    Operation.DESCRIBE: frozenset(
        {
            ALL_OPERATIONS,
            *(Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {ALL_OPERATIONS, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
    ),
}
"""The operations of ACLs that also allow another operation. Nothing else is implied, and no denial is."""


class Decision(NamedTuple):
    """Whether an operation is allowed, and why."""

    is_allowed: bool
    rule: str
    acl: Acl | None = None
    """The ACL that decided, if there is one."""

    def __str__(self) -> str:
        """Return Apache Kafka's text of the rule, which its audit log has."""
        return self.rule if self.acl is None else f"MatchingAcl(acl={self.acl})"


SUPER_USER: Final = Decision(is_allowed=True, rule="SuperUser")
DEFAULT_ALLOW: Final = Decision(is_allowed=True, rule="DefaultAllow")
DEFAULT_DENY: Final = Decision(is_allowed=False, rule="DefaultDeny")


class _Patterns:
    """The ACLs of one resource type by pattern. It is not changed after it was filled."""

    __slots__ = ("literal", "prefix_lengths", "prefixed")

    def __init__(self, other: _Patterns | None = None) -> None:
        self.literal: dict[str, tuple[Acl, ...]] = {} if other is None else dict(other.literal)
        self.prefixed: dict[str, tuple[Acl, ...]] = {} if other is None else dict(other.prefixed)
        self.prefix_lengths: tuple[int, ...] = ()
        """The distinct lengths of prefixes, the longest first."""

    def change(self, removed: Iterable[Acl], added: Iterable[Acl]) -> None:
        changed: dict[tuple[int, str], set[Acl]] = {}
        for acls, is_added in ((removed, False), (added, True)):
            for acl in acls:
                key = acl.pattern_type, acl.resource_name
                if key not in changed:
                    changed[key] = set(self._by_type(acl.pattern_type).get(acl.resource_name, ()))
                changed[key].add(acl) if is_added else changed[key].discard(acl)
        for (pattern_type, name), left in changed.items():
            by_name = self._by_type(pattern_type)
            if left:
                by_name[name] = tuple(sorted(left))
            else:
                by_name.pop(name, None)
        self.prefix_lengths = tuple(sorted({len(name) for name in self.prefixed}, reverse=True))

    def _by_type(self, pattern_type: int) -> dict[str, tuple[Acl, ...]]:
        return self.prefixed if pattern_type == PatternType.PREFIXED else self.literal

    def matching(self, name: str) -> Iterator[Acl]:
        """Yield the ACLs that apply to a resource, in the order in which Apache Kafka examines them."""
        yield from self.literal.get(name, ())
        for length in self.prefix_lengths:
            if length <= len(name):
                yield from self.prefixed.get(name[:length], ())
        # Apache Kafka takes the wildcard for a literal prefix of a longer name, and ignores it.
        if not name.startswith(WILDCARD):
            yield from self.literal.get(WILDCARD, ())

    def all(self) -> Iterator[Acl]:
        for by_name in (self.literal, self.prefixed):
            for acls in by_name.values():
                yield from acls


_NO_PATTERNS: Final = _Patterns()


class StandardAuthorizer:
    """An authorizer with the ACLs of one moment."""

    __slots__ = (
        "_any_decisions",
        "_decisions",
        "_is_loaded",
        "_patterns",
        "_rule_without_acls",
        "_super_users",
    )

    def __init__(
        self,
        super_users: frozenset[str],
        *,
        allows_without_acls: bool,
        is_loaded: bool = True,
        patterns: Mapping[int, _Patterns] | None = None,
    ) -> None:
        """`super_users` has principals in the form `User:name`.

        Until the ACLs are loaded, requests of others than super users fail.
        """
        self._super_users = super_users
        self._rule_without_acls = DEFAULT_ALLOW if allows_without_acls else DEFAULT_DENY
        self._is_loaded = is_loaded
        self._patterns = patterns or {}
        self._decisions: dict[tuple[Principal, str, int, int, str], Decision] = {}
        self._any_decisions: dict[tuple[Principal, str, int, int], bool] = {}

    def changed(
        self, removed: Iterable[Acl] = (), added: Iterable[Acl] = (), *, is_loaded: bool = True
    ) -> StandardAuthorizer:
        """Return an authorizer with other ACLs."""
        by_type: dict[int, tuple[list[Acl], list[Acl]]] = {}
        for at, acls in enumerate((removed, added)):
            for acl in acls:
                by_type.setdefault(acl.resource_type, ([], []))[at].append(acl)
        patterns = dict(self._patterns)
        for resource_type, change in by_type.items():
            patterns[resource_type] = copy = _Patterns(patterns.get(resource_type))
            copy.change(*change)
        # A request that waits may use this authorizer for a long time, but for few decisions.
        self._decisions.clear()
        self._any_decisions.clear()
        return StandardAuthorizer(
            self._super_users,
            allows_without_acls=self._rule_without_acls.is_allowed,
            is_loaded=is_loaded,
            patterns=patterns,
        )

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether a principal at an address may perform an operation on a resource.

        Raises ApiError if the ACLs are not loaded.
        """
        kept = self._decisions.get((principal, host, operation, resource_type, name))
        if kept is None:
            kept = self.decide(principal, host, operation, resource_type, name)
        return kept.is_allowed

    def decide(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> Decision:
        """Return the decision with its reason. Raises ApiError if the ACLs are not loaded."""
        key = principal, host, operation, resource_type, name
        kept = self._decisions.get(key)
        if kept is not None:
            return kept
        made = self._decide(principal, host, operation, resource_type, name)
        if len(name) > MAX_KEPT_NAME_LENGTH:
            return made
        if len(self._decisions) >= MAX_KEPT_DECISIONS:
            self._decisions.clear()
        self._decisions[key] = made
        return made

    def _decide(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> Decision:
        text = str(principal)
        if text in self._super_users:
            return SUPER_USER
        self._require_loaded()
        host = acl_host(host)
        allowed: Acl | None = None
        has_acls = False
        implied_by = _IMPLIED_BY.get(operation, frozenset((ALL_OPERATIONS, operation)))
        for acl in self._patterns.get(resource_type, _NO_PATTERNS).matching(name):
            has_acls = True
            if acl.principal not in (text, EVERYONE) or acl.host not in (host, WILDCARD):
                continue
            if acl.permission_type == Permission.ALLOW:
                if acl.operation in implied_by:
                    allowed = acl
            elif acl.operation in (ALL_OPERATIONS, operation):
                return Decision(is_allowed=False, rule="", acl=acl)
        if allowed is not None:
            return Decision(is_allowed=True, rule="", acl=allowed)
        return DEFAULT_DENY if has_acls else self._rule_without_acls

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether a principal may perform an operation on at least one resource of a type. KIP-679.

        As in Apache Kafka, no operation implies another one here, and if a resource without ACLs is allowed,
        any resource is. Raises ApiError if the ACLs are not loaded.
        """
        key = principal, host, operation, resource_type
        kept = self._any_decisions.get(key)
        if kept is None:
            if len(self._any_decisions) >= MAX_KEPT_DECISIONS:
                self._any_decisions.clear()
            kept = self._any_decisions[key] = self._allows_any(principal, host, operation, resource_type)
        return kept

    def _allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        # Apache Kafka asks for this name first, for super users and for resources without ACLs.
        if self.allows(principal, host, operation, resource_type, ANY_NAME):
            return True
        denied: dict[int, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        allowed: dict[int, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        everywhere = PatternType.LITERAL, WILDCARD
        host = acl_host(host)
        is_everything_allowed = False
        for acl in self._patterns.get(resource_type, _NO_PATTERNS).all():
            if (
                acl.principal not in (str(principal), EVERYONE)
                or acl.host not in (host, WILDCARD)
                or acl.operation not in (operation, ALL_OPERATIONS)
            ):
                continue
            is_everything = (acl.pattern_type, acl.resource_name) == everywhere
            if acl.permission_type == Permission.DENY:
                if is_everything:
                    return False
                denied[acl.pattern_type].add(acl.resource_name)
            elif is_everything:
                is_everything_allowed = True
            else:
                allowed[acl.pattern_type].add(acl.resource_name)
        if is_everything_allowed:
            return True
        names = (allowed[PatternType.LITERAL] - denied[PatternType.LITERAL]) | allowed[PatternType.PREFIXED]
        return any(
            not any(name[:length] in denied[PatternType.PREFIXED] for length in range(1, len(name) + 1))
            for name in names
        )

    def _require_loaded(self) -> None:
        if not self._is_loaded:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
