"""SASL connections of a node: authentication, session lifetime and failures."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.api.security.sasl_session import MAX_REASON_LENGTH, AuthenticationCounts
from kwire.broker.config.jaas import SCRAM_MODULE
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.broker.security.scram import ScramClient
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS
from kwire.testing.virtual_node import VirtualClient, VirtualNode
from kwire.wire.errors import ErrorCode, WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.join_group import JoinGroupRequest
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest
from kwire.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.api.groups.client import join_request
from tests.node_harness import fetch_request

LISTENER, CONTROLLER = "SECURED", "CONTROLLER"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="node" password="x" user_node="x" user_alice="secret" user_bob="other";'
)
SETTINGS = {
    "log.dirs": "/data",
    "node.id": "1",
    "process.roles": "broker,controller",
    "listeners": "PLAINTEXT://one:9092,SECURED://one:9093,CONTROLLER://one:9094",
    "controller.listener.names": CONTROLLER,
    "controller.quorum.voters": "1@one:9094",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURED:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.secured.plain.sasl.jaas.config": JAAS,
    "listener.name.controller.plain.sasl.jaas.config": JAAS,
}
DELAY_MS = 100
RIGHT, WRONG, OTHER = b"\0alice\0secret", b"\0alice\0guessed", b"\0bob\0other"
SESSION_MS = 10_000


def node_with(**settings: str) -> VirtualNode:
    return VirtualNode({**SETTINGS, **{key.replace("_", "."): value for key, value in settings.items()}})


@pytest.fixture
def node() -> VirtualNode:
    return node_with()


@pytest.fixture
def session_node() -> VirtualNode:
    return node_with(connections_max_reauth_ms=str(SESSION_MS))


def counts(node: VirtualNode, listener: str = LISTENER) -> AuthenticationCounts:
    assert node.node.sessions is not None
    return node.node.sessions.counts[listener]


def connect(node: VirtualNode) -> VirtualClient:
    return node.connect(LISTENER)


def handshake(client: VirtualClient, version: int = 1) -> Any:
    return client.call(version, SaslHandshakeRequest(mechanism="PLAIN"))


def authenticate(client: VirtualClient, token: bytes) -> Any:
    """Send SaslAuthenticate with this token. Return the response, or None if the response is delayed."""
    client.send(2, SaslAuthenticateRequest(auth_bytes=token))
    return client.receive(2, SaslAuthenticateRequest)


def connect_authenticated(node: VirtualNode, token: bytes = RIGHT) -> VirtualClient:
    client = connect(node)
    handshake(client)
    assert authenticate(client, token).error_code == 0
    return client


def is_served(client: VirtualClient) -> bool:
    """Return whether a request is served; otherwise the connection is closed."""
    client.send(9, MetadataRequest(topics=[]))
    response = client.receive(9, MetadataRequest)
    assert response is not None or client.channel.closing
    return response is not None


def test_a_plaintext_listener_does_not_authenticate(node: VirtualNode) -> None:
    client = node.connect()
    assert client.channel.authentication is None
    assert is_served(client)
    assert client.channel.principal == ANONYMOUS
    assert node.node.sessions is None


def test_an_authenticated_client_is_served_as_its_principal(node: VirtualNode) -> None:
    client = connect(node)
    assert client.call(3, ApiVersionsRequest(client_software_name="a", client_software_version="1")).api_keys
    assert handshake(client).mechanisms == ["PLAIN"]
    assert client.channel.principal == ANONYMOUS
    response = authenticate(client, RIGHT)
    assert (response.error_code, response.session_lifetime_ms) == (0, 0)
    assert client.channel.principal == Principal(USER, "alice")
    assert client.channel.client_software_name == "a"
    assert is_served(client)
    node.host.advance(10 * SESSION_MS)
    assert is_served(client)
    assert counts(node).successful_authentication == 1
    assert counts(node).successful_authentication_no_reauth == 0


def test_a_controller_listener_authenticates(node: VirtualNode) -> None:
    client = node.connect(CONTROLLER, ListenerRole.CONTROLLER)
    handshake(client)
    assert authenticate(client, b"\0node\0x").error_code == 0
    assert client.channel.principal == Principal(USER, "node")
    assert counts(node, CONTROLLER).successful_authentication == 1


def test_no_request_is_served_before_authentication(node: VirtualNode) -> None:
    client = connect(node)
    with pytest.raises(WireError):
        client.send(9, MetadataRequest(topics=[]))
    assert counts(node).failed_authentication == 0, "Kafka does not count it either"


def test_raw_tokens_and_responses_are_prefixed_with_their_size(node: VirtualNode) -> None:
    client = connect(node)
    handshake(client, 0)
    client.submit_frame(len(RIGHT).to_bytes(4, "big") + RIGHT)
    assert client.take_bytes() == bytes(4)
    assert is_served(client)
    assert client.channel.principal == Principal(USER, "alice")
    assert counts(node).successful_authentication_no_reauth == 1


def test_a_failed_authentication_gets_its_error_after_the_delay(node: VirtualNode) -> None:
    client = connect(node)
    handshake(client)
    assert authenticate(client, WRONG) is None
    assert client.channel.ending, "the socket server reads nothing more"
    assert counts(node).failed_authentication == 1
    node.host.advance(DELAY_MS - 1)
    assert client.take_bytes() == b""
    node.host.advance(1)
    response = client.receive(2, SaslAuthenticateRequest)
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == "Authentication failed: Invalid username or password"
    assert client.channel.closing
    assert client.channel.principal == ANONYMOUS


def test_a_failed_raw_token_closes_the_connection_after_the_delay(node: VirtualNode) -> None:
    client = connect(node)
    handshake(client, 0)
    client.submit_frame(len(WRONG).to_bytes(4, "big") + WRONG)
    node.host.advance(DELAY_MS - 1)
    assert client.take_bytes() == b""
    assert not client.channel.closing
    node.host.advance(1)
    assert client.take_bytes() == b""
    assert client.channel.closing


def test_without_a_delay_a_failed_connection_closes_at_once() -> None:
    node = node_with(connection_failed_authentication_delay_ms="0")
    client = connect(node)
    handshake(client)
    authenticate(client, WRONG)
    node.host.advance(0)
    assert client.channel.closing or client.receive(2, SaslAuthenticateRequest).error_code
    assert client.channel.closing


def test_a_connection_closed_during_the_delay_is_dropped(node: VirtualNode) -> None:
    client = connect(node)
    handshake(client)
    authenticate(client, WRONG)
    node.node.channel_closed(client.channel)
    node.host.advance(DELAY_MS)
    assert client.take_bytes() == b""


def test_shutdown_sends_delayed_errors_at_once(node: VirtualNode) -> None:
    client = connect(node)
    handshake(client)
    authenticate(client, WRONG)
    node.node.begin_shutdown()
    assert client.receive(2, SaslAuthenticateRequest).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    node.host.advance(DELAY_MS)


def test_an_invalid_frame_size_fails_authentication_only_before_it_completes(node: VirtualNode) -> None:
    client = connect(node)
    authentication = client.channel.authentication
    assert authentication is not None
    assert client.channel.max_frame_bytes == 524_288
    assert authentication.fail_invalid_size(client.channel, "it is too large", node.host.now_ms())
    node.host.advance(DELAY_MS)
    assert client.take_bytes() == b""
    assert client.channel.closing
    assert counts(node).failed_authentication == 1
    client = connect_authenticated(node)
    authentication = client.channel.authentication
    assert authentication is not None
    assert not authentication.fail_invalid_size(client.channel, "it is too large", node.host.now_ms())
    assert client.channel.max_frame_bytes > 524_288


def test_an_expired_session_closes_the_connection(session_node: VirtualNode) -> None:
    node = session_node
    client = connect(node)
    handshake(client)
    assert authenticate(client, RIGHT).session_lifetime_ms == SESSION_MS
    node.host.advance(SESSION_MS)
    assert is_served(client)
    node.host.advance(1)
    assert not is_served(client)
    assert counts(node).expired_connections_killed == 1


def test_the_session_of_an_expired_token_ends_at_once() -> None:
    node = node_with(
        delegation_token_secret_key="secret",
        listener_name_secured_sasl_enabled_mechanisms="SCRAM-SHA-256",
        **{"listener.name.secured.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;"},
    )
    owner = node.connect(LISTENER, principal=Principal(USER, "alice"))
    created = owner.call(3, CreateDelegationTokenRequest(owner_principal_name="", max_lifetime_ms=1_000))
    assert created.error_code == 0
    node.host.advance(1_500)
    client = connect(node)
    client.call(1, SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
    secret = b64encode(created.hmac).decode()
    scram = ScramClient(SCRAM_MECHANISMS["SCRAM-SHA-256"], created.token_id, secret, "nonce", is_token=True)
    server_first = authenticate(client, scram.evaluate(b"") or b"").auth_bytes
    # One segment contains the proof and another request.
    client.submit(2, SaslAuthenticateRequest(auth_bytes=scram.evaluate(bytes(server_first)) or b""))
    client.submit(9, MetadataRequest(topics=[]))
    client.virtual_node.turn()
    response = client.receive(2, SaslAuthenticateRequest)
    assert (response.error_code, response.session_lifetime_ms) == (0, 0)
    assert client.channel.closing
    assert counts(node).expired_connections_killed == 1


def test_reauthentication_extends_the_session(session_node: VirtualNode) -> None:
    node = session_node
    client = connect_authenticated(node)
    for _ in range(3):
        node.host.advance(SESSION_MS - 10)
        handshake(client)
        assert client.channel.max_frame_bytes == 524_288
        assert authenticate(client, RIGHT).session_lifetime_ms == SESSION_MS
        assert is_served(client)
    assert counts(node).successful_reauthentication == 3
    assert counts(node).successful_authentication == 1
    node.host.advance(SESSION_MS + 100)
    handshake(client)
    authenticate(client, RIGHT)
    assert is_served(client), "an expired session may start with a handshake"


def test_reauthentication_is_refused_within_a_second(session_node: VirtualNode) -> None:
    node = session_node
    client = connect_authenticated(node)
    handshake(client)
    authenticate(client, RIGHT)
    node.host.advance(999)
    assert handshake(client).error_code == ErrorCode.ILLEGAL_SASL_STATE
    response = authenticate(client, RIGHT)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert response.error_message == "SaslAuthenticate request received after successful authentication"
    node.host.advance(1)
    assert handshake(client).error_code == 0


def test_reauthentication_as_another_user_fails(session_node: VirtualNode) -> None:
    node = session_node
    client = connect_authenticated(node)
    handshake(client)
    assert authenticate(client, OTHER) is None
    node.host.advance(DELAY_MS)
    response = client.receive(2, SaslAuthenticateRequest)
    assert "from User.alice: User.bob" in response.error_message
    assert client.channel.closing
    assert counts(node).failed_reauthentication == 1
    assert counts(node).failed_authentication == 0


def test_reauthentication_with_a_disabled_mechanism_closes_the_connection(session_node: VirtualNode) -> None:
    client = connect_authenticated(session_node)
    client.send(1, SaslHandshakeRequest(mechanism="GSSAPI"))
    assert client.take_bytes() == b""
    assert client.channel.closing
    assert counts(session_node).failed_reauthentication == 0, "Kafka does not count it either"


def test_without_a_session_limit_reauthentication_is_refused(node: VirtualNode) -> None:
    client = connect_authenticated(node)
    assert handshake(client).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert is_served(client)


def test_reauthentication_completes_a_waiting_fetch(session_node: VirtualNode) -> None:
    node = session_node
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    assert not node.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000)).topics[0].error_code
    client = connect_authenticated(node)
    client.send(12, fetch_request("t"))
    assert client.take_bytes() == b"", "the fetch waits for a record"
    client.send(1, SaslHandshakeRequest(mechanism="PLAIN"))
    assert client.take_bytes()
    assert not client.channel.slots
    assert authenticate(client, RIGHT).error_code == 0


@pytest.mark.parametrize("session_ms", [0, SESSION_MS])
def test_repeated_heartbeats_check_the_session_limit(session_ms: int) -> None:
    node = node_with(
        connections_max_reauth_ms=str(session_ms),
        group_initial_rebalance_delay_ms="0",
        offsets_topic_replication_factor="1",
    )
    client = connect_authenticated(node)
    for _ in range(2):
        client.call(3, FindCoordinatorRequest(key="g"))
    client.send(0, join_request())
    node.host.advance(10)
    member_id = client.receive(0, JoinGroupRequest).member_id
    assigned = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"")]
    client.call(0, SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id, assignments=assigned))
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    assert client.call(3, heartbeat).error_code == 0
    assert (client.channel.repeated_request is not None) is (session_ms == 0)
    node.host.advance(SESSION_MS + 1)
    client.send(3, heartbeat)
    assert client.channel.closing is False
    assert (client.take_bytes() == b"") is (session_ms > 0)
    assert client.channel.closing is (session_ms > 0)


def test_the_log_of_a_failed_authentication_contains_no_password(
    node: VirtualNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    client = connect(node)
    handshake(client)
    authenticate(client, WRONG)
    expected = [one.getMessage() for one in caplog.records if "authentication" in one.getMessage()]
    assert expected == [
        "[node 1] Failed authentication with 127.0.0.1 on listener SECURED "
        "(Authentication failed: Invalid username or password)"
    ]
    assert "guessed" not in caplog.text


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        ("X\n[node 1] all is well\r\x1b[2J\0", r"X\n[node 1] all is well\r\x1b[2J\x00"),
        ("\N{LINE SEPARATOR}\x85\N{RIGHT-TO-LEFT OVERRIDE}", r"\u2028\x85\u202e"),
        ("gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n"),
        ("M" * 30_000, "M" * (MAX_REASON_LENGTH - len("Unsupported SASL mechanism "))),
        ("\n" * 30_000, (r"\n" * 500)[: MAX_REASON_LENGTH - len("Unsupported SASL mechanism ")]),
    ],
    ids=["lines", "beyond ASCII", "printable", "long", "long and escaped"],
)
def test_mechanism_names_are_escaped_and_truncated_in_the_log(
    node: VirtualNode, caplog: pytest.LogCaptureFixture, mechanism: str, expected: str
) -> None:
    caplog.set_level("INFO")
    connect(node).send(1, SaslHandshakeRequest(mechanism=mechanism))
    [line] = [one.getMessage() for one in caplog.records if "authentication" in one.getMessage()]
    assert line == (
        "[node 1] Failed authentication with 127.0.0.1 on listener SECURED "
        f"(Unsupported SASL mechanism {expected})"
    )
