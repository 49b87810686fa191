"""The audit log of the authorizer: levels, texts, and the rates of decisions."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, Final

import pytest

from kwire.broker.api.request.audit_log import BATCH, AuditLog
from kwire.broker.security.acl import Acl, PatternType, Permission
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.security.principal import Principal
from kwire.broker.security.standard_authorizer import StandardAuthorizer
from kwire.host.loggers import AUDIT_LOGGER, TRACE, NodeLogger
from kwire.wire.api_keys import ApiKey

ACL: Final = Acl(
    ResourceType.TRANSACTIONAL_ID,
    "pay",
    PatternType.LITERAL,
    Operation.WRITE,
    "User:alice",
    "*",
    Permission.ALLOW,
)
TEXT: Final = (
    "Principal = User:{} is {} operation = WRITE from host = 10.0.0.1 on resource = "
    "TransactionalId:LITERAL:pay for request = InitProducerId with resourceRefCount = 1 based on rule {}"
)


class Host:
    def __init__(self) -> None:
        self.now_ms = 0

    def logger(self, name: str) -> NodeLogger:
        return NodeLogger(name, "")

    def monotonic_ms(self) -> int:
        return self.now_ms


RULES: Final = StandardAuthorizer(frozenset(), allows_without_acls=False).changed(added=[ACL])


def audit_log(host: Host) -> AuditLog:
    return AuditLog(host)  # type: ignore[arg-type]


def record(audit: AuditLog, name: str, **changes: Any) -> None:
    context: Any = SimpleNamespace(
        principal=Principal("User", name),
        peer_host="10.0.0.1",
        header=SimpleNamespace(api_key=ApiKey.INIT_PRODUCER_ID),
    )
    is_allowed = name == "alice"
    audit.record(
        *(RULES, context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "pay"),
        is_allowed=is_allowed,
        **changes,
    )


def test_lines_and_levels_are_those_of_kafka(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, AUDIT_LOGGER)
    audit = audit_log(Host())
    record(audit, "alice")
    record(audit, "bob")
    record(audit, "bob", is_asked=False)
    denied = TEXT.format("bob", "Denied", "DefaultDeny")
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (logging.DEBUG, TEXT.format("alice", "Allowed", f"MatchingAcl(acl={ACL})")),
        (logging.INFO, denied),
        (TRACE, denied),
    ]


def test_listed_operations_and_references_are_logged_as_by_kafka(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, AUDIT_LOGGER)
    audit = audit_log(Host())
    record(audit, "alice", is_used=False)
    record(audit, "alice", references=3)
    lines = [(one.levelno, one.getMessage()) for one in caplog.records]
    assert [level for level, _ in lines] == [TRACE, logging.DEBUG]
    assert "with resourceRefCount = 3 based on" in lines[1][1]


def test_listed_operations_are_part_of_the_rates(caplog: pytest.LogCaptureFixture) -> None:
    context: Any = SimpleNamespace(
        principal=Principal("User", "alice"),
        peer_host="10.0.0.1",
        header=SimpleNamespace(api_key=ApiKey.METADATA),
    )
    for level in (logging.INFO, TRACE):
        caplog.clear()
        caplog.set_level(level, AUDIT_LOGGER)
        audit = audit_log(Host())
        decisions = {Operation.READ: True, Operation.WRITE: False, Operation.DESCRIBE: True}
        audit.record_operations(RULES, context, ResourceType.TOPIC, "t", decisions)
        is_off = level == logging.INFO
        assert audit.count_allowed(2) == is_off, "logged operations are not counted here"
        assert audit.recorded == (5 if is_off else 3)
        assert [one.levelno for one in caplog.records] == ([TRACE] * 3 if level == TRACE else [])


def test_an_address_has_the_form_that_acls_need(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    context: Any = SimpleNamespace(
        principal=Principal("User", "bob"),
        peer_host="::1",
        header=SimpleNamespace(api_key=ApiKey.METADATA),
    )
    audit_log(Host()).record(RULES, context, Operation.READ, ResourceType.TOPIC, "t", is_allowed=False)
    assert "from host = 0:0:0:0:0:0:0:1 on" in caplog.text


def test_a_client_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    context: Any = SimpleNamespace(
        principal=Principal("User", "bob\r"),
        peer_host="10.0.0.1",
        header=SimpleNamespace(api_key=ApiKey.DESCRIBE_GROUPS),
    )
    name = "g\nPrincipal = User:admin is Denied"
    audit_log(Host()).record(RULES, context, Operation.DESCRIBE, ResourceType.GROUP, name, is_allowed=False)
    audit_log(Host()).record_page(RULES, context.principal, "10.0.0.1", "GET", "/\x1b[2K", is_allowed=False)
    line, of_page = [one.getMessage() for one in caplog.records]
    assert line.isprintable()
    assert of_page.isprintable()
    assert r"Group:LITERAL:g\nPrincipal" in line
    assert r"for request = GET /\x1b[2K with" in of_page


def test_rates() -> None:
    host = Host()
    audit = audit_log(host)
    for _ in range(BATCH):
        record(audit, "alice")
    record(audit, "bob")
    host.now_ms = 30_000
    allowed, denied = audit.per_minute()
    assert allowed == pytest.approx(BATCH * 2)
    assert 0 < denied < 5
