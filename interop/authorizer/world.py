"""A broker with an authorizer, with resources, and with the connections of its users."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from interop.authorizer.audit_trail import BROKER_LOGGER, LOGGER, AuditTrail
from interop.authorizer.rights import Right
from interop.batches import walk
from interop.brokers import Broker, free_port
from interop.cluster.logins import BROKERS_LISTENER, SCRAM, Login, Logins, log_in
from interop.raw import VOLATILE, create_topic, fill, unset_leader, wait_for_coordinator
from interop.raw_client import RawClient
from interop.sasl import log_in_by_token
from interop.wire import Fields, api_keys, decode_response, encode_request

ADMIN: Final = Login("admin", "admin's secret")
USERS: Final = {name: Login(name, f"{name}'s secret") for name in ("alice", "bob")}
BY_TOKEN: Final = "alice's token"
"""The name of the client that has authenticated with a delegation token of alice."""
HIDDEN: Final = frozenset(VOLATILE | {"BrokerEpoch", "Hmac", "TokenId"})
"""Fields whose values differ from broker to broker."""
HIDDEN_IN: Final = {
    "DescribeQuorum": frozenset({"HighWatermark", "LogEndOffset"}),
    "AddRaftVoter": frozenset({"ErrorMessage"}),
    "RemoveRaftVoter": frozenset({"ErrorMessage"}),
}
"""More of these fields, and error messages of invalid requests, which are kwire's own, by API."""
UUID_BYTES: Final = 16
WAIT_S: Final = 30.0
SILENCE_S: Final = 10.0
"""How long a response may take."""
EVERY_ACL: Final[Fields] = {
    "ResourceTypeFilter": 1,
    "ResourceNameFilter": None,
    "PatternTypeFilter": 1,
    "PrincipalFilter": None,
    "HostFilter": None,
    "Operation": 1,
    "PermissionType": 1,
}
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SETTINGS: Final = {
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:admin",
    "delegation.token.secret.key": "a secret of the cluster",
    "group.consumer.heartbeat.interval.ms": "15000",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.consumer.session.timeout.ms": "600000",
    "group.max.session.timeout.ms": "1800000",
}
REQUEST_TEXT: Final = re.compile(r"Request Request\(.*\) (needs \w+ permission|is not authorized)", re.DOTALL)
"""Apache Kafka's messages with the text of a Java object, which contains ports and hash codes."""
TIMES: Final = ("Timestamp", "TimestampMs", "TimeMs")


