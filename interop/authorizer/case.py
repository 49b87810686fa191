"""A case of the matrix: the requests of one API, and the rights that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from interop.authorizer.rights import ALICE, ANONYMOUS, Rights, right_sets
from interop.authorizer.world import BY_TOKEN, World
from interop.wire import Fields, versions_of

SETS_BY_TOKEN: Final = frozenset({"none", "all"})
"""The sets of ACLs with which a client with a delegation token sends the requests, too."""

Request = Fields | Callable[[World], Fields]


@dataclass(frozen=True)
class Case:
    """Requests of one API, each sent in some versions, with different sets of ACLs."""

    api: str
    requests: Mapping[str, Request]
    """The requests by label. A function gets the broker, and returns a request with its ids."""
    needs: Rights = ()
    """The rights that the request needs, or may need."""
    versions: tuple[int, ...] = ()
    """The versions of the request. Default: the lowest and the highest."""
    on: tuple[str, ...] = ("broker",)
    """The listeners that get the requests."""
    more: Mapping[str, Rights] = field(default_factory=dict)
    """More sets of rights."""
    before: Callable[[World], None] | None = None
    """Prepares the broker for each request."""
    ordered: bool = False
    """Whether items are in a defined order. Apache Kafka returns most items in the order of a hash map."""
    only: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The versions of some of the requests."""

    def sets(self) -> dict[str, Rights]:
        return right_sets(self.needs) | dict(self.more)

    def versions_of(self, label: str) -> tuple[int, ...]:
        supported = versions_of(self.api)
        return self.only.get(label) or self.versions or tuple(dict.fromkeys((supported[0], supported[-1])))

    def observe(self, world: World) -> dict[str, Any]:
        """Return all responses of a broker."""
        seen: dict[str, Any] = {}
        for label, rights in self.sets().items():
            world.set_acls(rights)
            seen[label] = self._responses(world, "alice")
            if label in SETS_BY_TOKEN:
                seen[f"{label}, by token"] = self._responses(world, BY_TOKEN)
        world.set_acls(
            tuple(one._replace(principal=ANONYMOUS) for one in self.needs if one.principal == ALICE)
        )
        seen["not authenticated"] = self._responses(world, "")
        seen["super user"] = self._responses(world, "admin")
        return seen

    def _responses(self, world: World, name: str) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for listener in self.on:
            if listener == "controller" and not name:
                continue
            for label, request in self.requests.items():
                for version in self.versions_of(label):
                    if self.before is not None:
                        self.before(world)
                    fields = request(world) if callable(request) else request
                    world.audit_trail.skip()
                    response = world.outcome(listener, name, self.api, version, fields)
                    at = f"{listener} {label} v{version}" if len(self.on) > 1 else f"{label} v{version}"
                    seen[at] = response if self.ordered else in_order(response)
                    if name != "admin":  # the nodes themselves send requests as admin
                        # Apache Kafka may authorize the creation of a topic after the Metadata response.
                        logged = "CreateTopics" if self.api == "Envelope" else self.api
                        principal = f"User:{name or 'ANONYMOUS'}"
                        seen[f"{at}, audit log"] = world.audit_trail.read(principal, logged)
        return seen


def in_order(value: Any) -> Any:
    """Sort all lists in a response."""
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in value.items()}
    return sorted(map(in_order, value), key=repr) if isinstance(value, list) else value


CASES: dict[str, list[Case]] = {}
"""The cases by API."""


def add(*cases: Case) -> None:
    for case in cases:
        CASES.setdefault(case.api, []).append(case)
