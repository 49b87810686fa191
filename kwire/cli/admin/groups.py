"""`kwire groups`: list, describe and delete consumer groups, and reset their offsets."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from typing import Final

from kwire.cli.records.positions import POSITIONS_HELP, resolve_position
from kwire.cli.shared.actions import Actions
from kwire.cli.shared.command_client import CommandClient
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import suggestion
from kwire.cli.shared.options import add_repeatable_option, command_parser
from kwire.cli.shared.output import YELLOW, Output, Row
from kwire.client.cluster_client import group_by_topic
from kwire.client.errors import UnknownPartition, raise_for_code
from kwire.client.groups import Group, describe_group, fetch_committed_offsets, list_groups
from kwire.client.offsets import find_offsets
from kwire.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kwire.wire.messages.list_offsets import EARLIEST, LATEST
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kwire.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from kwire.wire.plural import plural
from kwire.wire.primitives import TopicPartition

CURRENT: Final = "current"
STATES: Final = (
    "Empty",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Dead",
)
"""States of groups of all types."""
TYPES: Final = ("classic", "consumer", "share", "streams")
DRY_RUN_NOTE: Final = "nothing was changed: use --execute to apply this"


def parser(name: str) -> ArgumentParser:
    parser = command_parser(name, "List, describe and delete consumer groups, and reset their offsets.")
    actions = Actions(parser)
    list_ = actions.add("list", _list, "List groups.", "kwire groups list --state Stable")
    list_.add_argument("--names", action="store_true", help="print names only, one per line")
    add_repeatable_option(list_, "--state", "STATE", "only groups in this state")
    list_.add_argument("--type", action="append", default=[], metavar="TYPE", help=", ".join(TYPES))
    describe = actions.add(
        "describe",
        _describe,
        "Show the committed offsets, lag and members of groups.",
        "kwire groups describe readers",
    )
    describe.add_argument("groups", nargs="*", metavar="GROUP", help="a group id (default: all groups)")
    what = describe.add_mutually_exclusive_group()
    what.add_argument("--members", action="store_true", help="show members and their assigned partitions")
    what.add_argument("--state", action="store_true", help="show state, coordinator and assignor")
    reset = actions.add(
        "reset",
        _reset,
        "Show the offsets to which a group would be reset, and reset it with --execute.",
        "kwire groups reset readers --topic orders --to beginning --execute",
    )
    reset.add_argument("group", metavar="GROUP")
    _add_topics(reset)
    reset.add_argument("--to", metavar="POSITION", help=f"'{CURRENT}', {POSITIONS_HELP}")
    reset.add_argument("--by", type=int, metavar="N", help="shift by N records, backwards if N is negative")
    delete_offsets = actions.add(
        "delete-offsets",
        _delete_offsets,
        "Show the committed offsets that would be deleted, and delete them with --execute.",
        "kwire groups delete-offsets readers --topic orders --execute",
    )
    delete_offsets.add_argument("group", metavar="GROUP")
    _add_topics(delete_offsets)
    delete = actions.add("delete", _delete, "Delete groups without members.", "kwire groups delete readers")
    delete.add_argument("groups", nargs="+", metavar="GROUP")
    return parser


def _add_topics(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:N,...]",
        help="a topic, or some of its partitions; can be repeated (default: all with committed offsets)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--execute", action="store_true", help="apply the change")
    which.add_argument("--dry-run", action="store_true", help="only show the change (default)")


def _list(cluster: CommandClient, options: Namespace, output: Output) -> None:
    for state in options.state:
        if not any(_matches(one, [state]) for one in STATES):
            raise UsageError(f"--state {state} is not a state: expected one of {', '.join(STATES)}")
    for kind in options.type:
        if not _matches(kind, TYPES):
            raise UsageError(f"--type {kind} is not a type: expected one of {', '.join(TYPES)}")
    rows = [
        {
            "group": one.group_id,
            "type": one.group_type,
            "state": one.group_state,
            "protocol": one.protocol_type,
        }
        for one in list_groups(cluster).values()
        if _matches(one.group_state, options.state) and _matches(one.group_type, options.type)
    ]
    if options.names:
        output.names(row["group"] for row in rows)
        return
    output.show(rows, empty="no group matches" if options.state or options.type else "there are no groups")


def _matches(value: str, wanted: Iterable[str]) -> bool:
    """Return whether a filter accepts a value; an empty filter accepts all. Old brokers cannot filter."""
    chosen = {one.lower() for one in wanted}
    return not chosen or value.lower() in chosen


def _describe(cluster: CommandClient, options: Namespace, output: Output) -> None:
    known = list_groups(cluster)
    for name in options.groups:
        if name not in known:
            raise _unknown_group(name, known)
    groups = [describe_group(cluster, known[name]) for name in options.groups or known]
    if options.state:
        rows = [_state_row(group) for group in groups]
    elif options.members:
        rows = [row for group in groups for row in _member_rows(group)]
    else:
        rows = [row for group in groups for row in offset_rows(cluster, group)]
        if not output.as_json:
            for group in groups:
                if not group.members:
                    output.note(f"group {group.name} has no active members")
    empty = "there are no members" if options.members else "there are no committed offsets"
    output.show(rows, empty=empty, color=lambda row: YELLOW if row.get("lag") else None)


def _unknown_group(name: str, known: Iterable[str]) -> CommandError:
    near = suggestion(name, known) or ": 'kwire groups list' lists the groups"
    return CommandError(f"there is no group '{name}', or this user may not describe it{near}")


def _state_row(group: Group) -> Row:
    return {
        "group": group.name,
        "type": group.type,
        "state": group.state,
        "coordinator": group.coordinator,
        "assignor": group.assignor,
        "members": len(group.members),
    }


def _member_rows(group: Group) -> Iterable[Row]:
    for member in group.members:
        yield {
            "group": group.name,
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.host,
            "partitions": ["{}-{}".format(*one) for one in sorted(member.partitions)],
        }


def offset_rows(cluster: CommandClient, group: Group) -> Iterable[Row]:
    """Yield committed offset, end offset, lag and member of each partition. Raises ApiError, Disconnected."""
    committed = fetch_committed_offsets(cluster, group.name)
    owners = {one: member for member in group.members for one in member.partitions}
    existing = _with_leader(cluster, {*committed, *owners})
    ends = find_offsets(cluster, dict.fromkeys(existing, LATEST))
    for topic, index in sorted({*committed, *owners}):
        offset, end = committed.get((topic, index)), ends.get((topic, index))
        owner = owners.get((topic, index))
        yield {
            "group": group.name,
            "topic": topic,
            "partition": index,
            "committed": offset,
            "end": end,
            "lag": None if offset is None or end is None else max(0, end - offset),
            "member": owner.member_id if owner else None,
            "client": owner.client_id if owner else None,
            "host": owner.host if owner else None,
        }


def _with_leader(cluster: CommandClient, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions that have a leader. A group can have offsets of a deleted topic."""
    wanted = set(partitions)
    found = cluster.metadata(sorted({topic for topic, _ in wanted})) if wanted else None
    led = {
        (topic.name or "", one.partition_index)
        for topic in (found.topics if found else ())
        for one in topic.partitions
        if one.leader_id >= 0
    }
    return sorted(wanted & led)


