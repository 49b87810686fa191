"""No secret appears in logs at level DEBUG, flight records, metrics, the console or descriptions of configs.

A broker process gets secrets in its configuration and in requests: valid ones, invalid ones, malformed ones,
and ones whose handler fails. CVE-2026-33558: Apache Kafka logged complete requests at DEBUG.
"""

from __future__ import annotations

import random
import ssl
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kwire.broker.config.jaas import PLAIN_MODULE, SCRAM_MODULE
from kwire.broker.security.mechanisms import sasl_client
from kwire.broker.security.scram_credentials import SCRAM_MECHANISMS
from kwire.broker.security.settings import Credentials
from kwire.wire.errors import ErrorCode
from kwire.wire.mechanisms import PLAIN, SCRAM_SHA_256
from kwire.wire.messages import alter_configs, incremental_alter_configs
from kwire.wire.messages.alter_configs import AlterConfigsRequest
from kwire.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from kwire.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kwire.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kwire.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from kwire.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from kwire.wire.messages.envelope import EnvelopeRequest
from kwire.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kwire.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest
from kwire.wire.registry import encode_request
from kwire.wire.schema import Message
from tests.broker.observe.planted_secrets import FAILING, KafkaClient, ObservedProcess, PlantedSecrets
from tests.broker.security.tls_certificates import Identity
from tests.test_commands import free_ports

TOPIC, BROKER = 2, 4
DELETE, APPEND = 1, 2
ITERATIONS = 4096
CONSOLE_PAGES = ("/console/", "/console/configs", "/console/cluster", "/console/groups", "/console/topics/t")
DENIED_TO_BOB = ("/metrics", "/console/topics/t")
OWN_TLS, OWN_SASL = "listener.name.tls.", "listener.name.sasl.plain."
JAAS = (f'{PLAIN_MODULE} required user_more="%s";', f"{PLAIN_MODULE} required user_more=%s;")
MALFORMED_JAAS = (
    f'{PLAIN_MODULE} required user_more="%s"',
    f'{PLAIN_MODULE} required user_more="a"%s";',
    f"{PLAIN_MODULE} required %s;",
    f'{PLAIN_MODULE} %s user_more="a";',
)
PASSWORD_KEYS = (
    "sasl.jaas.config",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    f"{OWN_TLS}ssl.key.password",
    f"{OWN_TLS}ssl.keystore.password",
    f"{OWN_TLS}ssl.keystore.key",
    f"{OWN_TLS}ssl.truststore.password",
    f"{OWN_SASL}sasl.jaas.config",
    "delegation.token.secret.key",
    "an.unknown.password",
)


@dataclass
class Scene:
    """A broker process, the secrets that are planted in it, and what clients received."""

    secrets: PlantedSecrets
    directory: Path
    properties: str
    environment: dict[str, str]
    passwords: dict[str, str]
    authority: Identity
    responses: dict[str, bytes] = field(default_factory=dict)
    """The bytes that clients received, except for those that contain a new token."""

    def start(self, log_format: str) -> ObservedProcess:
        return ObservedProcess(self.directory, self.properties, log_format, self.environment)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    secrets = PlantedSecrets(7)
    names = ("alice", "by file", "by environment", "node")
    passwords = {name: secrets.text(f"the password of {name}") for name in names}
    key_password = secrets.text("ssl.key.password")
    authority = Identity("ca")
    identity = Identity("broker", authority)
    for name, pem in (("the key", identity.key_pem()), ("the encrypted key", identity.key_pem(key_password))):
        secrets.add(name, pem.split("\n")[2].encode())
    (tmp_path / "secrets").write_text(f"password={passwords['by file']}\n")
    users = f'user_node="{passwords["node"]}" user_alice="{passwords["alice"]}"'
    users += f' user_file="${{file:{tmp_path / "secrets"}:password}}" user_environment="${{env:PLANTED}}"'
    plain, sasl, tls, controller = range(first := free_ports(4), first + 4)
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls},"
        f"CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,"
        "CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": f"{PLAIN},{SCRAM_SHA_256}",
        "sasl.mechanism.controller.protocol": PLAIN,
        "listener.name.sasl.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "listener.name.controller.plain.sasl.jaas.config": f"{PLAIN_MODULE} required "
        f'username="node" password="{passwords["node"]}" {users};',
        "listener.name.controller.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:node;User:alice",
        "delegation.token.secret.key": secrets.text("delegation.token.secret.key"),
        "config.providers": "file,env",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "an.unknown.password": secrets.text("an unknown config"),
    }
    for key, value in (
        identity.keys()
        | {"ssl.keystore.key": identity.key_pem(key_password), "ssl.key.password": key_password}
    ).items():
        settings[f"listener.name.tls.{key}"] = value.replace("\n", "\\n")
    properties = "".join(f"{key}={value}\n" for key, value in settings.items())
    environment = {"PLANTED": passwords["by environment"], "KAFKA_SASL_JAAS_CONFIG": secrets.text("env")}
    return Scene(secrets, tmp_path, properties, environment, passwords, authority)


