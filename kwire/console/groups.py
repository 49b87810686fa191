"""Pages with groups, their members and lag, and the form that resets offsets."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from kwire.cli.admin.groups import offset_rows, reset_offsets
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.cli.shared.errors import suggestion
from kwire.client.cluster_client import ClusterClient
from kwire.client.groups import Group, describe_classic_group, describe_group, list_groups
from kwire.console.page import Page, PageRequest, PageResult, Redirect
from kwire.wire.errors import ApiError, ErrorCode

PAGE_SIZE: Final = 100
"""Groups per page."""
MAX_ROWS: Final = 1_000
"""Partitions, or members, per page."""


def groups_page(request: PageRequest) -> PageResult:
    pattern = request.text("q")
    found = [one for name, one in list_groups(request.cluster).items() if pattern.lower() in name.lower()]
    return Page("groups.html", {**request.paginate(found, PAGE_SIZE), "q": pattern})


def group_page(request: PageRequest) -> PageResult:
    """Return the page of a group, with a preview of the offset reset if the field `to` is not empty."""
    group = _group(request, request.text("id"))
    rows = list(offset_rows(request.cluster, group))
    lags = [row["lag"] for row in rows if isinstance(row["lag"], int)]
    to, topic = request.text("to"), request.text("topic")
    values: dict[str, Any] = {
        "group": group,
        "rows": rows[:MAX_ROWS],
        "members": group.members[:MAX_ROWS],
        "count": len(rows),
        "lag": sum(lags),
        "to": to,
        "topic": topic,
        "preview": _reset(request, group.name, to, topic, execute=False) if to else None,
        "is_done": bool(request.text("done")),
    }
    return Page("group.html", values)


def reset(request: PageRequest) -> PageResult:
    """Reset the offsets of a group, and redirect to the group's page."""
    name, to = request.text("id"), request.text("to")
    if not to:
        raise UsageError("the new position is missing: expected an offset, a time, beginning or end")
    group = _group(request, name)
    _reset(request, group.name, to, request.text("topic"), execute=True)
    return Redirect(f"group?id={quote(group.name, safe='')}&done=1")


def _reset(request: PageRequest, name: str, to: str, topic: str, *, execute: bool) -> list[dict[str, object]]:
    topics = [topic] if topic else []
    rows = reset_offsets(
        request.cluster, name, topics, request.now_ms, to=to, option="position", execute=execute
    )
    return [dict(row) for row in rows[:MAX_ROWS]]


def _check_right(cluster: ClusterClient, name: str) -> None:
    """Raise ApiError if the user may not describe a group. The list of groups does not have such groups."""
    try:
        describe_classic_group(cluster, name)
    except ApiError as error:
        if error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
            raise


def _group(request: PageRequest, name: str) -> Group:
    """Describe a group. Raises CommandError if the group does not exist, or ApiError if it is denied."""
    cluster = request.cluster
    known = list_groups(cluster)
    if name not in known:
        if request.settings.access is not None and name:
            _check_right(cluster, name)
        raise CommandError(f"there is no group '{name}'{suggestion(name, known)}")
    return describe_group(cluster, known[name])
