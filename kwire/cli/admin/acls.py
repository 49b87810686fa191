"""`kwire acls`: list, add and remove ACLs, and replace a set of ACLs without a gap."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from kwire.broker.security.acl import Acl, AclFilter
from kwire.cli.admin.acl_file import read_acls
from kwire.cli.admin.acl_options import (
    acl_row,
    acl_text,
    acls_of,
    add_entry_options,
    add_pattern_option,
    add_resource_options,
    filters_of,
    resources_of,
)
from kwire.cli.shared.actions import Actions
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.options import add_repeatable_option, command_parser
from kwire.cli.shared.output import Output
from kwire.client.acls import create_acls, delete_acls, describe_acls
from kwire.wire.errors import ApiError, ErrorCode


def parser(name: str) -> ArgumentParser:
    parser = command_parser(name, "List, add, remove and replace ACLs. Options have kafka-acls' names.")
    actions = Actions(parser)
    list_ = actions.add("list", _list, "List ACLs.", "kwire acls list --topic orders")
    _add_filter_options(list_)
    add = actions.add(
        "add",
        _add,
        "Add ACLs.",
        "kwire acls add --allow-principal User:alice --consumer --topic orders --group readers",
    )
    add_entry_options(add)
    add_resource_options(add)
    add_pattern_option(add, is_filter=False)
    remove = actions.add(
        "remove",
        _remove,
        "Remove the ACLs that 'add' adds with the same options, or all of a resource or principal.",
        "kwire acls remove --allow-principal User:alice --operation Read --topic orders",
    )
    add_entry_options(remove)
    _add_filter_options(remove)
    _add_dry_run(remove)
    apply = actions.add(
        "apply",
        _apply,
        "Replace ACLs by those in a file (the output of 'list --json'): add first, then remove.",
        "kwire acls apply acls.json --dry-run",
    )
    apply.add_argument("file", metavar="FILE", help="a JSON file with ACLs")
    _add_filter_options(apply)
    _add_dry_run(apply)
    return parser


def _add_filter_options(parser: ArgumentParser) -> None:
    add_repeatable_option(parser, "--principal", "USER", "only ACLs of this principal")
    add_resource_options(parser)
    add_pattern_option(parser, is_filter=True)


def _add_dry_run(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")


def _list(cluster: CommandClient, options: Namespace, output: Output) -> None:
    found = describe_acls(cluster, filters_of(options))
    output.show([acl_row(acl) for acl in found], empty="there are no such ACLs")


def _add(cluster: CommandClient, options: Namespace, output: Output) -> None:
    if not resources_of(options):
        raise UsageError("name a resource, such as --topic or --cluster")
    acls = acls_of(options)
    if not acls:
        raise UsageError("name a principal: --allow-principal or --deny-principal")
    existing = set(describe_acls(cluster))
    _change(cluster, output, [acl for acl in acls if acl not in existing], [])
    for acl in acls:
        if acl in existing:
            output.report(f"exists already: {acl_text(acl)}", **acl_row(acl), change=None, dry_run=False)


def _remove(cluster: CommandClient, options: Namespace, output: Output) -> None:
    filters = [AclFilter(*acl) for acl in acls_of(options)]
    if filters and options.principal:
        raise UsageError("--principal cannot be used with --allow-principal or --deny-principal")
    if not filters:
        if options.operation or options.producer or options.consumer:
            raise UsageError("name the principal of these operations: --allow-principal or --deny-principal")
        if not options.principal and not resources_of(options):
            raise UsageError("name a resource, such as --topic or --cluster, or a --principal")
        filters = filters_of(options)
    found = describe_acls(cluster, filters)
    if not found:
        by_default = "" if options.operation else " (without --operation, the operation is All)"
        hint = by_default if options.allow_principal or options.deny_principal else ""
        raise CommandError(f"there are no such ACLs: 'kwire acls list' lists the ACLs{hint}")
    _change(cluster, output, [], found, dry_run=options.dry_run)


def _apply(cluster: CommandClient, options: Namespace, output: Output) -> None:
    wanted = read_acls(options.file)
    filters = filters_of(options)
    for acl in wanted:
        if not any(one.matches(acl) for one in filters):
            raise UsageError(f"{options.file} has an ACL that the options exclude: {acl_text(acl)}")
    existing = describe_acls(cluster, filters)
    new = sorted(set(wanted).difference(existing))
    stale = sorted(set(existing).difference(wanted))
    if not new and not stale:
        output.note("nothing to change: the cluster has these ACLs")
        return
    _change(cluster, output, new, stale, dry_run=options.dry_run)


def _change(
    cluster: CommandClient,
    output: Output,
    new: Sequence[Acl],
    stale: Sequence[Acl],
    *,
    dry_run: bool = False,
) -> None:
    """Create ACLs, then delete others, so that clients keep the rights that both have."""
    for change, acls, apply in (("add", new, create_acls), ("remove", stale, delete_acls)):
        if not dry_run:
            apply(cluster, acls)
        done = f"would {change}" if dry_run else f"{change.removesuffix('e')}ed"
        for acl in acls:
            output.report(f"{done}: {acl_text(acl)}", **acl_row(acl), change=change, dry_run=dry_run)
    if not dry_run and (new or stale):
        _wait_for_all_brokers(cluster, output, new, stale)


def _wait_for_all_brokers(
    cluster: CommandClient, output: Output, new: Sequence[Acl], stale: Sequence[Acl]
) -> None:
    def is_known(node_id: int) -> bool:
        try:
            found = set(describe_acls(cluster, node_id=node_id))
        except ApiError as error:
            if error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                return True  # the change has removed the user's right to describe ACLs
            raise
        return found.issuperset(new) and found.isdisjoint(stale)

    cluster.wait_for_all_brokers(is_known, output)
