"""A broker with an authorizer, users and ACLs, and clients of its HTTP port."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from kwire.broker.config.jaas import PLAIN_MODULE, SCRAM_MODULE
from kwire.broker.security.acl import Acl, PatternType, Permission
from kwire.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from kwire.broker.security.settings import Credentials
from kwire.cli.shared.client_settings import ClientSettings, servers_of
from kwire.cli.shared.command_client import CommandClient
from kwire.client.acls import create_acls
from kwire.client.security import Security
from kwire.client.users import set_password
from kwire.wire.mechanisms import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from tests.broker.observe.conftest import ObservedNode, serve_observed

T = TypeVar("T")

ADMIN = "admin", "admin-secret"
PLAIN_USERS = f'username="node" password="node-secret" user_node="node-secret" user_{ADMIN[0]}="{ADMIN[1]}"'
READER, WRITER, STRANGER = ("reader", "pässword: 1"), ("writer", "writer-secret"), ("stranger", "its-secret")
"""Users with a SCRAM credential. The password of the first one has characters that need an encoding."""
DELAY_MS = 50


def authorized_settings(
    listeners: str, protocols: str, mechanisms: Sequence[str] = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)
) -> dict[str, str]:
    """Return the settings of a broker with an authorizer, whose first listener must be USERS."""
    names = [listener.partition(":")[0] for listener in listeners.split(",")]
    settings = {
        "listeners": listeners,
        "listener.security.protocol.map": protocols,
        "inter.broker.listener.name": names[0],
        "sasl.enabled.mechanisms": ",".join(mechanisms),
        "sasl.mechanism.inter.broker.protocol": PLAIN,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN[0]};User:node",
        "connection.failed.authentication.delay.ms": str(DELAY_MS),
        "num.partitions": "1",
        "offsets.topic.num.partitions": "1",
    }
    for name in names:
        for mechanism in mechanisms:
            users = f"{PLAIN_MODULE} required {PLAIN_USERS};"
            jaas = users if mechanism == PLAIN else f"{SCRAM_MODULE} required;"
            settings[f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"] = jaas
    return settings


SASL_ONLY = authorized_settings("USERS://127.0.0.1:0", "USERS:SASL_PLAINTEXT")
WITH_PLAINTEXT = authorized_settings(
    "USERS://127.0.0.1:0,OPEN://127.0.0.1:0", "USERS:SASL_PLAINTEXT,OPEN:PLAINTEXT"
)


def allow(user: str, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> Acl:
    """Return an ACL that allows an operation on the resource."""
    return Acl(resource_type, name, PatternType.LITERAL, operation, f"User:{user}", "*", Permission.ALLOW)


async def as_admin(
    node: ObservedNode, work: Callable[[CommandClient], T], tls: ssl.SSLContext | None = None
) -> T:
    """Call `work` with a client of the super user, in another thread."""

    def call() -> T:
        server = next(one for one in node.running.server.listeners if one.name == "USERS")
        security = Security(tls, Credentials(PLAIN, *ADMIN))
        with CommandClient(ClientSettings(servers_of(server.address), security=security)) as client:
            return work(client)

    return await trio.to_thread.run_sync(call)


def add_users(cluster: CommandClient) -> None:
    """Create the users, in different mechanisms."""
    set_password(cluster, *READER, SCRAM_SHA_256)
    set_password(cluster, *WRITER, SCRAM_SHA_512)
    set_password(cluster, *STRANGER, SCRAM_SHA_256)


@asynccontextmanager
async def serve_authorized(
    settings: dict[str, str],
    acls: Sequence[Acl] = (),
    *,
    console: bool = False,
    address: str = "0",
    tls: ssl.SSLContext | None = None,
    tls_listener: str = "",
) -> AsyncIterator[ObservedNode]:
    """Run a broker with the users and these ACLs until the block ends."""
    async with serve_observed(
        settings,
        address,
        console=console,
        tls_listener=tls_listener,
        client_context=tls if tls_listener else None,
    ) as node:
        await as_admin(node, add_users, tls)
        await as_admin(node, lambda cluster: create_acls(cluster, acls), tls)
        yield node
