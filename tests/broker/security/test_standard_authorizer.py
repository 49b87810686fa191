"""The authorizer, compared with a scan of all ACLs. `interop/test_authorizations.py` uses Kafka's class."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from kwire.broker.config.authorizer import authorizer_settings, super_users
from kwire.broker.config.definition import ConfigError
from kwire.broker.security.acl import ALL_OPERATIONS, ANY, Acl, AclFilter, PatternType, Permission
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.security.principal import Principal
from kwire.broker.security.standard_authorizer import (
    MAX_KEPT_DECISIONS,
    MAX_KEPT_NAME_LENGTH,
    StandardAuthorizer,
)
from kwire.wire.errors import ApiError, ErrorCode

ALICE, BOB, ADMIN = (Principal("User", name) for name in ("alice", "bob", "admin"))
HERE, THERE = "127.0.0.1", "10.0.0.1"
NAMES: Final = ("*", "k", "k1", "k12", "k12a", "k12bar", "kb", "g")
TOPIC = ResourceType.TOPIC


def acl(
    name: str,
    operation: int = Operation.READ,
    principal: str = "User:alice",
    *,
    host: str = "*",
    pattern_type: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(TOPIC, name, pattern_type, operation, principal, host, permission)


def authorizer(*acls: Acl, allows_without_acls: bool = False) -> StandardAuthorizer:
    empty = StandardAuthorizer(frozenset({"User:admin"}), allows_without_acls=allows_without_acls)
    return empty.changed(added=acls)


def scan(
    acls: set[Acl],
    principal: Principal,
    host: str,
    operation: Operation,
    name: str,
    *,
    allows_without_acls: bool = True,
) -> bool:
    """Decide by a look at each ACL, for a name that does not begin with the wildcard."""
    matching = [
        one
        for one in acls
        if (
            name.startswith(one.resource_name)
            if one.pattern_type == PatternType.PREFIXED
            else one.resource_name in (name, "*")
        )
    ]
    implied = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }.get(operation, set())
    permissions = {
        one.permission_type
        for one in matching
        if one.principal in ("User:*", str(principal))
        and one.host in ("*", host)
        and (
            one.operation in (ALL_OPERATIONS, operation)
            or (one.permission_type == Permission.ALLOW and one.operation in implied)
        )
    }
    if Permission.DENY in permissions:
        return False
    return Permission.ALLOW in permissions or (allows_without_acls and not matching)


@pytest.mark.parametrize("seed", range(40))
def test_decisions_are_those_of_a_scan_after_random_changes(seed: int) -> None:
    random = Random(seed)
    acls: set[Acl] = set()
    changing = authorizer(allows_without_acls=True)
    for _ in range(60):
        removed = random.sample(sorted(acls), min(len(acls), random.randrange(3)))
        added = {
            acl(
                random.choice(NAMES),
                random.choice((ALL_OPERATIONS, *Operation)),
                random.choice(("User:alice", "User:bob", "User:*")),
                host=random.choice(("*", HERE)),
                pattern_type=random.choice((PatternType.LITERAL, PatternType.PREFIXED)),
                permission=random.choice(tuple(Permission)),
            )
            for _ in range(random.randrange(3))
        }
        acls = (acls - set(removed)) | added
        changing = changing.changed([one for one in removed if one not in added], added)
        fresh = authorizer(*acls, allows_without_acls=True)
        for _ in range(20):
            asked = (
                random.choice((ALICE, BOB)),
                random.choice((HERE, THERE)),
                random.choice(tuple(Operation)),
            )
            name = random.choice(NAMES[1:]) + random.choice(("", "bar"))
            expected = scan(acls, *asked, name)
            assert changing.allows(*asked, TOPIC, name) is expected
            assert fresh.allows(*asked, TOPIC, name) is expected


def test_a_changed_authorizer_leaves_the_old_one_as_it_was() -> None:
    old = authorizer(acl("t"))
    new = old.changed(removed=[acl("t")])
    assert old.allows(ALICE, HERE, Operation.READ, TOPIC, "t")
    assert not new.allows(ALICE, HERE, Operation.READ, TOPIC, "t")


def test_a_super_user_comes_before_acls_that_deny() -> None:
    denies = acl("t", ALL_OPERATIONS, "User:*", permission=Permission.DENY)
    allows = acl("t", Operation.READ)
    rules = authorizer(denies, allows)
    assert rules.allows(ADMIN, HERE, Operation.READ, TOPIC, "t")
    assert not rules.allows(ALICE, HERE, Operation.READ, TOPIC, "t")
    assert rules.allows_any(ADMIN, HERE, Operation.READ, TOPIC)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::a0", "2001:db8:0:0:0:0:0:a0"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_the_host_of_an_acl_is_the_address_in_the_form_of_java(address: str, host: str) -> None:
    rules = authorizer(acl("t", host=host))
    assert rules.allows(ALICE, address, Operation.READ, TOPIC, "t")
    assert not rules.allows(ALICE, "10.0.0.9", Operation.READ, TOPIC, "t")


def test_only_super_users_pass_before_the_acls_are_loaded() -> None:
    loading = authorizer().changed(added=[acl("t")], is_loaded=False)
    assert loading.allows(ADMIN, HERE, Operation.ALTER, TOPIC, "t")
    assert loading.allows_any(ADMIN, HERE, Operation.WRITE, TOPIC)
    with pytest.raises(ApiError) as raised:
        loading.allows(ALICE, HERE, Operation.READ, TOPIC, "t")
    assert raised.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(ApiError):
        loading.allows_any(ALICE, HERE, Operation.READ, TOPIC)
    assert loading.changed().allows(ALICE, HERE, Operation.READ, TOPIC, "t")


def test_the_kept_decisions_are_bounded() -> None:
    one = authorizer(acl("t", pattern_type=PatternType.PREFIXED))
    for number in range(MAX_KEPT_DECISIONS + 10):
        assert one.allows(ALICE, HERE, Operation.READ, TOPIC, f"t{number}")
    assert len(one._decisions) <= MAX_KEPT_DECISIONS


def test_decisions_about_long_names_are_not_kept() -> None:
    """Otherwise 20,000 invented names of groups would take 650 MB."""
    one = authorizer(acl("t", pattern_type=PatternType.PREFIXED))
    for length in (MAX_KEPT_NAME_LENGTH, MAX_KEPT_NAME_LENGTH + 1):
        assert one.allows(ALICE, HERE, Operation.READ, TOPIC, "t" * length)
    assert [len(key[-1]) for key in one._decisions] == [MAX_KEPT_NAME_LENGTH]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], False),
        ([acl("t", Operation.WRITE)], True),
        ([acl("t", Operation.READ)], False),
        ([acl("t", ALL_OPERATIONS)], True),
        ([acl("t", Operation.WRITE, host=THERE)], False),
        ([acl("t", Operation.WRITE, "User:*")], True),
        ([acl("t", Operation.WRITE), acl("*", Operation.WRITE, permission=Permission.DENY)], False),
        ([acl("t", Operation.WRITE), acl("t", Operation.WRITE, permission=Permission.DENY)], False),
        (
            [
                acl("team-a", Operation.WRITE),
                acl(
                    "team",
                    Operation.WRITE,
                    pattern_type=PatternType.PREFIXED,
                    permission=Permission.DENY,
                ),
            ],
            False,
        ),
    ],
)
def test_write_on_any_topic(rules: list[Acl], expected: bool) -> None:
    assert authorizer(*rules).allows_any(ALICE, HERE, Operation.WRITE, TOPIC) is expected


def test_write_on_any_topic_is_allowed_if_topics_without_acls_are() -> None:
    denies = acl("t", ALL_OPERATIONS, permission=Permission.DENY)
    for rules, expected in (((), True), ((denies,), True), ((denies._replace(resource_name="*"),), False)):
        open_to_all = authorizer(*rules, allows_without_acls=True)
        assert open_to_all.allows_any(ALICE, HERE, Operation.WRITE, TOPIC) is expected


def test_texts_of_the_rules_are_those_of_kafka() -> None:
    deny = acl("t", permission=Permission.DENY)
    one = authorizer(deny)
    texts = [
        str(one.decide(principal, HERE, Operation.READ, TOPIC, name))
        for principal, name in ((ADMIN, "t"), (ALICE, "t"), (BOB, "t"), (BOB, "u"))
    ]
    assert texts == [
        "SuperUser",
        "MatchingAcl(acl=StandardAcl[resourceType=TOPIC, resourceName=t, patternType=LITERAL, "
        "principal=User:alice, host=*, operation=READ, permissionType=DENY])",
        "DefaultDeny",
        "DefaultDeny",
    ]
    assert str(authorizer(allows_without_acls=True).decide(BOB, HERE, Operation.READ, TOPIC, "u")) == (
        "DefaultAllow"
    )


@pytest.mark.parametrize(
    ("name", "pattern_type", "matched"),
    [
        (None, ANY, ["t", "te", "*"]),
        ("test", PatternType.MATCH, ["te", "*"]),
        ("t", PatternType.MATCH, ["t", "*"]),
        ("t", ANY, ["t"]),
        ("te", PatternType.PREFIXED, ["te"]),
        ("te", PatternType.LITERAL, []),
    ],
)
def test_filters(name: str | None, pattern_type: int, matched: list[str]) -> None:
    acls = [acl("t"), acl("te", pattern_type=PatternType.PREFIXED), acl("*")]
    chosen = AclFilter(ANY, name, pattern_type, ANY, None, None, ANY)
    assert [one.resource_name for one in acls if chosen.matches(one)] == matched


def test_settings() -> None:
    name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    given = {
        "authorizer.class.name": name,
        "super.users": " User:a ;;Group:b:c",
        "allow.everyone.if.no.acl.found": "True",
    }
    assert authorizer_settings(given) == (frozenset({"User:a", "Group:b:c"}), True)
    assert authorizer_settings({"super.users": "User:a"}) is None
    with pytest.raises(ConfigError, match="alice must have the form User:name"):
        super_users({"super.users": "alice"})
