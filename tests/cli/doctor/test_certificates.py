"""Findings of `kwire doctor` about TLS."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from kwire.broker.config import load
from kwire.broker.net.store_files import RealStoreFiles
from kwire.certificates.authority import Authority, IssuedCertificate
from kwire.cli.doctor import certificates
from kwire.cli.doctor.certificates import DAY_MS, ClientCertificate
from kwire.cli.doctor.finding import OK, PROBLEM, WARNING, Finding
from kwire.testing import Broker
from kwire.testing.tls import Tls
from tests.cli.run_command import RunCommand

NOW_MS = time.time_ns() // 1_000_000
HOST = "kafka1.example.org"
AUTHORITY = Authority.create("the authority", NOW_MS)
OTHER = Authority.create("another authority", NOW_MS)
NODE = AUTHORITY.issue("CN=node 1,O=example", [HOST], now_ms=NOW_MS)
ALICE = ClientCertificate("alice.pem", AUTHORITY.issue("CN=alice", now_ms=NOW_MS).der)
PEM = serialization.Encoding.PEM


def signed(
    subject: str,
    issuer: IssuedCertificate,
    *,
    is_authority: bool = False,
    names: tuple[str, ...] = (HOST,),
    usage: x509.ObjectIdentifier | None = None,
) -> IssuedCertificate:
    """Issue a certificate that `Authority` does not issue: by an intermediate one, or with other usages."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name.from_rfc4514_string(subject))
        .issuer_name(issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=100))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if names:
        alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(alternative, critical=False)
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return IssuedCertificate(builder.sign(issuer.key, hashes.SHA256()), key)


def root(subject: str) -> IssuedCertificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name.from_rfc4514_string(subject)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NODE.certificate.not_valid_before_utc)
        .not_valid_after(NODE.certificate.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    return IssuedCertificate(builder.sign(key, hashes.SHA256()), key)


def with_chain(leaf: IssuedCertificate, *issuers: IssuedCertificate) -> dict[str, str]:
    chain = "".join(one.chain_pem for one in (leaf, *issuers))
    return leaf.inline_settings() | {"ssl.keystore.certificate.chain": chain}


def trusting(*trusted: IssuedCertificate | Authority) -> dict[str, str]:
    texts = [one.chain_pem if isinstance(one, IssuedCertificate) else one.certificate_pem for one in trusted]
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "".join(texts)}


def settings_of(*parts: Mapping[str, str], nodes: bool = False, host: str = HOST) -> dict[str, str]:
    """Return the settings of a node with a TLS listener CLIENTS, at which nodes connect if `nodes`."""
    settings = {
        "listeners": "CLIENTS://:9094,PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"CLIENTS://{host}:9094,PLAINTEXT://localhost:9092",
        "listener.security.protocol.map": "CLIENTS:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS" if nodes else "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093",
    }
    for part in parts:
        settings |= part
    return settings


def findings_of(
    settings: Mapping[str, str], *, client: ClientCertificate | None = None, now_ms: int = NOW_MS
) -> list[Finding]:
    config = load(None, {}, dict(settings))
    return list(certificates.findings(config, RealStoreFiles(), now_ms, "own.example.org", client))


def faults(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.severity != OK]


GOOD = NODE.inline_settings() | AUTHORITY.inline_settings()


def test_valid_certificate_is_reported_with_its_end_host_and_principal() -> None:
    found = findings_of(settings_of(GOOD, {"ssl.client.auth": "required"}, nodes=True))
    assert faults(found) == []
    assert [one.message for one in found] == [
        f"listener CLIENTS: the certificate CN=node 1,O=example is valid until {_end(NODE)}",
        f"listener CLIENTS: the certificate CN=node 1,O=example has the host name {HOST}",
        "listener CLIENTS: this node's certificate has the principal User:CN=node 1,O=example",
    ]


def _end(issued: IssuedCertificate) -> str:
    return f"{issued.certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%S}.000Z"


def test_findings_about_a_shared_key_store_are_not_repeated() -> None:
    listeners = {
        "listeners": "CLIENTS://:9094,BROKERS://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"CLIENTS://{HOST}:9094,BROKERS://other.example.org:9092",
        "listener.security.protocol.map": "CLIENTS:SSL,BROKERS:SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
    }
    found = [
        one.message.partition(" the certificate CN=node 1,O=example ")
        for one in findings_of(settings_of(GOOD, listeners))
    ]
    assert [(where, text) for where, _, text in found if text] == [
        ("listeners CLIENTS, BROKERS:", f"is valid until {_end(NODE)}"),
        ("listener CLIENTS:", f"has the host name {HOST}"),
        (
            "listener BROKERS:",
            f"has no subject alternative name for the host other.example.org, only DNS:{HOST}",
        ),
    ]