def _select_partitions(
    cluster: CommandClient, group: str, topics: Iterable[str], committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """Return the partitions of `topics`, like `orders:0,1`; if empty, all with committed offsets.

    Raises CommandError, UnknownPartition or ApiError.
    """
    if not topics:
        if not committed:
            raise CommandError(f"group {group} has no committed offsets: choose a topic with --topic")
        return sorted(committed)
    chosen: list[TopicPartition] = []
    for text in topics:
        topic, colon, numbers = text.partition(":")
        existing = {one.partition_index for one in cluster.topics([topic])[0].partitions}
        try:
            wanted = {int(number) for number in numbers.split(",")} if colon else existing
        except ValueError:
            raise UsageError(f"topic {text}: expected TOPIC, or TOPIC:0,1 for some partitions") from None
        if missing := wanted - existing:
            raise UnknownPartition(topic, min(missing), len(existing))
        chosen += [(topic, number) for number in sorted(wanted)]
    return list(dict.fromkeys(chosen))


def _reset(cluster: CommandClient, options: Namespace, output: Output) -> None:
    if (options.to is None) == (options.by is None):
        raise UsageError("expected either --to POSITION or --by N")
    now_ms = time.time_ns() // 1_000_000
    known = list_groups(cluster)
    output.show(
        reset_offsets(
            cluster,
            options.group,
            options.topic,
            now_ms,
            to=options.to,
            by=options.by,
            execute=options.execute,
        ),
        empty="",
    )
    if options.group not in known:
        near = suggestion(options.group, known) or ", it will be created"
        output.note(f"there is no group '{options.group}' yet{near}")
    if not options.execute:
        output.note(DRY_RUN_NOTE)


def reset_offsets(
    cluster: CommandClient,
    group: str,
    topics: Iterable[str],
    now_ms: int,
    *,
    to: str | None = None,
    by: int | None = None,
    option: str = "--to",
    execute: bool,
) -> list[Row]:
    """Return the new offset of each partition. With `execute`, also commit the offsets.

    The new offset is the position `to`, or the committed offset plus `by`. The group must have no members.
    Topics can name partitions, like `orders:0,1`; without topics, all partitions with committed offsets are
    reset. `option` is the name of `to` in error messages. Raises CommandError, ApiError, Disconnected.
    """
    _check_empty(cluster, group)
    committed = fetch_committed_offsets(cluster, group)
    partitions = _select_partitions(cluster, group, topics, committed)
    firsts = find_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = find_offsets(cluster, dict.fromkeys(partitions, LATEST))
    if to is None or to == CURRENT:
        for one in partitions:
            if one not in committed and by is not None:
                raise CommandError(f"group {group} has no offset of {one[0]}-{one[1]}: use --to POSITION")
        wanted = {one: committed.get(one, ends[one]) + (by or 0) for one in partitions}
    else:
        wanted = resolve_position(cluster, to, partitions, now_ms, option)
    # Offsets beyond either end are moved to that end, as kafka-consumer-groups does.
    targets = {one: min(max(wanted[one], firsts[one]), ends[one]) for one in partitions}
    if execute:
        _commit(cluster, group, targets)
    return [
        {
            "group": group,
            "topic": topic,
            "partition": index,
            "committed": committed.get((topic, index)),
            "new": target,
            "end": ends[topic, index],
        }
        for (topic, index), target in targets.items()
    ]


def _check_empty(cluster: CommandClient, name: str) -> None:
    """Raise CommandError if the group has members: their next commit would override the reset."""
    found = list_groups(cluster).get(name)
    if found is not None and (members := describe_group(cluster, found).members):
        raise CommandError(f"group {name} has {plural(len(members), 'member')}: stop them first")


def _commit(cluster: CommandClient, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    request = OffsetCommitRequest(
        group_id=name,
        member_id="",
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offsets[topic, index], committed_metadata=""
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in group_by_topic(offsets)
        ],
    )

    def attempt() -> None:
        for topic in cluster.send_to_coordinator(name, request, OffsetCommitResponse).topics:
            for one in topic.partitions:
                raise_for_code(one.error_code, None, f"group {name}, {topic.name}-{one.partition_index}")

    cluster.retry(attempt)


def _delete_offsets(cluster: CommandClient, options: Namespace, output: Output) -> None:
    committed = fetch_committed_offsets(cluster, options.group)
    if not committed and options.group not in (known := list_groups(cluster)):
        raise _unknown_group(options.group, known)
    chosen = _select_partitions(cluster, options.group, options.topic, committed) if committed else ()
    partitions = [one for one in chosen if one in committed]
    if options.execute and partitions:
        request = OffsetDeleteRequest(
            group_id=options.group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes],
                )
                for topic, indexes in group_by_topic(partitions)
            ],
        )

        def attempt() -> None:
            response = cluster.send_to_coordinator(options.group, request, OffsetDeleteResponse)
            raise_for_code(response.error_code, None, f"group {options.group}")
            for topic in response.topics:
                for one in topic.partitions:
                    raise_for_code(one.error_code, None, f"{topic.name}-{one.partition_index}")

        cluster.retry(attempt)
    rows = [
        {"group": options.group, "topic": topic, "partition": index, "committed": committed[topic, index]}
        for topic, index in partitions
    ]
    output.show(
        rows,
        empty=f"group {options.group} has no committed offsets in the selected partitions, or this user may "
        "not describe the topics",
    )
    if not options.execute:
        output.note(DRY_RUN_NOTE)


def _delete(cluster: CommandClient, options: Namespace, output: Output) -> None:
    for name in options.groups:

        def attempt(name: str = name) -> None:
            response = cluster.send_to_coordinator(
                name, DeleteGroupsRequest(groups_names=[name]), DeleteGroupsResponse
            )
            raise_for_code(response.results[0].error_code, None, f"group {name}")

        cluster.retry(attempt)
        output.report(f"group {name} deleted", group=name, deleted=True)
