"""The dashboard for Grafana: what each of its queries asks for, a broker that has served clients tells."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import trio

from tests.broker.observe.conftest import Series, observed
from tests.broker.observe.test_metrics import consume, produce

DASHBOARD = json.loads(
    (Path(__file__).resolve().parents[3] / "docker" / "grafana-kwire.json").read_text(encoding="utf-8")
)
SELECTOR = re.compile(r"\b((?:kafka|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')
GROUPED = re.compile(r"\bby \(([\w, ]+)\)")
OF_PROMETHEUS = {"job", "instance"}
"""Labels that whoever scrapes adds."""


def queries() -> list[tuple[str, str]]:
    """The queries of the panels, each with its legend, and those of the variables."""
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
        return True if wanted != "$topic" else value != ""  # a variable that stands for all
    is_so = bool(re.fullmatch(wanted, value)) if "~" in operator else value == wanted
    return is_so != operator.startswith("!")


def unmet(query: str, legend: str, series: Series) -> list[str]:
    """What a query asks for and is not there: series, or labels to tell them apart by."""
    found = []
    asked = SELECTOR.findall(query)
    if not asked:
        found.append(f"{query}: no series")
    wanted_labels = {
        *(label.strip() for group in GROUPED.findall(query) for label in group.split(",")),
        *re.findall(r"\{\{(\w+)\}\}", legend),
    } - OF_PROMETHEUS
    for name, matchers in asked:
        labels_of = [dict(told) for found_name, *told in series if found_name == name]  # type: ignore[call-overload]
        known = [
            labels
            for labels in labels_of
            if all(matches(one, labels) for one in MATCHER.findall(matchers) if one[0] not in OF_PROMETHEUS)
        ]
        if not known:
            found.append(f"{query}: no {name} with {matchers}")
        found += [
            f"{query}: no label {label}"
            for label in sorted(wanted_labels)
            if not any(label in labels for labels in known)
        ]
    return found


async def test_every_query_finds_its_series_at_a_live_broker() -> None:
    async with observed({"offsets.topic.num.partitions": "1"}) as node:
        await trio.to_thread.run_sync(partial(produce, node.running.bootstrap, "orders", 1))
        await trio.to_thread.run_sync(partial(consume, node.running.bootstrap, "orders", 1))
        series = await node.metrics()
    assert len(queries()) > 30
    assert [fault for query, legend in queries() for fault in unmet(query, legend, series)] == []


def test_a_query_for_what_is_not_there_is_found() -> None:
    series = Series('kafka_a{topic="x"} 1\n')
    assert unmet('sum by (topic) (kafka_a{topic=~"$topic"})', "{{topic}}", series) == []
    assert len(unmet("kafka_b", "", series)) == 1
    assert len(unmet('kafka_a{topic="y"}', "", series)) == 1
    assert len(unmet('kafka_a{topic!~"x|z"}', "", series)) == 1
    assert len(unmet("sum by (broker) (kafka_a)", "", series)) == 1
    assert len(unmet("kafka_a", "{{broker}}", series)) == 1
    assert len(unmet("1", "", series)) == 1


def test_panels_have_titles_queries_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        assert panel["type"] == "row" or panel["targets"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