def test_node_without_tls_has_no_findings() -> None:
    assert findings_of({}) == []


@pytest.mark.parametrize(
    ("days", "severity", "text"),
    [
        (-1, PROBLEM, "is not valid before "),
        (69, OK, "is valid until "),
        (71, WARNING, "expires in 29 days, at "),
        (99, WARNING, "expires in 1 day, at "),
        (101, PROBLEM, "expired at "),
    ],
)
def test_validity_is_checked_at_the_given_time(days: int, severity: str, text: str) -> None:
    node = AUTHORITY.issue("CN=node", [HOST], now_ms=NOW_MS, lifetime_days=100)
    now_ms = NOW_MS + days * DAY_MS - 1000  # certificates have no milliseconds
    found = findings_of(settings_of(node.inline_settings(), AUTHORITY.inline_settings()), now_ms=now_ms)
    first = next(one for one in found if "certificate CN=node " in one.message)
    assert first.severity == severity
    assert text in first.message
    assert (first.fix is None) == (severity == OK)


def test_last_second_of_the_validity_is_valid() -> None:
    node = AUTHORITY.issue("CN=node", [HOST], now_ms=NOW_MS, lifetime_days=100)
    settings = settings_of(node.inline_settings(), AUTHORITY.inline_settings())
    assert [one.severity for one in faults(findings_of(settings, now_ms=node.expires_ms))] == [WARNING]
    assert [one.severity for one in faults(findings_of(settings, now_ms=node.expires_ms + 1))] == [PROBLEM]


def test_chain_and_trust_are_checked_without_the_time_of_this_machine() -> None:
    then = NOW_MS - 20 * 365 * DAY_MS
    authority = Authority.create("past", then)
    node = authority.issue("CN=node", [HOST], now_ms=then)
    settings = settings_of(node.inline_settings(), authority.inline_settings())
    assert faults(findings_of(settings, now_ms=then)) == []


def test_expired_intermediate_certificate_is_a_problem() -> None:
    top = root("CN=top")
    middle = signed("CN=middle", top, is_authority=True, names=())
    leaf = signed("CN=leaf", middle)
    settings = settings_of(with_chain(leaf, middle), trusting(top))
    found = faults(findings_of(settings, now_ms=NOW_MS + 101 * DAY_MS))
    assert any("certificate CN=middle expired" in one.message for one in found)


def test_expired_trusted_certificate_is_a_problem_unless_another_one_is_valid() -> None:
    old = Authority.create("old", NOW_MS, lifetime_days=1)
    later = NOW_MS + 2 * DAY_MS
    (alone,) = faults(findings_of(settings_of(NODE.inline_settings(), trusting(old)), now_ms=later))[:1]
    assert alone.severity == PROBLEM
    assert "ssl.truststore.certificates: the certificate CN=old expired at" in alone.message
    (beside,) = faults(
        findings_of(settings_of(NODE.inline_settings(), trusting(old, AUTHORITY)), now_ms=later)
    )
    assert beside.severity == WARNING
    assert "in the trust store" in (beside.fix or "")


def test_each_listener_whose_stores_cannot_be_loaded_is_a_problem() -> None:
    settings = settings_of(
        {
            "listener.security.protocol.map": "CLIENTS:SSL,PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
            "listener.name.clients.ssl.keystore.location": "/none/clients.pem",
            "listener.name.plaintext.ssl.keystore.location": "/none/nodes.pem",
            "ssl.keystore.type": "PEM",
        }
    )
    found = findings_of(settings)
    assert [one.severity for one in found] == [PROBLEM, PROBLEM]
    assert "listener CLIENTS: ssl.keystore.location=/none/clients.pem cannot be read" in found[0].message
    assert "listener PLAINTEXT: ssl.keystore.location=/none/nodes.pem cannot be read" in found[1].message


def test_stores_are_checked_further_if_only_another_setting_is_invalid() -> None:
    settings = settings_of(GOOD, {"ssl.cipher.suites": "unknown"}, host="other.example.org")
    found = faults(findings_of(settings))
    assert len(found) == 2
    assert "ssl.cipher.suites has unknown" in found[0].message
    assert "no subject alternative name for the host other.example.org" in found[1].message


