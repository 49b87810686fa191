"""Groups, their members, how far they are, and where they go on."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from kwire.cli.admin.groups import offset_rows, reset_offsets
from kwire.cli.shared.failure import Failure, UsageError, suggestion
from kwire.client.cluster import Cluster
from kwire.client.groups import Group, group_of, listed
from kwire.console.asked import Page, PageAnswer, PageRequest, Redirect

AT_ONCE: Final = 100
"""Groups of a page."""
MAX_ROWS: Final = 1_000
"""Partitions, or members, of a page."""


def groups_page(asked: PageRequest) -> PageAnswer:
    pattern = asked.text("q")
    found = [one for name, one in listed(asked.cluster).items() if pattern.lower() in name.lower()]
    return Page("groups.html", {**asked.part_of(found, AT_ONCE), "q": pattern})


def group_page(asked: PageRequest) -> PageAnswer:
    """A group; with `to` also where its offsets would be then. Failure."""
    group = _group(asked.cluster, asked.text("id"))
    rows = list(offset_rows(asked.cluster, group))
    lags = [row["lag"] for row in rows if isinstance(row["lag"], int)]
    to, topic = asked.text("to"), asked.text("topic")
    values: dict[str, Any] = {
        "group": group,
        "rows": rows[:MAX_ROWS],
        "members": group.members[:MAX_ROWS],
        "count": len(rows),
        "lag": sum(lags),
        "to": to,
        "topic": topic,
        "preview": _reset(asked, group.name, to, topic, execute=False) if to else None,
        "is_done": bool(asked.text("done")),
    }
    return Page("group.html", values)


def reset(asked: PageRequest) -> PageAnswer:
    """Have a group go on somewhere else. UsageError, Failure, ApiError."""
    name, to = asked.text("id"), asked.text("to")
    if not to:
        raise UsageError("say where the group is to go on: an offset, a time, beginning or end")
    group = _group(asked.cluster, name)
    _reset(asked, group.name, to, asked.text("topic"), execute=True)
    return Redirect(f"group?id={quote(group.name, safe='')}&done=1")


def _reset(asked: PageRequest, name: str, to: str, topic: str, *, execute: bool) -> list[dict[str, object]]:
    topics = [topic] if topic else []
    rows = reset_offsets(asked.cluster, name, topics, asked.now_ms, to=to, option="go on at", execute=execute)
    return [dict(row) for row in rows[:MAX_ROWS]]


def _group(cluster: Cluster, name: str) -> Group:
    """Failure where there is none of this name."""
    known = listed(cluster)
    if name not in known:
        raise Failure(f"there is no group '{name}'{suggestion(name, known)}")
    return group_of(cluster, known[name])
