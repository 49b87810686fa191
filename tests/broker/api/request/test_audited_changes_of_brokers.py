"""The lines of the audit log for changes of a broker's configuration and of its loggers."""

from __future__ import annotations

from typing import Final

import pytest

from kwire.broker.api.request.audit_log import AuditLog
from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_BROKER_LOGGER
from kwire.broker.security.acl import Acl, PatternType, Permission
from kwire.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from kwire.broker.security.principal import Principal
from kwire.broker.security.standard_authorizer import StandardAuthorizer
from kwire.host.loggers import AUDIT_LOGGER, TRACE
from kwire.wire.errors import ErrorCode
from kwire.wire.messages import incremental_alter_configs as alter
from tests.node_harness import NodeHarness

RIGHT: Final = Acl(
    *(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, Operation.ALTER_CONFIGS, "User:ann", "*"),
    Permission.ALLOW,
)
VALID: Final = alter.AlterableConfig(name="log.cleaner.threads", config_operation=0, value="2")
INVALID: Final = alter.AlterableConfig(name="log.cleaner.threads", config_operation=0, value="x")
LEVEL: Final = alter.AlterableConfig(name=AUDIT_LOGGER, config_operation=0, value="TRACE")
DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
BROKER, LOGGER = RESOURCE_BROKER, RESOURCE_BROKER_LOGGER


@pytest.mark.parametrize(
    ("is_allowed", "resource_type", "config", "code", "lines"),
    [
        pytest.param(True, BROKER, VALID, 0, 1, id="by-the-controller"),
        pytest.param(True, BROKER, INVALID, ErrorCode.INVALID_REQUEST, 0, id="not-forwarded"),
        pytest.param(False, BROKER, VALID, DENIED, 1, id="denied"),
        pytest.param(False, BROKER, INVALID, DENIED, 1, id="denied-before-the-value"),
        pytest.param(True, LOGGER, LEVEL, 0, 1, id="logger"),
        pytest.param(False, LOGGER, LEVEL, DENIED, 1, id="denied-logger"),
    ],
)
def test_a_change_of_a_broker_is_logged_once(
    caplog: pytest.LogCaptureFixture,
    is_allowed: bool,
    resource_type: int,
    config: alter.AlterableConfig,
    code: int,
    lines: int,
) -> None:
    harness = NodeHarness()
    rules = StandardAuthorizer(frozenset(), allows_without_acls=False)
    harness.node.gate.authorizer = rules.changed(added=[RIGHT]) if is_allowed else rules
    harness.node.gate.audit_log = AuditLog(harness.host)
    caplog.set_level(TRACE, AUDIT_LOGGER)
    resource = alter.AlterConfigsResource(
        resource_type=resource_type, resource_name=str(harness.node.node_id), configs=[config]
    )
    request = alter.IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
    response = harness.connect(principal=Principal("User", "ann")).call(1, request)
    assert response.responses[0].error_code == code
    logged = [record for record in caplog.records if record.name == AUDIT_LOGGER]
    assert [record.levelname for record in logged] == ["DEBUG" if is_allowed else "INFO"] * lines
    assert all("operation = ALTER_CONFIGS " in record.getMessage() for record in logged)