@pytest.mark.parametrize(
    ("names", "host", "matches"),
    [
        (["*.example.org"], "a.example.org", True),
        (["*.example.org"], "A.EXAMPLE.org", True),
        (["*.example.org"], "a.b.example.org", False),
        (["*.example.org"], "example.org", False),
        (["*.org"], "example.org", False),
        (["a.example.org", "b.example.org"], "b.example.org", True),
        (["10.0.0.1"], "10.0.0.1", True),
        (["10.0.0.1"], "10.0.0.2", False),
        (["2001:db8::1"], "2001:DB8:0::1", True),
    ],
)
def test_advertised_host_needs_a_subject_alternative_name(names: list[str], host: str, matches: bool) -> None:
    node = AUTHORITY.issue("CN=example.org", names, now_ms=NOW_MS)
    advertised = f"[{host}]" if ":" in host else host
    found = faults(findings_of(settings_of(with_chain(node), trusting(AUTHORITY), host=advertised)))
    if matches:
        assert found == []
    else:
        (only,) = found
        assert only.severity == PROBLEM
        kind = "IP" if names[0][0].isdigit() else "DNS"
        assert f"for the host {host}, only {kind}:{names[0]}" in only.message
        assert host in (only.fix or "")


def test_ip_address_as_dns_name_does_not_match() -> None:
    top = root("CN=top")
    settings = settings_of(
        with_chain(signed("CN=x", top, names=("10.0.0.1",))), trusting(top), host="10.0.0.1"
    )
    (only,) = faults(findings_of(settings))
    assert (only.severity, only.message.endswith("only DNS:10.0.0.1")) == (PROBLEM, True)


def test_host_in_the_common_name_only_is_a_warning() -> None:
    node = AUTHORITY.issue(f"CN={HOST}", now_ms=NOW_MS)
    (only,) = faults(findings_of(settings_of(with_chain(node), trusting(AUTHORITY))))
    assert only.severity == WARNING
    assert only.message.endswith("only none")


def test_other_host_is_a_warning_if_nodes_do_not_check_host_names() -> None:
    settings = settings_of(GOOD, {"ssl.endpoint.identification.algorithm": ""}, host="other.example.org")
    assert [one.severity for one in faults(findings_of(settings))] == [WARNING]


def test_hosts_of_controllers_and_of_unbound_listeners_are_checked() -> None:
    settings = settings_of(
        GOOD,
        {
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "advertised.listeners": "PLAINTEXT://localhost:9092",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
            "controller.quorum.voters": "1@voter.example.org:9093,2@another.example.org:9093",
        },
    )
    texts = [one.message for one in faults(findings_of(settings))]
    assert len(texts) == 2
    assert "for the host own.example.org" in texts[0]
    assert "for the host voter.example.org" in texts[1]


@pytest.mark.parametrize(
    ("nodes", "severity"), [(True, PROBLEM), (False, WARNING)], ids=["nodes connect", "only clients"]
)
def test_missing_intermediate_certificate_is_reported(nodes: bool, severity: str) -> None:
    top = root("CN=top")
    middle = signed("CN=middle", top, is_authority=True, names=())
    leaf = signed("CN=leaf", middle)
    (found,) = faults(findings_of(settings_of(with_chain(leaf), trusting(top), nodes=nodes)))
    assert found.severity == severity
    assert "unable to get local issuer certificate" in found.message
    if not nodes:  # at the inter-broker listener, the node itself refuses these stores
        assert "add the certificate of CN=middle" in (found.fix or "")
    assert faults(findings_of(settings_of(with_chain(leaf, middle), trusting(top), nodes=nodes))) == []


def test_controller_listener_must_trust_its_own_certificate() -> None:
    settings = settings_of(
        NODE.inline_settings(),
        {
            "listeners": f"PLAINTEXT://:9092,CONTROLLER://{HOST}:9093",
            "advertised.listeners": "PLAINTEXT://localhost:9092",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
            "controller.quorum.voters": f"1@{HOST}:9093",
        },
    )
    (found,) = faults(findings_of(settings | trusting(OTHER)))
    assert found.severity == PROBLEM
    assert "is not trusted by ssl.truststore.certificates: " in found.message
    assert faults(findings_of(settings | trusting(OTHER, AUTHORITY))) == []
    (system,) = faults(findings_of(settings))
    assert "is not trusted by the system's certificates: " in system.message


def test_authority_that_clients_must_trust_is_named_without_a_trust_store() -> None:
    found = findings_of(settings_of(NODE.inline_settings()))
    assert faults(found) == []
    assert "listener CLIENTS: clients must trust CN=the authority, which issued CN=node 1,O=example" in [
        one.message for one in found
    ]


def test_chain_with_another_key_of_an_issuer_is_a_problem() -> None:
    top = root("CN=top")
    leaf = signed("CN=leaf", signed("CN=middle", top, is_authority=True, names=()))
    other_middle = signed("CN=middle", top, is_authority=True, names=())
    (found,) = faults(findings_of(settings_of(with_chain(leaf, other_middle), trusting(top))))
    assert found.severity == PROBLEM
    assert "the chain of the certificate CN=leaf is not valid: " in found.message


