"""ACLs without an authorizer, through kafka-python and confluent-kafka."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
)
from kafka.admin import ResourceType as KafkaPythonResourceType
from kafka.errors import KafkaError

from interop.brokers import Broker
from interop.scenario import scenario

TOPIC, ALICE = "clients-acls", "User:alice"
WAIT_S = 30.0


@scenario()
def kafka_python(broker: Broker) -> Any:
    """Describe, create and delete ACLs with KafkaAdminClient."""
    topic = KafkaPythonResourceType.TOPIC
    created = [
        ACL(ALICE, "*", operation, ACLPermissionType.ALLOW, ResourcePattern(topic, TOPIC))
        for operation in (ACLOperation.READ, ACLOperation.WRITE)
    ]
    pattern = ResourcePatternFilter(topic, TOPIC, ACLResourcePatternType.LITERAL)
    filters = [
        ACLFilter(ALICE, "*", operation, ACLPermissionType.ANY, pattern)
        for operation in (ACLOperation.READ, ACLOperation.ANY)
    ]
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        return {
            "described": _outcome(lambda: admin.describe_acls(filters[1])),
            "created": _outcome(lambda: admin.create_acls(created)),
            "deleted": _outcome(lambda: admin.delete_acls(filters)),
        }
    finally:
        admin.close()


def _outcome(call: Any) -> str:
    try:
        return repr(call())
    except KafkaError as error:
        return repr(error)


@scenario()
def confluent_kafka(broker: Broker) -> Any:
    """Describe, create and delete ACLs with AdminClient."""
    operations = (AclOperation.READ, AclOperation.WRITE)
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    created = [
        AclBinding(ResourceType.TOPIC, TOPIC, literal, ALICE, "*", operation, allow)
        for operation in operations
    ]
    filters = [
        AclBindingFilter(ResourceType.TOPIC, TOPIC, ResourcePatternType.MATCH, ALICE, "*", operation, allow)
        for operation in operations
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    futures = {
        "described": [admin.describe_acls(filters[0])],
        "created": list(admin.create_acls(created).values()),
        "deleted": list(admin.delete_acls(filters).values()),
    }
    return {name: [_result(future) for future in started] for name, started in futures.items()}


def _result(future: Any) -> Any:
    try:
        return repr(future.result(WAIT_S))
    except KafkaException as error:
        failed = error.args[0]
        return [failed.name(), failed.str()]
