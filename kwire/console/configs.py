"""Pages with configurations: values, their sources, and documentation."""

from __future__ import annotations

from typing import Final

from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC
from kwire.cli.admin.configs import describe_configs
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.client.groups import list_groups
from kwire.console.page import Page, PageRequest, PageResult

SHOWN: Final = {"topic": RESOURCE_TOPIC, "broker": RESOURCE_BROKER, "group": RESOURCE_GROUP}
MAX_NAMES: Final = 500
SECRET: Final = "(secret)"


def configs_page(request: PageRequest) -> PageResult:
    """Return the page of one resource's configuration, or the list of resources if no kind is given."""
    kind, name = request.text("kind"), request.text("name")
    if not kind:
        topics = sorted(
            topic.name or "" for topic in request.cluster.metadata(None).topics if not topic.is_internal
        )
        names = {
            "broker": [str(node_id) for node_id in sorted(request.cluster.brokers())],
            "topic": topics[:MAX_NAMES],
            "group": list(list_groups(request.cluster))[:MAX_NAMES],
        }
        return Page("configs.html", {"names": names})
    if kind not in SHOWN:
        raise UsageError(f"unknown resource type {kind[:40]}: expected one of {', '.join(SHOWN)}")
    _check(request, kind, name)
    changed, pattern = bool(request.text("changed")), request.text("q")
    rows = [
        {**row, "value": SECRET if row["sensitive"] else row["value"]}
        for row in describe_configs(
            request.cluster, SHOWN[kind], name, changed_only=changed, include_documentation=True
        )
        if pattern.lower() in str(row["key"]).lower()
    ]
    return Page("config.html", {"kind": kind, "name": name, "rows": rows, "changed": changed, "q": pattern})


def _check(request: PageRequest, kind: str, name: str) -> None:
    """Raise CommandError for an unknown topic or broker, or a missing group name.

    The message is clearer than the broker's.
    """
    if kind == "topic":
        request.cluster.topics([name])
    elif kind == "broker":
        if not name.isascii() or not name.isdigit():
            raise UsageError(f"broker {name[:40]!r}: expected a broker id, which is a number")
        request.cluster.broker(int(name))
    elif not name:
        raise CommandError("the name of the group is missing")
