"""Random frames to a SASL listener: no client authenticates, and the node keeps working."""

from __future__ import annotations

import random

import pytest

from kwire.broker.security.principal import ANONYMOUS
from kwire.testing.virtual_node import VirtualClient, VirtualNode
from kwire.wire.errors import WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest
from kwire.wire.registry import encode_request
from tests.broker.api.security.test_sasl_session import DELAY_MS, LISTENER, SETTINGS

CONNECTIONS = 1_500
MAX_FRAMES = 6
MECHANISMS = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", ""
TOKENS = (
    b"",
    b"\0alice\0guessed",
    b"\0\0",
    b"alice\0alice\0",
    b"n,,n=alice,r=nonce",
    b"n,,n=alice,r=nonce,tokenauth=true",
    b"c=biws,r=nonce,p=AAAA",
)


def random_frame(rng: random.Random) -> bytes:
    """Return a frame that resembles those of authentication, with its size prefix."""
    kind = rng.randrange(6)
    if kind == 0:
        return encode_request(ApiVersionsRequest(), rng.randrange(3), 1, "me")
    if kind == 1:
        return encode_request(MetadataRequest(topics=[]), rng.randrange(4, 13), 1, "me")
    if kind == 2:
        token = rng.choice(TOKENS)
        return len(token).to_bytes(4, "big") + token
    if kind == 3:
        request = SaslAuthenticateRequest(auth_bytes=rng.choice(TOKENS))
        return encode_request(request, rng.randrange(3), 1, "me")
    return encode_request(SaslHandshakeRequest(mechanism=rng.choice(MECHANISMS)), rng.randrange(2), 1, "me")


def mutate(frame: bytes, rng: random.Random) -> bytes:
    """Return the frame with a few changed bytes, or without its end."""
    data = bytearray(frame)
    if rng.random() < 0.2:
        del data[rng.randrange(4, len(data) + 1) :]
    elif len(data) > 4 and rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(4, len(data))] = rng.randrange(256)
    return bytes(data)


def send_random_frames(client: VirtualClient, rng: random.Random) -> None:
    for _ in range(rng.randint(1, MAX_FRAMES)):
        if client.channel.closing or client.channel.ending:
            return  # the socket server reads nothing more
        client.submit_frame(mutate(random_frame(rng), rng))
        client.take_bytes()


def test_random_frames_never_authenticate(caplog: pytest.LogCaptureFixture) -> None:
    node = VirtualNode(
        {
            **SETTINGS,
            f"listener.name.{LISTENER.lower()}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            **{
                f"listener.name.{LISTENER.lower()}.{mechanism}.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                )
                for mechanism in ("scram-sha-256", "scram-sha-512")
            },
        }
    )
    rng = random.Random(1)
    broken = 0
    for _ in range(CONNECTIONS):
        client = node.connect(LISTENER)
        try:
            send_random_frames(client, rng)
        except WireError:
            broken += 1
        assert client.channel.principal == ANONYMOUS
        node.host.advance(DELAY_MS)
        client.take_bytes()
        node.node.channel_closed(client.channel)
    assert node.node.sessions is not None
    counts = node.node.sessions.counts[LISTENER]
    assert counts.successful_authentication == 0
    assert counts.failed_authentication > CONNECTIONS // 20
    assert broken > CONNECTIONS // 20
    assert not [one for one in caplog.records if one.levelname in ("ERROR", "CRITICAL")]
