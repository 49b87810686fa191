"""Delegation tokens of the users."""

from __future__ import annotations

from interop.authorizer.world import World, token_of, until
from interop.wire import Fields


def make_token(world: World, owner: str) -> Fields:
    """Return the token of a user. The super user creates it once."""
    kept = world.values.get(token_of(owner))
    if kept is None:
        kept = world.call(
            "CreateDelegationToken",
            3,
            OwnerPrincipalType="User",
            OwnerPrincipalName=owner,
            Renewers=[{"PrincipalType": "User", "PrincipalName": "admin"}],
            MaxLifetimeMs=-1,
        )
        assert not kept["ErrorCode"], kept
        world.values[token_of(owner)] = kept
        until(
            lambda: any(
                one["TokenId"] == kept["TokenId"]
                for one in world.call("DescribeDelegationToken", 3, Owners=None)["Tokens"]
            ),
            f"the token of {owner} is not described",
        )
    return kept
