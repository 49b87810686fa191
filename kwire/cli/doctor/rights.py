"""Checks of the authorizer: which ACL decides a request, ACLs without effect, and risky super users."""

from __future__ import annotations

import ipaddress
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from typing import Final

from kwire.broker.config import BrokerConfig
from kwire.broker.config.authorizer import (
    ALLOW_EVERYONE,
    STANDARD_AUTHORIZER,
    SUPER_USERS,
    AuthorizerSettings,
    authorizer_settings,
)
from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.metadata.topic_names import topic_name_fault
from kwire.broker.security.acl import (
    ALL_OPERATIONS,
    ANY,
    EVERYONE,
    WILDCARD,
    Acl,
    AclFilter,
    PatternType,
    Permission,
    name_of,
    operation_name,
)
from kwire.broker.security.authorizer import SUPPORTED_OPERATIONS, Operation, ResourceType
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.broker.security.settings import requires_certificates
from kwire.broker.security.standard_authorizer import SUPER_USER, Decision, StandardAuthorizer
from kwire.cli.admin.acl_options import (
    OPERATIONS,
    Resource,
    acl_text,
    add_operation_option,
    add_resource_options,
    check_operation,
    principal_of,
    resource_option,
    resource_text,
    resources_of,
)
from kwire.cli.doctor import node_rights
from kwire.cli.doctor.finding import Finding, ok, problem, warning
from kwire.cli.doctor.stored_acls import stored_acls
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.options import Once
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural

AREA: Final = node_rights.AREA
MAX_FINDINGS: Final = 20
"""The limit for findings about ACLs without effect."""
_OTHER_HOSTS: Final = ""
"""The address of a client without ACLs of its own."""
_DENIAL_FIRST: Final = "remove this ACL: a DENY ACL takes precedence over all ALLOW ACLs"
_WRITE_IS_ENOUGH: Final = "WRITE on the topic is enough for an idempotent producer"
"""KIP-679."""


class Question(NamedTuple):
    """A request whose decision is explained."""

    principal: str
    operation: Operation
    resource: Resource
    host: str | None
    """The client's IP address; None for any."""


def add_question_options(parser: ArgumentParser) -> None:
    """Add the options that describe a request."""
    parser.add_argument(
        "--principal",
        metavar="USER",
        action=Once,
        help="explain which ACL decides whether this principal may perform --operation on a resource",
    )
    add_operation_option(parser, "the operation to explain")
    add_resource_options(parser, once=True)
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        type=_address,
        action=Once,
        help="the IP address of the principal's client (default: any)",
    )


def _address(text: str) -> str:
    if not _is_address(text):
        raise ArgumentTypeError(f"{text} is not an IP address")
    return text


def question_of(options: Namespace) -> Question | None:
    """Return the request that the options describe; None without these options. Raises UsageError."""
    resources = resources_of(options)
    if not resources and not any((options.principal, options.operation, options.host)):
        return None
    if len(resources) != 1 or options.principal is None or options.operation is None:
        raise UsageError(
            "give --principal, --operation and one resource, such as --topic, to explain a decision"
        )
    code = OPERATIONS[options.operation]
    if code == ALL_OPERATIONS:
        raise UsageError("--operation All: a request needs one operation, such as Read")
    check_operation(resources[0].type, code)
    principal = principal_of(options.principal)
    kind, _, name = principal.partition(":")
    if kind != USER:
        raise UsageError(
            f"--principal {principal}: no client has a principal of type {kind}, use {USER}:{name}"
        )
    return Question(principal, Operation(code), resources[0], options.host)


