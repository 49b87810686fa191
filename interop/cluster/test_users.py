"""Users and delegation tokens, created through one broker and valid on all brokers (KIP-48, KIP-554)."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from interop.cluster.logins import PLAIN, SCRAM, logins
from interop.cluster.nodes import CLUSTER_KINDS, Cluster, wait_until
from interop.sasl import Talk
from interop.scenarios.raw_delegation_tokens import SECRET, TokenClient, scram_exchange, token_password
from interop.scenarios.raw_scram_credentials import SHA_256, alter, deletion, salted, upsertion

USER, USERS_SECRET = "carol", "a secret of carol's"
OWNER_MISMATCH = 63


class Users:
    """A cluster, and for each broker a connection that is authenticated as alice."""

    def __init__(self, cluster: Cluster, alices: list[TokenClient]) -> None:
        self.addresses = [cluster.nodes[node_id].bootstrap for node_id in cluster.brokers]
        self.alices = alices

    def can_authenticate(self, name: str, secret: str, extensions: str = "") -> list[bool]:
        """Try to authenticate on each broker. Return for each broker whether the user could authenticate."""
        found = []
        for address in self.addresses:
            with Talk(address) as talk:
                found.append(scram_exchange(talk, SCRAM, name, secret, extensions)[0] == "in")
        return found

    def tokens_by(self, alice: TokenClient, another: TokenClient) -> None:
        """Create tokens as `alice`, use them on all brokers, and expire them as `another`.

        Both are clients of the user alice, connected to different brokers.
        """
        zoes, own = alice.create(owner="zoe"), alice.create()
        assert (zoes["ErrorCode"], zoes["TokenRequesterPrincipalName"]) == (0, "alice")
        wait_until(
            lambda: all(one.is_known(own["Hmac"]) for one in self.alices), "a broker does not hear of a token"
        )
        shown = own["TokenId"], token_password(own), ",tokenauth=true"
        assert all(self.can_authenticate(*shown))
        assert another.renew(zoes["Hmac"])["ErrorCode"] == OWNER_MISMATCH
        assert another.renew(own["Hmac"], 60_000)["ErrorCode"] == 0
        assert another.expire(own["Hmac"])["ErrorCode"] == 0
        wait_until(lambda: not any(self.can_authenticate(*shown)), "a token is taken that has ended")

    def passwords_by(self, alice: TokenClient) -> None:
        """Set and delete a password through the broker of `alice`, and check its validity on all brokers."""
        given = upsertion(USER, SHA_256, SaltedPassword=salted(SCRAM, USERS_SECRET))
        assert alter(alice.client, [], [given])["Results"][0]["ErrorCode"] == 0
        wait_until(lambda: all(self.can_authenticate(USER, USERS_SECRET)), "a broker does not hear of a user")
        assert alter(alice.client, [deletion(USER)], [])["Results"][0]["ErrorCode"] == 0
        wait_until(
            lambda: not any(self.can_authenticate(USER, USERS_SECRET)),
            "a password is taken that is none any more",
        )


@pytest.mark.parametrize("cluster_kind", CLUSTER_KINDS)
def test_users_and_tokens_reach_every_broker(cluster_kind: str) -> None:
    """Check that brokers forward the principal to the controller, and that changes reach all brokers."""
    with (
        Cluster(CLUSTER_KINDS[cluster_kind], SECRET, logins=logins(SCRAM, PLAIN)).start() as cluster,
        ExitStack() as stack,
    ):
        addresses = [cluster.nodes[node_id].bootstrap for node_id in cluster.brokers]
        alices = [TokenClient(stack.enter_context(cluster.connect(address))) for address in addresses]
        users = Users(cluster, alices)
        for number, alice in enumerate(alices):
            users.tokens_by(alice, alices[number - 1])
            users.passwords_by(alice)
        cluster.check_logs()
