"""Configurations with where each value comes from, and what it does."""

from __future__ import annotations

from typing import Final

from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC
from kwire.cli.admin.configs import described
from kwire.cli.shared.failure import Failure, UsageError
from kwire.client.groups import listed
from kwire.console.asked import Page, PageAnswer, PageRequest

SHOWN: Final = {"topic": RESOURCE_TOPIC, "broker": RESOURCE_BROKER, "group": RESOURCE_GROUP}
MAX_NAMES: Final = 500
SECRET: Final = "(secret)"


def configs_page(asked: PageRequest) -> PageAnswer:
    """Those of one thing, or of what there are some."""
    kind, name = asked.text("kind"), asked.text("name")
    if not kind:
        topics = sorted(
            topic.name or "" for topic in asked.cluster.metadata(None).topics if not topic.is_internal
        )
        names = {
            "broker": [str(node_id) for node_id in sorted(asked.cluster.brokers())],
            "topic": topics[:MAX_NAMES],
            "group": list(listed(asked.cluster))[:MAX_NAMES],
        }
        return Page("configs.html", {"names": names})
    if kind not in SHOWN:
        raise UsageError(f"{kind[:40]} has no configurations here: choose {', '.join(SHOWN)}")
    _check(asked, kind, name)
    changed, pattern = bool(asked.text("changed")), asked.text("q")
    rows = [
        {**row, "value": SECRET if row["sensitive"] else row["value"]}
        for row in described(asked.cluster, SHOWN[kind], name, changed_only=changed, documented=True)
        if pattern.lower() in str(row["key"]).lower()
    ]
    return Page("config.html", {"kind": kind, "name": name, "rows": rows, "changed": changed, "q": pattern})


def _check(asked: PageRequest, kind: str, name: str) -> None:
    """Failure where there is no such thing; brokers describe a topic's defaults all the same."""
    if kind == "topic":
        asked.cluster.topics([name])
    elif kind == "broker":
        if not name.isascii() or not name.isdigit():
            raise UsageError(f"a broker is named by its number, and not {name[:40]!r}")
        asked.cluster.broker(int(name))
    elif not name:
        raise Failure("which group? Give its name")
