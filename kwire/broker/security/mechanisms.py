"""Creation of the server side and the client side of a SASL exchange, by the name of the mechanism."""

from __future__ import annotations

import random

from kwire.broker.config.sasl import ListenerSasl
from kwire.broker.security.plain import PlainClient, PlainServer
from kwire.broker.security.sasl import SaslClient, SaslServer
from kwire.broker.security.scram import ScramClient, ScramServer, new_nonce
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS
from kwire.broker.security.settings import Credentials
from kwire.broker.security.users import Users
from kwire.wire.mechanisms import PLAIN


def sasl_server(mechanism: str, security: ListenerSasl, users: Users, rng: random.Random) -> SaslServer:
    """Create the server side of one exchange. The listener with `security` must have enabled `mechanism`."""
    if mechanism == PLAIN:
        return PlainServer(security.plain_users)
    return ScramServer(SCRAM_MECHANISMS[mechanism], users, new_nonce(rng))


def sasl_client(credentials: Credentials, rng: random.Random) -> SaslClient:
    """Create the client side of one exchange, which authenticates with these credentials."""
    mechanism, username, password, is_token = credentials
    if mechanism == PLAIN:
        return PlainClient(username, password)
    return ScramClient(SCRAM_MECHANISMS[mechanism], username, password, new_nonce(rng), is_token=is_token)