class World:
    """A broker whose nodes and admin are super users, and whose other users have the rights of ACLs."""

    def __init__(self, kind: type[Broker], overrides: dict[str, str] | None = None) -> None:
        port = free_port()
        logins = Logins(ADMIN, ADMIN, ADMIN)
        settings = logins.properties() | SETTINGS | (overrides or {})
        known = {login.username: login.password for login in (ADMIN, *USERS.values())}
        for listener in (BROKERS_LISTENER, "CONTROLLER"):
            settings[f"listener.name.{listener.lower()}.plain.sasl.jaas.config"] = ADMIN.jaas(known)
        settings["listener.security.protocol.map"] += ",PLAINTEXT:PLAINTEXT"
        self.broker = kind(settings)
        for key in ("listeners", "advertised.listeners"):
            self.broker.properties[key] += f",{BROKERS_LISTENER}://127.0.0.1:{port}"
        self._addresses = {
            "broker": f"127.0.0.1:{port}",
            "plaintext": self.broker.bootstrap,
            "controller": self.broker.controller_bootstrap,
        }
        self._clients: dict[tuple[str, str], RawClient] = {}
        self.ids: dict[str, bytes] = {}
        """The topic ids by topic."""
        self.audit_trail = AuditTrail(self.broker)
        self.values: dict[str, Any] = {}
        """Values from the set-up that requests need, such as producer ids."""

    def start(self) -> None:
        self.broker.start()
        if self.broker.name == "kwire":
            self._trace()

    def _trace(self) -> None:
        """Write all lines of the audit log. Apache Kafka has a property for it: see `TracingKafka`."""
        config = {"Name": LOGGER, "ConfigOperation": 0, "Value": "TRACE"}
        resource = {"ResourceType": BROKER_LOGGER, "ResourceName": "1", "Configs": [config]}
        response = self.call("IncrementalAlterConfigs", 1, Resources=[resource])
        assert not response["Responses"][0]["ErrorCode"], response

    def discard(self) -> None:
        for client in self._clients.values():
            client.socket.close()
        self.broker.discard()

    # Connections

    def client(self, listener: str, name: str) -> RawClient:
        """Return a connection of a user; for an empty name, one without authentication."""
        if not name:
            listener = "plaintext"
        kept = self._clients.get((listener, name))
        if kept is None:
            kept = self.new_client(listener, name)
            self._clients[listener, name] = kept
        return kept

    def new_client(self, listener: str, name: str) -> RawClient:
        if name == BY_TOKEN:
            return self._token_client(listener)
        client = RawClient(self._addresses[listener])
        client.socket.settimeout(SILENCE_S)
        if name:
            log_in(client, ADMIN if name == "admin" else USERS[name])
        return client

    def _token_client(self, listener: str) -> RawClient:
        """Return a connection that has authenticated with the token, which each listener learns by itself."""
        created: list[RawClient] = []

        def is_authenticated() -> bool:
            client = RawClient(self._addresses[listener])
            client.socket.settimeout(SILENCE_S)
            token = self.values[token_of("alice")]
            if log_in_by_token(client, SCRAM, token["TokenId"], bytes(token["Hmac"])):
                created.append(client)
                return True
            client.socket.close()
            return False

        until(is_authenticated, f"{self.broker.name}: the {listener} does not know the token")
        return created[0]

    @property
    def admin(self) -> RawClient:
        return self.client("broker", "admin")

    def call(self, api: str, version: int, **fields: Any) -> Fields:
        """Send a request as the super user."""
        return self.admin.call(api, version, **fields)

    def outcome(self, listener: str, name: str, api: str, version: int, fields: Fields) -> Any:
        """Return the response to a user in a form that can be compared, ``closed`` or ``silence``."""
        client = self.client(listener, name)
        response = client.outcome(encode_request(api, version, fields), api, version)
        if isinstance(response, str):
            self.close(listener, name)
        elif api == "Envelope" and response["ResponseData"]:
            api_key, inner_version = struct.unpack_from(">hh", fields["RequestData"])
            inner = next(name for name, key in api_keys().items() if key == api_key)
            response["ResponseData"] = decode_response(inner, inner_version, response["ResponseData"])[1]
        return self.comparable(response, volatile=HIDDEN | HIDDEN_IN.get(api, frozenset()))

    def close(self, listener: str, name: str) -> None:
        self._clients.pop((listener if name else "plaintext", name)).socket.close()

    # ACLs

    def set_acls(self, rights: Iterable[Right]) -> None:
        """Replace all ACLs, and wait until the authorizers of the broker and of the controller have them."""
        wanted = frozenset(rights)
        if self._described("controller") != wanted:
            self.call("DeleteAcls", 3, Filters=[EVERY_ACL])
            response = self.call("CreateAcls", 3, Creations=[one.creation() for one in wanted])
            assert not any(result["ErrorCode"] for result in response["Results"]), response
        found: dict[str, frozenset[Right]] = {}

        def has_applied() -> bool:
            found.update((listener, self._described(listener)) for listener in ("broker", "controller"))
            return all(one == wanted for one in found.values())

        try:
            until(has_applied, self.broker.name)
        except AssertionError as error:
            raise AssertionError(f"{self.broker.name} has {found}, not {wanted}") from error

    def _described(self, listener: str) -> frozenset[Right]:
        return described_rights(self.client(listener, "admin"))

    # Resources

    def create_topic(self, name: str, partitions: int = 1, batches: int = 0) -> None:
        self.ids[name] = create_topic(self.admin, name, partitions)
        fill(self.admin, name, batches)

    def wait_for_group(self, group: str) -> None:
        wait_for_coordinator(self.admin, group)

    # Comparison

    def comparable(self, value: Any, name: str = "", volatile: frozenset[str] = HIDDEN) -> Any:
        """Return a response without values that differ from broker to broker. Topic ids become names."""
        if isinstance(value, dict):
            return {
                key: self.comparable(item, key, volatile)
                for key, item in value.items()
                if not unset_leader(key, item)
            }
        if isinstance(value, list):
            return [self.comparable(item, name, volatile) for item in value]
        if name == "Records":
            return value and [batch["base_offset"] for batch in walk(value)]
        if isinstance(value, bytes) and len(value) == UUID_BYTES and any(value):
            names = {topic_id: topic for topic, topic_id in self.ids.items()}
            return f"<id of {names.get(value, 'something')}>"
        is_set = value not in (None, "", 0, -1, b"", bytes(UUID_BYTES))
        if is_set and (name in volatile or name.endswith(TIMES)):
            return f"<{name}>"
        if isinstance(value, str):
            return REQUEST_TEXT.sub(r"The request \1", value)
        return value


def token_of(owner: str) -> str:
    """Return the key of a user's token in `World.values`."""
    return f"token of {owner}"


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds. `what` is the error message if it does not."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def described_rights(client: RawClient) -> frozenset[Right]:
    """Return all ACLs that DescribeAcls returns."""
    response = client.call("DescribeAcls", 3, **EVERY_ACL)
    return frozenset(
        Right(
            acl["Operation"],
            resource["ResourceType"],
            resource["ResourceName"],
            resource["PatternType"],
            acl["Principal"],
            acl["Host"],
            acl["PermissionType"],
        )
        for resource in response["Resources"]
        for acl in resource["Acls"]
    )