def test_no_secret_is_shown(scene: Scene) -> None:
    shown: dict[str, bytes] = {}
    for log_format in ("text", "json"):
        # The second process writes the flight record of the first one, and reads the stored configs.
        process = scene.start(log_format)
        try:
            configure(scene, process)
            authenticate(scene, process)
            use_tokens(scene, process)
            send_malformed(scene, process)
            for path in ("/metrics", *CONSOLE_PAGES):
                shown |= {f"{log_format} {name}": text for name, text in log_in(scene, process, path)}
            describe(scene, process)
        finally:
            process.kill()
        shown |= process.files()
        shown[f"{log_format} standard output"] = process.printed
    shown |= scene.responses
    assert [name for name in shown if name.endswith(".jsonl")]
    log = (scene.directory / "json.log").read_bytes()
    assert log.count(b"responding with UNKNOWN_SERVER_ERROR") >= 4, log.decode()
    assert b"DEBUG" in log
    found = {name: leaks for name, text in shown.items() if (leaks := scene.secrets.found(text))}
    assert not found


@pytest.mark.parametrize(
    ("key", "form"),
    [
        *((f"{OWN_SASL}sasl.jaas.config", form) for form in MALFORMED_JAAS),
        (f"{OWN_TLS}ssl.key.password", "%s"),
        (f"{OWN_TLS}ssl.keystore.password", "%s"),
        (f"{OWN_TLS}ssl.keystore.key", "%s"),
        (f"{OWN_TLS}ssl.truststore.password", "%s"),
    ],
)
def test_an_error_at_the_start_shows_no_secret(key: str, form: str, scene: Scene) -> None:
    scene.properties += f"{key}={form % scene.secrets.text(key)}\n"
    with pytest.raises(AssertionError) as failed:
        scene.start("text").kill()
    assert key.removeprefix(OWN_TLS) in str(failed.value)
    assert not scene.secrets.found(str(failed.value).encode())


def call(
    scene: Scene, process: ObservedProcess, version: int, request: Message, label: str = "", **how: Any
) -> Any:
    with KafkaClient(process.ports[0], **how) as client:
        response = client.call(version, request)
        name = f"{len(scene.responses)} {type(request).__name__} {label} {response!r:.400}"
        scene.responses[name] = client.received
        return response