@pytest.mark.parametrize(
    ("usage", "nodes", "is_valid"),
    [
        (ExtendedKeyUsageOID.SERVER_AUTH, False, True),
        (ExtendedKeyUsageOID.SERVER_AUTH, True, False),
        (ExtendedKeyUsageOID.CLIENT_AUTH, False, False),
    ],
)
def test_certificate_must_permit_its_uses(usage: x509.ObjectIdentifier, nodes: bool, is_valid: bool) -> None:
    top = root("CN=top")
    leaf = signed("CN=leaf", top, usage=usage)
    found = faults(findings_of(settings_of(with_chain(leaf), trusting(top), nodes=nodes)))
    assert [(one.severity, "unsuitable certificate purpose" in one.message) for one in found] == [
        (PROBLEM, True)
    ] * (not is_valid)


def test_unsafe_settings_are_warnings() -> None:
    settings = settings_of(NODE.inline_settings(), {"ssl.client.auth": "required"})
    found = faults(findings_of(settings))
    (unsafe,) = [one for one in found if "every public certificate authority" in one.message]
    assert unsafe.severity == WARNING
    assert (unsafe.fix or "").startswith("set ssl.truststore.location")


RULES = {"ssl.principal.mapping.rules": "RULE:^CN=(\\w+)$/$1/U", "ssl.client.auth": "required"}


def test_principals_follow_the_mapping_rules() -> None:
    found = findings_of(settings_of(GOOD, RULES), client=ALICE)
    assert "listener CLIENTS: the certificate in alice.pem has the principal User:ALICE" in [
        one.message for one in found
    ]
    (only,) = faults(found)
    assert only.severity == WARNING
    assert "this node's certificate has no principal: No rules apply to CN=node 1" in only.message
    (only,) = faults(findings_of(settings_of(GOOD, RULES, nodes=True)))
    assert only.severity == PROBLEM
    bob = ClientCertificate("bob.pem", NODE.der)
    texts = [(one.severity, one.message) for one in faults(findings_of(settings_of(GOOD, RULES), client=bob))]
    assert (PROBLEM, True) in [
        (severity, "the certificate in bob.pem has no principal" in text) for severity, text in texts
    ]


def test_client_certificate_has_no_effect_without_client_authentication() -> None:
    (only,) = faults(findings_of(settings_of(GOOD), client=ALICE))
    assert "every client is User:ANONYMOUS, because ssl.client.auth is none" in only.message
    sasl = {"listener.security.protocol.map": "CLIENTS:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"}
    (only,) = faults(findings_of(settings_of(sasl), client=ALICE))
    assert "no listener has the security protocol SSL" in only.message


def test_expired_client_certificate_is_a_problem() -> None:
    later = NOW_MS + 1000 * DAY_MS
    found = findings_of(settings_of({"listener.security.protocol.map": "CLIENTS:PLAINTEXT,"
                                     "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"}),
                        client=ALICE, now_ms=later)  # fmt: skip
    assert "--certificate alice.pem: the certificate CN=alice expired at" in found[0].message


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_command_reports_tls_and_the_principal_of_a_file(
    offline: RunCommand, write: Callable[[str, str], str], tmp_path: Path
) -> None:
    alice = AUTHORITY.issue("CN=alice", now_ms=NOW_MS)
    path = write("alice.pem", alice.key_pem + alice.chain_pem)
    options = [f"--set={key}={text}" for key, text in settings_of(GOOD, RULES).items()]
    result = offline("doctor", *options, "--data", str(tmp_path / "data"), "--certificate", path)
    assert f"listener CLIENTS: the certificate in {path} has the principal User:ALICE" in result.out
    for name, text in {"empty.pem": "", "bad.pem": "-----BEGIN CERTIFICATE-----AA-----END"}.items():
        assert "give a" in offline("doctor", "--certificate", write(name, text)).sentence
    assert "No such file" in offline("doctor", "--certificate", str(tmp_path / "none")).sentence


def test_running_broker_with_tls_is_recognized(offline: RunCommand, tmp_path: Path) -> None:
    for tls in (Tls(), Tls(client_auth="required")):
        with Broker(tls=tls, log_dir=tmp_path / tls.client_auth) as broker:
            settings = GOOD | {
                "listeners": f"SSL://{broker.bootstrap_servers}",
                "listener.security.protocol.map": "SSL:SSL",
                "inter.broker.listener.name": "SSL",
            }
            options = [f"--set={key}={text}" for key, text in settings.items()]
            result = offline("doctor", *options, "--data", str(tmp_path / tls.client_auth))
            assert f"a broker listens on {broker.bootstrap_servers} of SSL" in result.out