def findings(config: BrokerConfig, question: Question | None) -> Iterator[Finding]:
    """Check the authorizer's settings and the ACLs in the metadata log, and explain a decision."""
    settings = authorizer_settings(config.static_settings)
    try:
        acls = stored_acls(config.metadata_log_dir or config.log_dirs[0])
    except (CommandError, CorruptMetadata, OSError) as error:
        yield problem(AREA, f"the ACLs cannot be read: {error}", "correct this to check the ACLs")
        return
    if settings is None:
        if acls:
            yield warning(
                AREA,
                f"{plural(len(acls), 'ACL')} without effect: authorizer.class.name is not set",
                f"set authorizer.class.name={STANDARD_AUTHORIZER} and {SUPER_USERS} on all nodes",
            )
        if question is not None:
            yield ok(AREA, f"{_request(question)} is allowed: authorizer.class.name is not set")
        return
    yield ok(AREA, f"{plural(len(acls), 'ACL')}, {plural(len(settings.super_users), 'super user')}")
    yield from _super_user_findings(config, settings)
    yield from node_rights.findings(config, settings, acls)
    yield from acl_findings(acls, settings.super_users)
    if question is not None:
        yield from decision_findings(question, settings, acls)


def _super_user_findings(config: BrokerConfig, settings: AuthorizerSettings) -> Iterator[Finding]:
    for name in sorted(settings.super_users):
        if name == EVERYONE or not name.startswith(f"{USER}:"):
            fault = "is compared as it is: * is no wildcard here" if name == EVERYONE else "is no user"
            yield warning(
                AREA, f"{name} in {SUPER_USERS} has no effect: it {fault}", "write principals like User:alice"
            )
    if str(ANONYMOUS) in settings.super_users:
        for listener in (*config.listener_endpoints(), *config.controller_endpoints()):
            if _is_open(config, listener.name):
                yield warning(
                    AREA,
                    f"{ANONYMOUS} is in {SUPER_USERS}, so every client of listener {listener.name} may do "
                    "everything: the listener does not require authentication",
                    f"authenticate clients and nodes there, then remove {ANONYMOUS} from {SUPER_USERS}",
                )


def _is_open(config: BrokerConfig, listener: str) -> bool:
    """Return whether clients of a listener can be User:ANONYMOUS."""
    protocol = config.protocol(listener)
    return protocol == "PLAINTEXT" or (protocol == "SSL" and not requires_certificates(config, listener))


def acl_findings(acls: Sequence[Acl], super_users: frozenset[str]) -> Iterator[Finding]:
    """Report ACLs that cannot affect any request."""
    faults = [(acl, fault) for acl in acls if (fault := _fault(acl, super_users)) is not None]
    for acl, (reason, fix) in faults[:MAX_FINDINGS]:
        yield warning(AREA, f"{acl_text(acl)} has no effect: {reason}", fix)
    if len(faults) > MAX_FINDINGS:
        more = plural(len(faults) - MAX_FINDINGS, "more ACL")
        yield warning(AREA, f"{more} without effect", "correct these first, and run this command again")


