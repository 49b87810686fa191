"""Decisions from random ACLs, which change between them, compared with Apache Kafka's StandardAuthorizer."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

from interop.java_outputs import java_outputs
from kwire.broker.config.authorizer import super_users
from kwire.broker.security.acl import ALL_OPERATIONS, Acl, PatternType, Permission
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.security.delegation_tokens import parse_principal
from kwire.broker.security.standard_authorizer import StandardAuthorizer

SEED: Final = 801
CASES: Final = 600
STEPS: Final = 80
NAMES: Final = ("*", "k", "k1", "k12", "k12a", "k12b", "k12bar", "kb", "gar", "hardcode", "!", "é", "日本")
PRINCIPALS: Final = ("User:alice", "User:bob", "User:*", "Group:alice", "User:CN=a, O=b")
CLIENTS: Final = tuple(one for one in PRINCIPALS if one != "User:*")
"""Apache Kafka fails for a client with the name that matches everyone."""
HOSTS: Final = ("127.0.0.1", "10.0.0.1", "::1", "2001:db8::a0", "::ffff:10.0.0.1")
ACL_HOSTS: Final = ("*", "127.0.0.1", "10.0.0.1", "0:0:0:0:0:0:0:1", "::1", "2001:db8:0:0:0:0:0:a0")
OPERATIONS: Final = tuple(Operation)[:10]
TYPES: Final = (ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP)


class RandomCase:
    """A case with few names, so that ACLs often match, and the decisions of kwire."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        self._acls: dict[int, Acl] = {}
        self._next_id = 0
        self.settings = {
            "super.users": random.choice(("", "User:bob", "Group:alice;User:CN=a, O=b ;;")),
            "allow.everyone.if.no.acl.found": random.choice(("true", "false", " TRUE")),
        }
        allows = self.settings["allow.everyone.if.no.acl.found"] != "false"
        authorizer = StandardAuthorizer(super_users(self.settings), allows_without_acls=allows)
        for _ in range(random.choice((0, 3, 12))):
            self._new()
        self.snapshot = list(self._acls.items())
        self._authorizer = authorizer.changed(added=self._acls.values())
        self.steps: list[list[Any]] = []
        self.decisions = "".join(self._step() for _ in range(STEPS))

    def _new(self) -> tuple[int, Acl] | None:
        choose = self._random.choice
        acl = Acl(
            choose(TYPES),
            choose(NAMES),
            choose((PatternType.LITERAL, PatternType.PREFIXED)),
            choose((ALL_OPERATIONS, *OPERATIONS)),
            choose(PRINCIPALS),
            choose(ACL_HOSTS),
            choose((Permission.DENY, Permission.ALLOW, Permission.ALLOW)),
        )
        if acl in self._acls.values():
            return None
        self._next_id += 1
        self._acls[self._next_id] = acl
        return self._next_id, acl

    def _step(self) -> str:
        choose = self._random.choice
        kind = self._random.random()
        if kind < 0.1:
            made = self._new()
            if made is not None:
                self._authorizer = self._authorizer.changed(added=[made[1]])
                self.steps.append(["add", *made])
            return ""
        if kind < 0.2 and self._acls:
            number = choose(list(self._acls))
            self._authorizer = self._authorizer.changed(removed=[self._acls.pop(number)])
            self.steps.append(["remove", number])
            return ""
        text = choose(CLIENTS)
        principal = parse_principal(text)
        host, operation, resource_type = choose(HOSTS), choose(OPERATIONS), choose(TYPES)
        if kind < 0.3:
            self.steps.append(["any", text, host, operation, resource_type])
            return str(int(self._authorizer.allows_any(principal, host, operation, resource_type)))
        name = choose(NAMES) + choose(("", "", "x", "bar"))
        self.steps.append(["ask", text, host, operation, resource_type, name])
        return str(int(self._authorizer.allows(principal, host, operation, resource_type, name)))


def test_decisions() -> None:
    cases = [RandomCase(SEED + number) for number in range(CASES)]
    questions = [
        json.dumps({"settings": case.settings, "snapshot": case.snapshot, "steps": case.steps})
        for case in cases
    ]
    for case, expected in zip(cases, java_outputs("Authorizations", questions), strict=True):
        assert case.decisions == expected, case.steps
    found = "".join(case.decisions for case in cases)
    assert min(found.count("0"), found.count("1")) > len(found) // 10
