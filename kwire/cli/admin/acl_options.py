"""Options that describe ACLs, with the names and meanings of Apache Kafka's kafka-acls."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from kwire.broker.security.acl import (
    ALL_OPERATIONS,
    ANY,
    WILDCARD,
    Acl,
    AclFilter,
    PatternType,
    Permission,
    name_of,
    operation_name,
)
from kwire.broker.security.authorizer import CLUSTER_NAME, SUPPORTED_OPERATIONS, Operation, ResourceType
from kwire.broker.security.principal import USER
from kwire.cli.shared.command_error import UsageError
from kwire.cli.shared.options import Once, add_repeatable_option
from kwire.cli.shared.output import Row

OPERATIONS: Final = {"All": ALL_OPERATIONS} | {
    "".join(word.title() for word in one.name.split("_")): int(one) for one in Operation
}
"""The operations, with the names that kafka-acls and Kafka's documentation have for options."""
_RESOURCE_OPTIONS: Final[Mapping[ResourceType, tuple[str, str]]] = {
    ResourceType.TOPIC: ("topic", "NAME"),
    ResourceType.GROUP: ("group", "NAME"),
    ResourceType.TRANSACTIONAL_ID: ("transactional-id", "ID"),
    ResourceType.DELEGATION_TOKEN: ("delegation-token", "ID"),
    ResourceType.USER: ("user-principal", "USER"),
}
"""The option of each resource type with names, and the placeholder of its value."""
_PRODUCER: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}
"""The operations that --producer and --consumer stand for."""


class Resource(NamedTuple):
    """A resource of the options."""

    type: ResourceType
    name: str


def add_resource_options(parser: ArgumentParser, *, once: bool = False) -> None:
    """Add the options that name resources. With `once`, each option accepts one resource."""
    for kind, (option, metavar) in _RESOURCE_OPTIONS.items():
        help_ = f"a {kind.name.lower().replace('_', ' ')}"
        if once:
            parser.add_argument(f"--{option}", metavar=metavar, action=Once, help=help_)
        else:
            add_repeatable_option(parser, f"--{option}", metavar, f"{help_}, or '*' for all")
    parser.add_argument("--cluster", action="store_true", help="the cluster")


def add_pattern_option(parser: ArgumentParser, *, is_filter: bool) -> None:
    """Add --resource-pattern-type. With `is_filter`, the values any and match are valid."""
    choices = ["literal", "prefixed"]
    help_ = "whether the resources are names or prefixes of names (default: literal)"
    if is_filter:
        choices += ["match", "any"]
        help_ = (
            "only ACLs with these literal names (default), with these prefixes, with either (any), or all "
            "that apply to resources with these names (match)"
        )
    parser.add_argument(
        "--resource-pattern-type", type=str.lower, choices=choices, default="literal", help=help_
    )


def add_entry_options(parser: ArgumentParser) -> None:
    """Add the options that say who may do what."""
    add_repeatable_option(parser, "--allow-principal", "USER", "allow this principal, like User:alice")
    add_repeatable_option(parser, "--deny-principal", "USER", "deny this principal")
    add_repeatable_option(parser, "--allow-host", "ADDRESS", "allow from this IP address (default: all)")
    add_repeatable_option(parser, "--deny-host", "ADDRESS", "deny from this IP address (default: all)")
    add_operation_option(parser, "operation (default: All)", action="append")
    parser.add_argument(
        "--producer", action="store_true", help="the operations that a producer needs on its topics"
    )
    parser.add_argument(
        "--consumer",
        action="store_true",
        help="the operations that a consumer needs on its topics and groups",
    )
    parser.add_argument(
        "--idempotent",
        action="store_true",
        help="with --producer: IdempotentWrite on the cluster, which brokers before 2.8 require",
    )


def add_operation_option(parser: ArgumentParser, help_: str, *, action: str | type[Once] = Once) -> None:
    more = "; can be repeated" if action == "append" else ""
    parser.add_argument(
        "--operation",
        type=_canonical_operation,
        choices=list(OPERATIONS),
        metavar="OPERATION",
        action=action,
        help=f"{help_}, such as Read or DescribeConfigs{more}",
    )


def _canonical_operation(text: str) -> str:
    wanted = text.strip().replace("_", "").replace("-", "").lower()
    for name in OPERATIONS:
        if name.lower() == wanted:
            return name
    raise ArgumentTypeError(f"{text} is not one of {', '.join(OPERATIONS)}")


def principal_of(text: str) -> str:
    """Return a principal with its type, which is User by default."""
    return text if ":" in text else f"{USER}:{text}"


def resources_of(options: Namespace) -> list[Resource]:
    """Return the resources that the options name."""
    found = [Resource(ResourceType.CLUSTER, CLUSTER_NAME)] if options.cluster else []
    for kind, (option, _) in _RESOURCE_OPTIONS.items():
        given = getattr(options, option.replace("-", "_"))
        for name in [given] if isinstance(given, str) else given or ():
            is_user = kind is ResourceType.USER and name != WILDCARD
            found.append(Resource(kind, principal_of(name) if is_user else name))
    return found


def acls_of(options: Namespace) -> list[Acl]:
    """Return the ACLs that the options of `add` and `remove` describe; empty without a principal.

    Raises UsageError if the options contradict each other.
    """
    entries = [*_entries(options.allow_principal, options.allow_host, Permission.ALLOW, "allow")]
    entries += _entries(options.deny_principal, options.deny_host, Permission.DENY, "deny")
    return list(
        dict.fromkeys(
            Acl(resource.type, resource.name, pattern_type, operation, principal, host, permission)
            for resource, operation, pattern_type in _operations(options)
            for principal, host, permission in entries
        )
    )