def _fault(acl: Acl, super_users: frozenset[str]) -> tuple[str, str] | None:
    """Return why an ACL has no effect, and what to do; None if it may have one."""
    kind, colon, _ = acl.principal.partition(":")
    if not colon:
        return f"{acl.principal} has no type", f"add it again for {USER}:{acl.principal}"
    if kind != USER:
        return f"no client has a principal of type {kind}", f"add it again for a principal of type {USER}"
    if acl.permission_type == Permission.DENY and acl.principal in super_users:
        return f"{acl.principal} is a super user", f"remove {acl.principal} from {SUPER_USERS}"
    if acl.host != WILDCARD and not _is_address(acl.host):
        return (
            f"{acl.host} is not an IP address",
            "add it again with the IP address of each client, or with *",
        )
    resource_type, name = acl.resource_type, acl.resource_name
    supported = SUPPORTED_OPERATIONS.get(resource_type, frozenset())
    if acl.operation != ALL_OPERATIONS and acl.operation not in supported:
        kind = name_of(ResourceType, resource_type)
        return f"no request needs this operation on the resource type {kind}", "remove it"
    if acl.pattern_type == PatternType.LITERAL and name == WILDCARD:
        return None
    if resource_type == ResourceType.TOPIC and topic_name_fault(name) is not None:
        if acl.pattern_type == PatternType.LITERAL:
            fix = "remove it"
            if name.endswith(WILDCARD):
                fix = f"add it again with --topic {name[:-1]} --resource-pattern-type prefixed"
            return "no topic can have this name", fix
        if topic_name_fault(f"{name}x") is not None:
            return "no topic can have this prefix", "remove the * from the prefix, or remove the ACL"
    if (
        resource_type == ResourceType.USER
        and acl.pattern_type == PatternType.LITERAL
        and not name.startswith(f"{USER}:")
    ):
        return f"{name} is not a principal", f"add it again with --user-principal {USER}:{name}"
    return None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def decision_findings(
    question: Question, settings: AuthorizerSettings, acls: Sequence[Acl]
) -> Iterator[Finding]:
    """Explain the decision about a request, and the decisions for other addresses that ACLs name."""
    authorizer = StandardAuthorizer(
        settings.super_users, allows_without_acls=settings.allows_without_acls
    ).changed(added=acls)
    kind, _, name = question.principal.partition(":")

    def decide(host: str) -> Decision:
        return authorizer.decide(Principal(kind, name), host, question.operation, *question.resource)

    def explain(question: Question, decision: Decision) -> Finding:
        if question.operation is Operation.IDEMPOTENT_WRITE and not decision.is_allowed:
            host = question.host or _OTHER_HOSTS
            if authorizer.allows_any(Principal(kind, name), host, Operation.WRITE, ResourceType.TOPIC):
                return ok(AREA, f"{_request(question)} is denied, but not needed: {_WRITE_IS_ENOUGH}")
        return _decision_finding(question, decision, settings, has_acls=bool(matching))

    same = AclFilter(*question.resource, PatternType.MATCH, ANY, None, None, ANY)
    matching = [acl for acl in acls if same.matches(acl)]
    if question.host is not None:
        yield explain(question, decide(question.host))
        return
    general = decide(_OTHER_HOSTS)
    hosts = {acl.host for acl in matching if acl.principal in (question.principal, EVERYONE)} - {WILDCARD}
    yield explain(question, general)
    for host in sorted(hosts):
        other = decide(host)
        if other.is_allowed != general.is_allowed:
            yield explain(question._replace(host=host), other)


def _decision_finding(
    question: Question, decision: Decision, settings: AuthorizerSettings, *, has_acls: bool
) -> Finding:
    request = _request(question)
    if decision.acl is not None:
        reason = f"the ACL {acl_text(decision.acl)} decides"
    elif decision == SUPER_USER:
        reason = f"{question.principal} is in {SUPER_USERS}"
    elif has_acls:
        reason = "the resource has ACLs, but none that allows this"
    else:
        reason = (
            f"the resource has no ACL, and {ALLOW_EVERYONE} is {str(settings.allows_without_acls).lower()}"
        )
    if decision.is_allowed:
        return ok(AREA, f"{request} is allowed: {reason}")
    fix = _DENIAL_FIRST
    if question.operation is Operation.IDEMPOTENT_WRITE:
        fix = (
            f"{_WRITE_IS_ENOUGH}: kwire acls add --allow-principal {question.principal} "
            "--operation Write --topic NAME"
        )
    elif decision.acl is None:
        operation = next(name for name, code in OPERATIONS.items() if code == question.operation)
        fix = (
            f"kwire acls add --allow-principal {question.principal} --operation {operation} "
            f"{resource_option(question.resource)}"
        )
    return warning(AREA, f"{request} is denied: {reason}", fix)


def _request(question: Question) -> str:
    host = "" if question.host is None else f" from {question.host}"
    resource = resource_text(question.resource.type, question.resource.name)
    return f"{operation_name(question.operation)} on {resource} by {question.principal}{host}"
