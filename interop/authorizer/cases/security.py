"""ACLs and delegation tokens."""

from __future__ import annotations

from interop.authorizer.case import Case, add
from interop.authorizer.rights import cluster, token, user
from interop.authorizer.tokens import make_token
from interop.authorizer.world import World
from interop.scenarios.raw_acls import acl_filter, creation
from interop.wire import Fields

BOTH = ("broker", "controller")
INVALID_CREATIONS: dict[str, Fields] = {
    "no colon": {"Principal": "alice"},
    "empty principal": {"Principal": ""},
    "no principal name": {"Principal": "User:"},
    "no principal type": {"Principal": ":alice"},
    "group principal": {"Principal": "Group:alice"},
    "empty name": {"ResourceName": ""},
    "empty host": {"Host": ""},
    "other cluster": {"ResourceType": 4, "ResourceName": "other"},
    "every cluster": {"ResourceType": 4, "ResourceName": "*"},
    "wildcard, prefixed": {"ResourceName": "*", "ResourcePatternType": 4},
    "match": {"ResourcePatternType": 2},
    "any operation": {"Operation": 1},
    "operation of another type": {"Operation": 13},
    "operation 16": {"Operation": 16},
    "any permission": {"PermissionType": 1},
    "user": {"ResourceType": 7, "ResourceName": "carol"},
    "slash": {"ResourceName": "a/b"},
    **{
        f"no {field}": {field: 0}
        for field in ("ResourceType", "ResourcePatternType", "Operation", "PermissionType")
    },
}
UNMATCHED = {"PrincipalFilter": "User:unknown", "ResourceNameFilter": "nothing"}


def creations(*changes: Fields) -> Fields:
    return {
        "Creations": [creation(ResourceName="other", Principal="User:carol") | change for change in changes]
    }


def remove_carol(world: World) -> None:
    """Delete what the requests have created, which `World.set_acls` does not know."""
    any_acl = {"ResourceTypeFilter": 1, "ResourceNameFilter": None, "PatternTypeFilter": 1, "Operation": 1}
    principals = ("User:carol", "Group:alice", "alice", "", "User:", ":alice")
    filters = [acl_filter(**any_acl, PermissionType=1, PrincipalFilter=one) for one in principals]
    world.call("DeleteAcls", 3, Filters=filters)


def owners(*names: str) -> list[Fields]:
    return [{"PrincipalType": "User", "PrincipalName": name} for name in names]


def created(owner: str, **fields: object) -> Fields:
    return {
        "OwnerPrincipalType": "User" if owner else None,
        "OwnerPrincipalName": owner or None,
        "Renewers": [],
        "MaxLifetimeMs": 0,
        **fields,
    }


add(
    Case(
        "DescribeAcls",
        {
            "some": acl_filter(**UNMATCHED),
            "invalid": acl_filter(**UNMATCHED, PatternTypeFilter=0),
            "empty name": acl_filter(PrincipalFilter="User:unknown", ResourceNameFilter=""),
            "mine": acl_filter(
                ResourceTypeFilter=1,
                ResourceNameFilter=None,
                PatternTypeFilter=1,
                Operation=1,
                PermissionType=1,
            ),
        },
        (cluster("DESCRIBE"),),
        on=BOTH,
    ),
    Case(
        "CreateAcls",
        {"one": creations({}), "no colon": creations({}, INVALID_CREATIONS["no colon"])},
        (cluster("ALTER"),),
        on=BOTH,
        before=remove_carol,
    ),
    Case(
        "CreateAcls",
        {name: creations({}, change) for name, change in INVALID_CREATIONS.items()},
        more={"ALTER": (cluster("ALTER"),)},
        versions=(3,),
        on=BOTH,
        before=remove_carol,
    ),
    Case(
        "DeleteAcls",
        {
            "none": {"Filters": [acl_filter(**UNMATCHED)]},
            "two": {"Filters": [acl_filter(**UNMATCHED), acl_filter(**UNMATCHED, PatternTypeFilter=2)]},
            "empty": {"Filters": []},
            "invalid": {"Filters": [acl_filter(**UNMATCHED, PatternTypeFilter=0)]},
        },
        (cluster("ALTER"),),
        on=BOTH,
    ),
    Case(
        "RenewDelegationToken",
        {
            "own": lambda world: {"Hmac": make_token(world, "alice")["Hmac"], "RenewPeriodMs": 3_600_000},
            "another": lambda world: {"Hmac": make_token(world, "bob")["Hmac"], "RenewPeriodMs": 3_600_000},
            "missing": {"Hmac": b"nothing", "RenewPeriodMs": -1},
        },
        (user("CREATE_TOKENS", "User:bob"),),
        on=BOTH,
    ),
    Case(
        "ExpireDelegationToken",
        {
            "own": lambda world: {
                "Hmac": make_token(world, "alice")["Hmac"],
                "ExpiryTimePeriodMs": 3_600_000,
            },
            "another": lambda world: {
                "Hmac": make_token(world, "bob")["Hmac"],
                "ExpiryTimePeriodMs": 3_600_000,
            },
            "missing": {"Hmac": b"nothing", "ExpiryTimePeriodMs": -1},
        },
        (user("CREATE_TOKENS", "User:bob"),),
        on=BOTH,
    ),
    Case(
        "DescribeDelegationToken",
        {
            "all": {"Owners": None},
            "some": {"Owners": owners("bob", "alice")},
            "none": {"Owners": []},
        },
        (user("DESCRIBE_TOKENS", "User:bob"),),
        on=BOTH,
        before=lambda world: (make_token(world, "alice"), make_token(world, "bob"), None)[2],
        more={"another token": (token("DESCRIBE", "another"),), "every token": (token("DESCRIBE", "*"),)},
    ),
    # After the others, whose tokens it would add to.
    Case(
        "CreateDelegationToken",
        {
            "own": created(""),
            "for bob": created("bob"),
            "for alice": created("alice"),
            "renewer of another type": created(
                "bob", Renewers=[{"PrincipalType": "Group", "PrincipalName": "a"}]
            ),
        },
        (user("CREATE_TOKENS", "User:bob"),),
        versions=(1, 3),
        only={"for bob": (3,), "for alice": (3,)},
        on=BOTH,
    ),
)
