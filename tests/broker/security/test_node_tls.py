"""The certificates of a node's listeners: loading, principals, and replacement while the node runs."""

from __future__ import annotations

import logging
import os
import ssl
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from kwire.broker.config import BrokerConfig, ConfigError, load
from kwire.broker.net.store_files import RealStoreFiles
from kwire.broker.security.listener_tls import ListenerTls, ListenerUse
from kwire.broker.security.node_tls import NodeTls
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.broker.security.principal_mapping import NoMatchingRuleError
from kwire.broker.security.settings import authenticates_clients, is_node, own_principal
from kwire.certificates.authority import Authority, IssuedCertificate

NAMES = ("localhost", "127.0.0.1")
KEY_STORE = "listener.name.clients.ssl.keystore.location"


def now_ms() -> int:
    """Return the time by which OpenSSL verifies certificates."""
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("test", now_ms())


class Node:
    """A broker with the TLS listeners CLIENTS and BROKERS, and a controller with the listener CONTROLLER."""

    def __init__(self, directory: Path, authority: Authority, **settings: str) -> None:
        self.directory = directory
        self.authority = authority
        (directory / "ca.pem").write_text(authority.certificate_pem)
        self.config: BrokerConfig = load(
            None,
            {},
            {
                "process.roles": "broker",
                "node.id": "1",
                "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
                "inter.broker.listener.name": "BROKERS",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.bootstrap.servers": "127.0.0.1:1",
                "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SSL,CONTROLLER:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": self.write("node.pem", self.issue("node")),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(directory / "ca.pem"),
                **{key.replace("_", "."): value for key, value in settings.items()},
            },
        )

    def issue(self, name: str, names: tuple[str, ...] = NAMES) -> IssuedCertificate:
        return self.authority.issue(f"CN={name}", names, now_ms=now_ms())

    def write(self, file: str, issued: IssuedCertificate) -> str:
        path = self.directory / file
        path.write_text(issued.key_pem + issued.chain_pem)
        return str(path)

    def load(self) -> NodeTls:
        self.config.tls = tls = NodeTls(self.config, RealStoreFiles())
        return tls


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Node:
    return Node(tmp_path, authority)


def test_contexts_follow_the_use_of_a_listener(node: Node) -> None:
    tls = node.load()
    contexts = {}
    for name in ("CLIENTS", "BROKERS", "CONTROLLER"):
        found = tls.of(name)
        assert found is not None
        contexts[name] = found.server is not None, found.client is not None
    assert contexts == {"CLIENTS": (True, False), "BROKERS": (True, True), "CONTROLLER": (False, True)}
    assert tls.of("PLAINTEXT") is None


def test_a_key_with_the_prefix_of_a_listener_overrides_the_other(
    tmp_path: Path, authority: Authority
) -> None:
    prefix = "listener_name_clients_ssl_"
    tls = Node(tmp_path, authority, **{f"{prefix}client_auth": "required"}).load()
    found = {}
    for name in ("CLIENTS", "BROKERS"):
        one = tls.of(name)
        assert one is not None
        assert one.server is not None
        found[name] = one.server.verify_mode, one.asks_for_certificates
    assert found == {"CLIENTS": (ssl.CERT_REQUIRED, True), "BROKERS": (ssl.CERT_NONE, False)}


def test_a_sasl_listener_asks_for_certificates_only_with_its_own_key(
    tmp_path: Path, authority: Authority
) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required username=a password=b;"
    made = Node(
        tmp_path,
        authority,
        listener_security_protocol_map="CLIENTS:SASL_SSL,BROKERS:SASL_SSL,CONTROLLER:SSL",
        listener_name_clients_plain_sasl_jaas_config=module,
        listener_name_brokers_plain_sasl_jaas_config=module,
        sasl_enabled_mechanisms="PLAIN",
        sasl_mechanism_inter_broker_protocol="PLAIN",
        ssl_client_auth="required",
        listener_name_brokers_ssl_client_auth="requested",
    )
    tls = made.load()
    modes = [
        one.server.verify_mode for name in ("CLIENTS", "BROKERS") if (one := tls.of(name)) and one.server
    ]
    assert modes == [ssl.CERT_NONE, ssl.CERT_OPTIONAL]


