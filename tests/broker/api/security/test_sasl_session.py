"""Connections of a listener with SASL, as a node serves them: who is known, for how long, and who is not."""

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


def connected(node: VirtualNode) -> VirtualClient:
    return node.connect(LISTENER)


def shake(client: VirtualClient, version: int = 1) -> Any:
    return client.call(version, SaslHandshakeRequest(mechanism="PLAIN"))


def tell(client: VirtualClient, token: bytes) -> Any:
    """The answer, if there is one at once."""
    client.send(2, SaslAuthenticateRequest(auth_bytes=token))
    return client.receive(2, SaslAuthenticateRequest)


def known(node: VirtualNode, token: bytes = RIGHT) -> VirtualClient:
    client = connected(node)
    shake(client)
    assert tell(client, token).error_code == 0
    return client


def is_served(client: VirtualClient) -> bool:
    """Whether a request comes by; else the connection has ended."""
    client.send(9, MetadataRequest(topics=[]))
    answer = client.receive(9, MetadataRequest)
    assert answer is not None or client.channel.closing
    return answer is not None


def test_a_listener_without_sasl_asks_nobody(node: VirtualNode) -> None:
    client = node.connect()
    assert client.channel.authentication is None
    assert is_served(client)
    assert client.channel.principal == ANONYMOUS
    assert node.node.sessions is None


def test_a_client_that_says_who_it_is_is_served_as_that(node: VirtualNode) -> None:
    client = connected(node)
    assert client.call(3, ApiVersionsRequest(client_software_name="a", client_software_version="1")).api_keys
    assert shake(client).mechanisms == ["PLAIN"]
    assert client.channel.principal == ANONYMOUS
    answer = tell(client, RIGHT)
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    assert client.channel.principal == Principal(USER, "alice")
    assert client.channel.client_software_name == "a"
    assert is_served(client)
    node.host.advance(10 * SESSION_MS)
    assert is_served(client)
    assert counts(node).successful_authentication == 1
    assert counts(node).successful_authentication_no_reauth == 0


def test_a_controller_asks_as_well(node: VirtualNode) -> None:
    client = node.connect(CONTROLLER, ListenerRole.CONTROLLER)
    shake(client)
    assert tell(client, b"\0node\0x").error_code == 0
    assert client.channel.principal == Principal(USER, "node")
    assert counts(node, CONTROLLER).successful_authentication == 1


def test_before_that_nothing_is_served(node: VirtualNode) -> None:
    client = connected(node)
    with pytest.raises(WireError):
        client.send(9, MetadataRequest(topics=[]))
    assert counts(node).failed_authentication == 0, "Kafka does not count it either"


def test_bare_tokens_and_their_answers_have_their_size_in_front(node: VirtualNode) -> None:
    client = connected(node)
    shake(client, 0)
    client.submit_frame(len(RIGHT).to_bytes(4, "big") + RIGHT)
    assert client.take_bytes() == bytes(4)
    assert is_served(client)
    assert client.channel.principal == Principal(USER, "alice")
    assert counts(node).successful_authentication_no_reauth == 1


def test_who_fails_is_told_after_a_while_and_nothing_is_taken_from_him_meanwhile(node: VirtualNode) -> None:
    client = connected(node)
    shake(client)
    assert tell(client, WRONG) is None
    assert client.channel.ending, "the shell takes nothing more"
    assert counts(node).failed_authentication == 1
    node.host.advance(DELAY_MS - 1)
    assert client.take_bytes() == b""
    node.host.advance(1)
    answer = client.receive(2, SaslAuthenticateRequest)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == "Authentication failed: Invalid username or password"
    assert client.channel.closing
    assert client.channel.principal == ANONYMOUS


def test_who_fails_by_bare_tokens_is_told_nothing_after_a_while(node: VirtualNode) -> None:
    client = connected(node)
    shake(client, 0)
    client.submit_frame(len(WRONG).to_bytes(4, "big") + WRONG)
    node.host.advance(DELAY_MS - 1)
    assert client.take_bytes() == b""
    assert not client.channel.closing
    node.host.advance(1)
    assert client.take_bytes() == b""
    assert client.channel.closing