def _entries(
    principals: Iterable[str], hosts: list[str], permission: Permission, word: str
) -> Iterator[tuple[str, str, Permission]]:
    if hosts and not principals:
        raise UsageError(f"--{word}-host needs --{word}-principal")
    for principal in principals:
        for host in hosts or [WILDCARD]:
            yield principal_of(principal), host, permission


def _operations(options: Namespace) -> Iterator[tuple[Resource, int, int]]:
    """Yield the resources of the options, each with an operation and its pattern type."""
    pattern_type = pattern_type_of(options)
    if not (options.producer or options.consumer):
        if options.idempotent:
            raise UsageError("--idempotent needs --producer")
        if options.cluster and pattern_type != PatternType.LITERAL:
            raise UsageError("--cluster needs the pattern type literal")
        for resource in resources_of(options):
            for name in options.operation or ["All"]:
                check_operation(resource.type, OPERATIONS[name])
                yield resource, OPERATIONS[name], pattern_type
        return
    _check_roles(options)
    for role, is_given in ((_PRODUCER, options.producer), (_CONSUMER, options.consumer)):
        for resource in resources_of(options) if is_given else ():
            for operation in role.get(resource.type, ()):
                yield resource, operation, pattern_type
    if options.idempotent:
        cluster = Resource(ResourceType.CLUSTER, CLUSTER_NAME)
        yield cluster, Operation.IDEMPOTENT_WRITE, PatternType.LITERAL


def _check_roles(options: Namespace) -> None:
    roles = [name for name in ("producer", "consumer") if getattr(options, name)]
    where = " and ".join(f"--{name}" for name in roles)
    if options.operation or options.deny_principal or options.deny_host:
        raise UsageError(f"{where} cannot be used with --operation, --deny-principal or --deny-host")
    if options.idempotent and not options.producer:
        raise UsageError("--idempotent needs --producer")
    if not options.topic or (options.consumer and not options.group):
        raise UsageError(f"{where} needs --topic{' and --group' if options.consumer else ''}")
    used = (_PRODUCER.keys() if options.producer else set()) | (
        _CONSUMER.keys() if options.consumer else set()
    )
    for resource in resources_of(options):
        if resource.type not in used:
            name = _RESOURCE_OPTIONS.get(resource.type, ("cluster", ""))[0]
            raise UsageError(
                f"{where} gives no rights on --{name}: use a command of its own with --operation"
            )


def check_operation(resource_type: int, operation: int) -> None:
    """Raise UsageError if no request needs the operation on this resource type."""
    supported = SUPPORTED_OPERATIONS.get(resource_type, frozenset())
    if operation != ALL_OPERATIONS and operation not in supported:
        names = ", ".join(name for name, code in OPERATIONS.items() if code in supported)
        raise UsageError(
            f"the operation {operation_name(operation)} does not exist for the resource type "
            f"{name_of(ResourceType, resource_type)}: use one of {names}"
        )


def pattern_type_of(options: Namespace) -> int:
    """Return the code of --resource-pattern-type."""
    name: str = options.resource_pattern_type
    return ANY if name == "any" else PatternType[name.upper()]


def filters_of(options: Namespace) -> list[AclFilter]:
    """Return the filters for the resources and principals of the options. Without any, all ACLs match."""
    principals: list[str | None] = [principal_of(one) for one in options.principal]
    resources: list[tuple[int, str | None, int]] = [
        (kind, name, PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern_type_of(options))
        for kind, name in resources_of(options)
    ]
    return [
        AclFilter(kind, name, pattern_type, ANY, principal, None, ANY)
        for kind, name, pattern_type in resources or [(ANY, None, ANY)]
        for principal in principals or [None]
    ]


def acl_row(acl: Acl) -> Row:
    """Return an ACL with names instead of codes."""
    return {
        "resource_type": name_of(ResourceType, acl.resource_type),
        "resource_name": acl.resource_name,
        "pattern_type": name_of(PatternType, acl.pattern_type),
        "principal": acl.principal,
        "permission": name_of(Permission, acl.permission_type),
        "operation": operation_name(acl.operation),
        "host": acl.host,
    }


def acl_text(acl: Acl) -> str:
    """Return an ACL as a phrase."""
    is_prefix = acl.pattern_type == PatternType.PREFIXED
    resource = resource_text(acl.resource_type, acl.resource_name, " prefix" if is_prefix else "")
    host = "" if acl.host == WILDCARD else f" from {acl.host}"
    permission = name_of(Permission, acl.permission_type)
    return f"{permission} {acl.principal} {operation_name(acl.operation)} on {resource}{host}"


def resource_text(resource_type: int, name: str, more: str = "") -> str:
    """Return a resource as a phrase. `more` follows the resource type."""
    if resource_type == ResourceType.CLUSTER:
        return "the cluster"
    return f"{name_of(ResourceType, resource_type).lower().replace('_', ' ')}{more} {name}"


def resource_option(resource: Resource) -> str:
    """Return the option that names a resource, with its value."""
    if resource.type is ResourceType.CLUSTER:
        return "--cluster"
    return f"--{_RESOURCE_OPTIONS[resource.type][0]} {resource.name}"
