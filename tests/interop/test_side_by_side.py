"""The comparison of kwire with Apache Kafka, on fake brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interop import side_by_side
from interop.brokers import Broker
from interop.record import Record
from interop.scenario import Difference, Failed, Scenario


class FakeBroker(Broker):
    """A broker that is never started and returns prepared observations."""

    observations: list[Any]
    runs = 0

    def command(self) -> list[str]:
        return []

    def start(self, *, wait: bool = True) -> None:
        pass


class Records(Record):
    def save(self, name: str, observation: Any) -> None:
        pass


def observe(broker: Broker) -> Any:
    assert isinstance(broker, FakeBroker)
    kind = type(broker)
    kind.runs += 1
    observation = kind.observations[kind.runs - 1]
    if isinstance(observation, Exception):
        raise observation
    return observation


def run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    apache: list[Any],
    kwire: list[Any],
    *,
    alone: bool = True,
) -> list[str]:
    """Return the unexplained differences. Fail unless every prepared result was requested."""
    monkeypatch.setattr(side_by_side, "make_offsets_topic", lambda broker: None)
    kinds: tuple[type[FakeBroker], ...] = (
        type("Apache", (FakeBroker,), {"observations": apache}),
        type("Kwire", (FakeBroker,), {"observations": kwire}),
    )
    differences: list[Difference] = []
    on_apache, on_kwire = [kind(directory=tmp_path) for kind in kinds]
    try:
        side_by_side.run_and_compare(
            Scenario("invented.scenario", observe, 10.0),
            on_apache,
            on_kwire,
            Records(),
            differences,
            alone=alone,
        )
    finally:
        assert [kind.runs for kind in kinds] == [len(apache), len(kwire)]
    return [difference.path for difference in differences]


def test_equal_observations_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, [{"a": 1}], [{"a": 1}]) == []


def test_occasional_behavior_of_apache_kafka_passes_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="in a second run"):
        assert run(monkeypatch, tmp_path, [{"a": 1}, {"a": 2}], [{"a": 2}]) == []


def test_mixture_of_two_observations_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    observations = [{"a": 1, "b": 1}, {"a": 2, "b": 2}, RuntimeError("it broke")]
    with pytest.raises(pytest.fail.Exception, match="/b"):
        run(monkeypatch, tmp_path, observations, [{"a": 1, "b": 2}])


def test_scenario_on_a_shared_broker_runs_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="/a"):
        run(monkeypatch, tmp_path, [{"a": 1}], [{"a": 2}], alone=False)


def test_kwire_runs_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="it broke"):
        run(monkeypatch, tmp_path, [1], [RuntimeError("it broke")])


def test_apache_kafka_may_fail_but_not_every_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broke = RuntimeError("it broke")
    with pytest.warns(UserWarning, match="failed on Apache Kafka at first"):
        assert run(monkeypatch, tmp_path, [broke, broke, 1], [1]) == []
    with pytest.raises(Failed, match="it broke"):
        run(monkeypatch, tmp_path, [broke, broke, broke], [1])