def test_a_delay_of_nothing() -> None:
    node = node_with(connection_failed_authentication_delay_ms="0")
    client = connected(node)
    shake(client)
    tell(client, WRONG)
    node.host.advance(0)
    assert client.channel.closing or client.receive(2, SaslAuthenticateRequest).error_code
    assert client.channel.closing


def test_who_goes_away_before_he_is_told_is_forgotten(node: VirtualNode) -> None:
    client = connected(node)
    shake(client)
    tell(client, WRONG)
    node.node.channel_closed(client.channel)
    node.host.advance(DELAY_MS)
    assert client.take_bytes() == b""


def test_a_node_that_stops_does_not_wait_with_it(node: VirtualNode) -> None:
    client = connected(node)
    shake(client)
    tell(client, WRONG)
    node.node.begin_shutdown()
    assert client.receive(2, SaslAuthenticateRequest).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    node.host.advance(DELAY_MS)


def test_a_frame_of_no_size_is_a_failure_before_and_none_after(node: VirtualNode) -> None:
    client = connected(node)
    authentication = client.channel.authentication
    assert authentication is not None
    assert client.channel.max_frame_bytes == 524_288
    assert authentication.fail_invalid_size(client.channel, "it is too large", node.host.now_ms())
    node.host.advance(DELAY_MS)
    assert client.take_bytes() == b""
    assert client.channel.closing
    assert counts(node).failed_authentication == 1
    client = known(node)
    authentication = client.channel.authentication
    assert authentication is not None
    assert not authentication.fail_invalid_size(client.channel, "it is too large", node.host.now_ms())
    assert client.channel.max_frame_bytes > 524_288


def test_a_session_has_an_end(session_node: VirtualNode) -> None:
    node = session_node
    client = connected(node)
    shake(client)
    assert tell(client, RIGHT).session_lifetime_ms == SESSION_MS
    node.host.advance(SESSION_MS)
    assert is_served(client)
    node.host.advance(1)
    assert not is_served(client)
    assert counts(node).expired_connections_killed == 1


def test_the_session_of_a_token_that_has_run_out_has_no_time_at_all() -> None:
    node = node_with(
        delegation_token_secret_key="secret",
        listener_name_secured_sasl_enabled_mechanisms="SCRAM-SHA-256",
        **{"listener.name.secured.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;"},
    )
    owner = node.connect(LISTENER, principal=Principal(USER, "alice"))
    made = owner.call(3, CreateDelegationTokenRequest(owner_principal_name="", max_lifetime_ms=1_000))
    assert made.error_code == 0
    node.host.advance(1_500)
    client = connected(node)
    client.call(1, SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
    secret = b64encode(made.hmac).decode()
    scram = ScramClient(SCRAM_MECHANISMS["SCRAM-SHA-256"], made.token_id, secret, "nonce", is_token=True)
    said = tell(client, scram.evaluate(b"") or b"").auth_bytes
    # All in one segment: the proof, and a request behind it.
    client.submit(2, SaslAuthenticateRequest(auth_bytes=scram.evaluate(bytes(said)) or b""))
    client.submit(9, MetadataRequest(topics=[]))
    client.virtual_node.turn()
    answer = client.receive(2, SaslAuthenticateRequest)
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    assert client.channel.closing
    assert counts(node).expired_connections_killed == 1


def test_a_session_goes_on_for_who_says_again_who_he_is(session_node: VirtualNode) -> None:
    node = session_node
    client = known(node)
    for _ in range(3):
        node.host.advance(SESSION_MS - 10)
        shake(client)
        assert client.channel.max_frame_bytes == 524_288
        assert tell(client, RIGHT).session_lifetime_ms == SESSION_MS
        assert is_served(client)
    assert counts(node).successful_reauthentication == 3
    assert counts(node).successful_authentication == 1
    node.host.advance(SESSION_MS + 100)
    shake(client)
    tell(client, RIGHT)
    assert is_served(client), "who is late may begin with a handshake"


def test_not_within_a_second(session_node: VirtualNode) -> None:
    node = session_node
    client = known(node)
    shake(client)
    tell(client, RIGHT)
    node.host.advance(999)
    assert shake(client).error_code == ErrorCode.ILLEGAL_SASL_STATE
    answer = tell(client, RIGHT)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert answer.error_message == "SaslAuthenticate request received after successful authentication"
    node.host.advance(1)
    assert shake(client).error_code == 0


def test_not_as_somebody_else(session_node: VirtualNode) -> None:
    node = session_node
    client = known(node)
    shake(client)
    assert tell(client, OTHER) is None
    node.host.advance(DELAY_MS)
    answer = client.receive(2, SaslAuthenticateRequest)
    assert "from User.alice: User.bob" in answer.error_message
    assert client.channel.closing
    assert counts(node).failed_reauthentication == 1
    assert counts(node).failed_authentication == 0


def test_not_by_a_mechanism_that_is_not_enabled(session_node: VirtualNode) -> None:
    client = known(session_node)
    client.send(1, SaslHandshakeRequest(mechanism="GSSAPI"))
    assert client.take_bytes() == b""
    assert client.channel.closing
    assert counts(session_node).failed_reauthentication == 0, "Kafka does not count it either"


def test_a_session_without_an_end_does_not_begin_again(node: VirtualNode) -> None:
    client = known(node)
    assert shake(client).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert is_served(client)


def test_a_new_session_ends_the_long_poll_before_it(session_node: VirtualNode) -> None:
    node = session_node
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    assert not node.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000)).topics[0].error_code
    client = known(node)
    client.send(12, fetch_request("t"))
    assert client.take_bytes() == b"", "it waits for a record"
    client.send(1, SaslHandshakeRequest(mechanism="PLAIN"))
    assert client.take_bytes()
    assert not client.channel.slots
    assert tell(client, RIGHT).error_code == 0


