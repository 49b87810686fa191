"""The Grafana dashboard: a broker that has served clients exports each series that a query selects."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.broker.observe.conftest import Series, serve_observed
from tests.broker.observe.test_metrics import consume, produce

DASHBOARD = json.loads(
    (Path(__file__).resolve().parents[3] / "docker" / "grafana-kwire.json").read_text(encoding="utf-8")
)
SELECTOR = re.compile(r"\b((?:kafka|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')
GROUPED = re.compile(r"\bby \(([\w, ]+)\)")
PROMETHEUS_LABELS = {"job", "instance"}
"""Labels that Prometheus adds when it scrapes."""


def queries() -> list[tuple[str, str]]:
    """Return the queries of the panels, each with its legend, and those of the variables."""
    shown = [
        (target["expr"], target["legendFormat"])
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", [])
    ]
    variables = [
        (f"by ({label}) {selector}", "")
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
        for selector, label in [
            re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
        ]
    ]
    return shown + variables


def matches(matcher: tuple[str, str, str], labels: dict[str, str]) -> bool:
    name, operator, wanted = matcher
    value = labels.get(name, "")
    if "$" in wanted:
        return True if wanted != "$topic" else value != ""  # a variable that matches everything
    is_so = bool(re.fullmatch(wanted, value)) if "~" in operator else value == wanted
    return is_so != operator.startswith("!")


def missing_series(query: str, legend: str, series: Series) -> list[str]:
    """Return the series and labels that a query needs and that do not exist."""
    found = []
    selectors = SELECTOR.findall(query)
    if not selectors:
        found.append(f"{query}: no series")
    wanted_labels = {
        *(label.strip() for group in GROUPED.findall(query) for label in group.split(",")),
        *re.findall(r"\{\{(\w+)\}\}", legend),
    } - PROMETHEUS_LABELS
    for name, matchers in selectors:
        labels_of: list[dict[str, str]] = [
            dict(label_pairs)  # type: ignore[arg-type]
            for found_name, *label_pairs in series
            if found_name == name
        ]
        known = [
            labels
            for labels in labels_of
            if all(
                matches(one, labels) for one in MATCHER.findall(matchers) if one[0] not in PROMETHEUS_LABELS
            )
        ]
        if not known:
            found.append(f"{query}: no {name} with {matchers}")
        found += [
            f"{query}: no label {label}"
            for label in sorted(wanted_labels)
            if not any(label in labels for labels in known)
        ]
    return found


@pytest.mark.linux("metrics from /proc")
async def test_every_query_finds_its_series_on_a_live_broker() -> None:
    async with serve_observed({"offsets.topic.num.partitions": "1"}) as node:
        await trio.to_thread.run_sync(partial(produce, node.running.bootstrap, "orders", 1))
        await trio.to_thread.run_sync(partial(consume, node.running.bootstrap, "orders", 1))
        series = await node.metrics()
    assert len(queries()) > 30
    assert [fault for query, legend in queries() for fault in missing_series(query, legend, series)] == []


def test_missing_series_finds_unknown_names_and_labels() -> None:
    series = Series('kafka_a{topic="x"} 1\n')
    assert missing_series('sum by (topic) (kafka_a{topic=~"$topic"})', "{{topic}}", series) == []
    assert len(missing_series("kafka_b", "", series)) == 1
    assert len(missing_series('kafka_a{topic="y"}', "", series)) == 1
    assert len(missing_series('kafka_a{topic!~"x|z"}', "", series)) == 1
    assert len(missing_series("sum by (broker) (kafka_a)", "", series)) == 1
    assert len(missing_series("kafka_a", "{{broker}}", series)) == 1
    assert len(missing_series("1", "", series)) == 1


def test_panels_have_titles_and_queries_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        assert panel["type"] == "row" or panel["targets"]
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