def test_principals_follow_the_mapping_rules(tmp_path: Path, authority: Authority) -> None:
    rules = "RULE:^CN=(no.*)$/$1/U"
    made = Node(tmp_path, authority, ssl_principal_mapping_rules=rules)
    tls = made.load().of("CLIENTS")
    assert tls is not None
    assert tls.principal_of(None) == ANONYMOUS
    assert tls.principal_of(made.issue("node").der) == Principal(USER, "NODE")
    with pytest.raises(NoMatchingRuleError):
        tls.principal_of(made.issue("other").der)
    assert tls.own_name == "NODE"


def test_a_node_recognizes_nodes_with_its_own_principal_and_super_users(
    tmp_path: Path, authority: Authority
) -> None:
    made = Node(tmp_path, authority, super_users="User:CN=second", ssl_client_auth="required")
    made.load()
    assert own_principal(made.config) == Principal(USER, "CN=node")
    recognized = [is_node(made.config, Principal(USER, f"CN={one}")) for one in ("node", "second", "third")]
    assert recognized == [True, True, False]
    assert not is_node(made.config, ANONYMOUS)
    assert authenticates_clients(made.config, "BROKERS")


def test_a_listener_that_asks_for_no_certificate_authenticates_nobody(node: Node) -> None:
    node.load()
    assert not authenticates_clients(node.config, "BROKERS")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl_keystore_location": "/nosuch.pem"}, "listener CLIENTS: ssl.keystore.location=/nosuch.pem"),
        ({"ssl_principal_mapping_rules": "RULE:("}, "listener CLIENTS: ssl.principal.mapping.rules: "),
        ({"ssl_engine_factory_class": "a.B"}, "ssl.engine.factory.class"),
        ({"listener_name_controller_ssl_protocol": "SSLv3"}, "listener CONTROLLER: ssl.protocol=SSLv3"),
    ],
)
def test_an_invalid_setting_names_its_listener(
    tmp_path: Path, authority: Authority, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        Node(tmp_path, authority, **settings).load()


def test_brokers_must_accept_the_stores_of_the_inter_broker_listener(
    tmp_path: Path, authority: Authority
) -> None:
    (tmp_path / "others.pem").write_text(Authority.create("others", now_ms()).certificate_pem)
    others = {"listener_name_brokers_ssl_truststore_location": str(tmp_path / "others.pem")}
    with pytest.raises(ConfigError, match="listener BROKERS: a handshake with the key store"):
        Node(tmp_path, authority, **others).load()


# --- KIP-226


def test_new_certificates_apply_to_new_connections(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    tls = node.load()
    before, brokers = tls.of("CLIENTS"), tls.of("BROKERS")
    changed = {KEY_STORE: node.write("new.pem", node.issue("node", (*NAMES, "added")))}
    node.config.check_update(changed, per_broker=True)
    with caplog.at_level(logging.INFO):
        node.config.update({}, changed)
    after = tls.of("CLIENTS")
    assert after is not before
    assert tls.of("BROKERS") is brokers
    assert "New connections of listener CLIENTS use its new certificates" in caplog.text


def test_a_file_that_changed_in_place_is_loaded_with_the_next_change(node: Node) -> None:
    tls = node.load()
    before = tls.of("CLIENTS")
    node.config.update({}, {})
    assert tls.of("CLIENTS") is before
    path = node.write("node.pem", node.issue("node"))
    os.utime(path, ns=(1, 1))
    node.config.update({}, {})
    assert tls.of("CLIENTS") is not before


def test_certificates_that_cannot_replace_the_current_ones_are_refused(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    tls = node.load()
    before = tls.of("CLIENTS")
    for path, message in {
        node.write("other.pem", node.issue("other")): "has another subject, CN=other instead of CN=node",
        node.write("fewer.pem", node.issue("node", ("localhost",))): "lacks subject alternative names",
        "/nosuch.pem": "No such file or directory",
    }.items():
        changed = {KEY_STORE: path}
        with pytest.raises(ConfigError, match=f"listener CLIENTS: .*{message}"):
            node.config.check_update(changed, per_broker=True)
        with caplog.at_level(logging.ERROR):
            node.config.update({}, changed)
        assert "Listener CLIENTS keeps its previous certificates: " in caplog.text
        assert tls.of("CLIENTS") is before
        caplog.clear()


@pytest.mark.parametrize("prefix", ["", "listener.name.clients.", "listener.name.brokers."])
def test_only_the_stores_of_an_existing_listener_can_change(
    tmp_path: Path, authority: Authority, prefix: str
) -> None:
    made = Node(tmp_path, authority, ssl_client_auth="required")
    tls = made.load()
    before = tls.of("CLIENTS"), tls.of("BROKERS")
    fixed = {"ssl.client.auth": "none", "ssl.endpoint.identification.algorithm": "", "ssl.protocol": "TLS"}
    changed = {f"{prefix}{key}": value for key, value in fixed.items()}
    made.config.check_update(changed, per_broker=True)
    made.config.update({}, changed)
    assert (tls.of("CLIENTS"), tls.of("BROKERS")) == before

    made.config.update({}, changed | {KEY_STORE: made.write("new.pem", made.issue("node"))})
    replaced = tls.of("CLIENTS")
    assert replaced is not before[0]
    assert replaced is not None
    assert replaced.server is not None
    assert replaced.server.verify_mode is ssl.CERT_REQUIRED


def test_new_stores_must_work_with_the_current_ones_on_the_inter_broker_listener(
    authority: Authority,
) -> None:
    other = Authority.create("other", now_ms())
    current, new = (
        one.issue("CN=node", NAMES, now_ms=now_ms()).inline_settings() | one.inline_settings()
        for one in (authority, other)
    )
    for is_inter_broker in (True, False):
        use = ListenerUse(is_served=True, connects=False, is_inter_broker=is_inter_broker)
        tls = ListenerTls("BROKERS", current, RealStoreFiles(), use)
        with pytest.raises(ConfigError, match="a handshake with") if is_inter_broker else nullcontext():
            tls.replaced(new)


def test_a_trust_store_cannot_be_added(authority: Authority) -> None:
    keys = authority.issue("CN=node", NAMES, now_ms=now_ms()).inline_settings()
    tls = ListenerTls("CLIENTS", keys, RealStoreFiles(), ListenerUse(is_served=True, connects=False))
    with pytest.raises(ConfigError, match="cannot be added to a listener without a trust store"):
        tls.replaced(keys | authority.inline_settings())


def test_a_listener_can_be_removed_together_with_its_key_store(tmp_path: Path, authority: Authority) -> None:
    own = tmp_path / "own.pem"
    made = Node(
        tmp_path,
        authority,
        advertised_listeners="BROKERS://127.0.0.1:0",
        listener_name_clients_ssl_keystore_location=str(own),
    )
    made.write("own.pem", made.issue("node"))
    made.load()
    own.unlink()
    made.config.check_update({"max.connections": "9"}, per_broker=True)
    with pytest.raises(ConfigError, match="listener CLIENTS: "):
        made.config.check_update({"listener.name.clients.ssl.key.password": "x"}, per_broker=True)
    made.config.check_update({"listeners": "BROKERS://127.0.0.1:0"}, per_broker=True)


def test_a_subject_may_change_if_the_settings_allow_it(tmp_path: Path, authority: Authority) -> None:
    made = Node(tmp_path, authority, ssl_allow_dn_changes="true")
    made.load()
    changed = {KEY_STORE: made.write("other.pem", made.issue("other"))}
    made.config.check_update(changed, per_broker=True)