def configure(scene: Scene, process: ObservedProcess) -> None:
    """Set configs with secrets, valid and invalid ones, also with the previous API, and as a dry run."""
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    call(scene, process, 5, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    codes = Counter[int]()
    for values in config_values(scene):
        deletion = incremental(BROKER, "1", values, operation=DELETE)
        for request, client_id in (
            (incremental(BROKER, "1", values, validate_only=True), "tester"),
            (incremental(BROKER, "1", values), "tester"),
            (incremental(BROKER, "1", values), FAILING),
            (deletion, "tester"),
            (incremental(BROKER, "1", values, operation=APPEND), "tester"),
            (incremental(BROKER, "", values), "tester"),
            (incremental(TOPIC, "t", values), "tester"),
            (legacy(BROKER, "1", values), "tester"),
            (legacy(BROKER, "1", values), FAILING),
            (deletion, "tester"),
        ):
            response = call(scene, process, 1, request, client_id=client_id)
            codes[response.responses[0].error_code] += 1
    call(scene, process, 1, incremental(BROKER, "1", {"an.unknown.password": scene.secrets.text("stored")}))
    assert (
        min(codes[ErrorCode.NONE], codes[ErrorCode.INVALID_REQUEST], codes[ErrorCode.UNKNOWN_SERVER_ERROR])
        > 20
    ), codes


def legacy(resource_type: int, resource_name: str, values: dict[str, str]) -> AlterConfigsRequest:
    configs = [alter_configs.AlterableConfig(name=name, value=value) for name, value in values.items()]
    resource = alter_configs.AlterConfigsResource(
        resource_type=resource_type, resource_name=resource_name, configs=configs
    )
    return AlterConfigsRequest(resources=[resource], validate_only=False)


def incremental(
    resource_type: int,
    resource_name: str,
    values: dict[str, str],
    *,
    operation: int = 0,
    validate_only: bool = False,
) -> IncrementalAlterConfigsRequest:
    configs = [
        incremental_alter_configs.AlterableConfig(name=name, config_operation=operation, value=value)
        for name, value in values.items()
    ]
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=resource_type, resource_name=resource_name, configs=configs
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def config_values(scene: Scene) -> Iterator[dict[str, str]]:
    """Yield configs with new secrets."""
    secret = scene.secrets.text
    for name in PASSWORD_KEYS:
        yield {name: secret(name)}
    for name, form in product(("sasl.jaas.config", f"{OWN_SASL}sasl.jaas.config"), (*JAAS, *MALFORMED_JAAS)):
        yield {name: form % secret(f"{name} {form}")}
    password = secret("a new key password")
    identity = Identity("broker", scene.authority)
    key = identity.key_pem(password)
    scene.secrets.add("a new key", key.split("\n")[2].encode())
    store = {
        f"{OWN_TLS}ssl.keystore.key": key,
        f"{OWN_TLS}ssl.key.password": password,
        f"{OWN_TLS}ssl.keystore.certificate.chain": identity.pem,
    }
    yield store | {f"{OWN_TLS}ssl.keystore.key": key[: len(key) // 2]}
    yield store | {f"{OWN_TLS}ssl.key.password": secret("the password of another key")}
    yield {f"{OWN_TLS}ssl.keystore.location": str(scene.directory / "secrets")}
    yield store


def authenticate(scene: Scene, process: ObservedProcess) -> None:
    """Authenticate with correct, wrong and malformed credentials, and change SCRAM credentials."""
    secret, passwords = scene.secrets.text, scene.passwords
    rng = random.Random(5)
    sasl = process.ports[1]

    def result(username: str, password: str, mechanism: str = PLAIN) -> int:
        with KafkaClient(sasl) as client:
            return client.authenticate(sasl_client(Credentials(mechanism, username, password), rng))

    for name, key in (("alice", "alice"), ("file", "by file"), ("environment", "by environment")):
        assert result(name, passwords[key]) == 0
    assert result("alice", secret("a wrong password")) == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert (
        result("unknown", secret("the password of an unknown user")) == ErrorCode.SASL_AUTHENTICATION_FAILED
    )
    scram = SCRAM_MECHANISMS[SCRAM_SHA_256]
    password, salt = secret("a SCRAM password"), rng.randbytes(24)
    passwords["bob"] = password
    salted = scene.secrets.add("a salted password", scram.salt_password(password, salt, ITERATIONS))
    credential = scram.credential(salt, ITERATIONS, salted)
    scene.secrets.add("a stored key", credential.stored_key)
    scene.secrets.add("a server key", credential.server_key)
    for name, iterations, client_id in (
        ("bob", ITERATIONS, "tester"),
        ("bob", 1, "tester"),
        ("bob", ITERATIONS, FAILING),
    ):
        upsertion = ScramCredentialUpsertion(
            name=name, mechanism=scram.code, iterations=iterations, salt=salt, salted_password=salted
        )
        request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
        call(scene, process, 0, request, client_id=client_id)
    assert result("bob", password, SCRAM_SHA_256) == 0
    assert (
        result("bob", secret("a wrong SCRAM password"), SCRAM_SHA_256) == ErrorCode.SASL_AUTHENTICATION_FAILED
    )
    for mechanism, token in (
        (PLAIN, secret("a token without NUL")),
        (PLAIN, f"\0alice\0{secret('a token with many NULs')}\0more\0"),
        (PLAIN, f"{secret('an authorization id')}\0alice\0{passwords['alice']}"),
        (SCRAM_SHA_256, secret("a malformed first SCRAM message")),
        (SCRAM_SHA_256, f"n,,n=bob,r=x,{secret('SCRAM extensions')}"),
        (SCRAM_SHA_256, f"\0alice\0{passwords['alice']}"),
    ):
        with KafkaClient(sasl) as client:
            client.call(1, SaslHandshakeRequest(mechanism=mechanism))
            client.call(2, SaslAuthenticateRequest(auth_bytes=token.encode()))
    with KafkaClient(sasl) as client:
        client.call(2, SaslAuthenticateRequest(auth_bytes=secret("a token before the handshake").encode()))


def log_in(scene: Scene, process: ObservedProcess, path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the responses for a page, with valid, wrong and malformed logins."""
    secret = scene.secrets.text

    def basic(username: str, password: str) -> str:
        return f"Basic {b64encode(f'{username}:{password}'.encode()).decode()}"

    yield f"{path} without a login", process.get(path, {})
    for name, status, authorization in (
        ("PLAIN", 200, basic("alice", scene.passwords["alice"])),
        ("SCRAM", 403 if path in DENIED_TO_BOB else 200, basic("bob", scene.passwords["bob"])),
        ("a wrong password", 401, basic("alice", secret(f"a wrong password for {path}"))),
        ("a wrong SCRAM password", 401, basic("bob", secret(f"a wrong SCRAM password for {path}"))),
        ("an unknown user", 401, basic("unknown", secret(f"a password of an unknown user for {path}"))),
        ("a password as the name", 401, basic(secret(f"a name for {path}"), "x")),
        ("a control character", 401, basic("alice", secret(f"a control character for {path}") + "\1")),
        ("another scheme", 401, f"Bearer {secret(f'a token for {path}')}"),
        ("no base64", 401, f"Basic {secret(f'not base64 for {path}')}!"),
        ("a long header", 401, basic("alice", secret(f"a long password for {path}") + "x" * 5000)),
    ):
        yield f"{path} with {name}", process.get(path, {"Authorization": authorization}, status)
    malformed = secret(f"a malformed header line for {path}")
    for line in (f"Authorization: Basic {malformed}\x01", f"Authorization {malformed}", f" {malformed}"):
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n"
        with KafkaClient(process.http_port) as client:
            client.send_all(request.encode())
            yield f"{path} with the line {line[:16]}", client.received


def use_tokens(scene: Scene, process: ObservedProcess) -> None:
    """Create, describe, renew and expire tokens, with known and unknown HMACs."""
    unknown = scene.secrets.add("an unknown HMAC", random.Random(9).randbytes(64))
    for client_id in ("tester", FAILING):
        with (
            KafkaClient(process.ports[1]) as client,
            KafkaClient(process.ports[1], client_id=client_id) as other,
        ):
            for one in (client, other):
                one.authenticate(
                    sasl_client(Credentials(PLAIN, "alice", scene.passwords["alice"]), random.Random(6))
                )
            created = client.call(3, CreateDelegationTokenRequest(max_lifetime_ms=-1, renewers=[]))
            assert created.error_code == 0
            hmac = scene.secrets.add("an HMAC", bytes(created.hmac))
            other.call(3, CreateDelegationTokenRequest(max_lifetime_ms=-1, renewers=[]))
            other.call(3, DescribeDelegationTokenRequest(owners=None))
            for token_hmac in (unknown, hmac):
                other.call(2, RenewDelegationTokenRequest(hmac=token_hmac, renew_period_ms=1000))
                other.call(2, ExpireDelegationTokenRequest(hmac=token_hmac, expiry_time_period_ms=1000))


def send_malformed(scene: Scene, process: ObservedProcess) -> None:
    """Send malformed frames, other protocols, and requests that the broker refuses."""
    secret = scene.secrets.text
    for number in range(4):
        request = incremental(BROKER, "1", {"ssl.key.password": secret(f"malformed request {number}")})
        frame = bytes(encode_request(request, 1, 7, "tester"))
        if number == 0:
            frame = frame[:-8]  # the connection ends within the frame
        elif number == 1:
            frame = (len(frame) - 14).to_bytes(4, "big") + frame[4:-10]
        elif number == 2:
            frame = (len(frame) + 6).to_bytes(4, "big") + frame[4:] + bytes(10)
        else:
            frame = frame[:4] + (7777).to_bytes(2, "big") + frame[6:]
        for port in (*process.ports, process.http_port):
            with KafkaClient(port) as client:
                client.send_all(frame)
    authorization = f"GET /x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret('HTTP')}\r\n\r\n"
    for port in (*process.ports, process.http_port):
        with KafkaClient(port) as client:
            client.send_all(authorization.encode())
    context = ssl.create_default_context(cadata=scene.authority.pem)
    with KafkaClient(process.ports[2], tls=context) as client:
        client.call(1, incremental(TOPIC, "no-topic", {"ssl.key.password": secret("TLS")}))
    inner = encode_request(
        incremental(BROKER, "1", {"ssl.key.password": secret("an Envelope")}), 1, 7, "tester"
    )
    envelope = EnvelopeRequest(
        request_data=bytes(inner[4:]), request_principal=b"", client_host_address=bytes(4)
    )
    for client_id in ("tester", FAILING):
        call(scene, process, 0, envelope, client_id=client_id)
        config = CreatableTopicConfig(name="ssl.key.password", value=secret("CreateTopics"))
        topic = CreatableTopic(name="u", num_partitions=1, replication_factor=1, configs=[config])
        call(scene, process, 5, CreateTopicsRequest(topics=[topic], timeout_ms=1000), client_id=client_id)


def describe(scene: Scene, process: ObservedProcess) -> None:
    resources = [DescribeConfigsResource(resource_type=BROKER, resource_name=name) for name in ("1", "")]
    resources.append(DescribeConfigsResource(resource_type=TOPIC, resource_name="t"))
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    assert len(call(scene, process, 4, request).results[0].configs) > 100
    call(scene, process, 0, DescribeUserScramCredentialsRequest(users=None))