@pytest.mark.parametrize("session_ms", [0, SESSION_MS])
def test_a_session_that_may_end_is_asked_of_requests_in_the_same_words(session_ms: int) -> None:
    node = node_with(
        connections_max_reauth_ms=str(session_ms),
        group_initial_rebalance_delay_ms="0",
        offsets_topic_replication_factor="1",
    )
    client = known(node)
    for _ in range(2):
        client.call(3, FindCoordinatorRequest(key="g"))
    client.send(0, join_request())
    node.host.advance(10)
    member_id = client.receive(0, JoinGroupRequest).member_id
    assigned = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"")]
    client.call(0, SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id, assignments=assigned))
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    assert client.call(3, beat).error_code == 0
    assert (client.channel.repeated_request is not None) is (session_ms == 0)
    node.host.advance(SESSION_MS + 1)
    client.send(3, beat)
    assert client.channel.closing is False
    assert (client.take_bytes() == b"") is (session_ms > 0)
    assert client.channel.closing is (session_ms > 0)


def test_the_log_names_who_failed_and_no_password(
    node: VirtualNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    client = connected(node)
    shake(client)
    tell(client, WRONG)
    told = [one.getMessage() for one in caplog.records if "authentication" in one.getMessage()]
    assert told == [
        "[node 1] Failed authentication with 127.0.0.1 by SECURED "
        "(Authentication failed: Invalid username or password)"
    ]
    assert "guessed" not in caplog.text


@pytest.mark.parametrize(
    ("mechanism", "told"),
    [
        ("X\n[node 1] all is well\r\x1b[2J\0", r"X\n[node 1] all is well\r\x1b[2J\x00"),
        ("\N{LINE SEPARATOR}\x85\N{RIGHT-TO-LEFT OVERRIDE}", r"\u2028\x85\u202e"),
        ("gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n"),
        ("M" * 30_000, "M" * (MAX_REASON_LENGTH - len("Unsupported SASL mechanism "))),
        ("\n" * 30_000, (r"\n" * 500)[: MAX_REASON_LENGTH - len("Unsupported SASL mechanism ")]),
    ],
    ids=["lines", "beyond ASCII", "printable", "long", "long and escaped"],
)
def test_strangers_do_not_write_lines_of_the_log(
    node: VirtualNode, caplog: pytest.LogCaptureFixture, mechanism: str, told: str
) -> None:
    caplog.set_level("INFO")
    connected(node).send(1, SaslHandshakeRequest(mechanism=mechanism))
    [line] = [one.getMessage() for one in caplog.records if "authentication" in one.getMessage()]
    assert line == (
        f"[node 1] Failed authentication with 127.0.0.1 by SECURED (Unsupported SASL mechanism {told})"
    )
