"""The pytest plugin: brokers as fixtures, with nothing to import.

- `kwire`: one broker for all tests of the session (of each worker under pytest-xdist)
- `kwire_broker`: a broker of the test's own; `@pytest.mark.kwire_broker({...})` gives it Kafka's keys
- `kwire_cluster`: a cluster of the test's own; `@pytest.mark.kwire_cluster({...}, size=3)` does the same
- `kwire_simulation`: a simulated cluster of the test's own, once for each of some seeds;
  `@pytest.mark.kwire_simulation({...}, seeds=20, size=3, faults=True)`, or `--kwire-seeds=1000`
- `kwire_topic`, `kwire_group`: a topic and a group's name that no other test has, on the test's own broker
  or cluster where it asks for one
- `kwire_config`: to be overridden, with Kafka's keys for all of these brokers

When a test fails that has a broker, its report tells what clients have asked since the test began, and what
they were answered; and where the data is, which otherwise goes with the broker. The broker logs as any
library does in its process: pytest's own section has what it warned of, and with `--log-level=INFO` more.

It is loaded wherever kwire is installed: a suite that asks for none of these pays for this module alone.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from kwire.testing.broker import Broker
    from kwire.testing.cluster import Cluster
    from kwire.testing.kafka import Kafka
    from kwire.testing.simulated import SimulatedCluster

FEW_PARTITIONS = {"offsets.topic.num.partitions": 4, "transaction.state.log.num.partitions": 4}
"""What makes the first group and the first transaction come sooner: each has its partition made then."""
MAX_PREFIX_CHARACTERS = 100
MAX_REQUESTS_SHOWN = 100
"""The last requests that a report has."""

DEFAULT_SEEDS = 10
"""With how many a test is simulated that does not say."""

MARK_USAGE = {
    "kwire_broker": 'kwire_broker({"num.partitions": 3}, users={"alice": "secret"})',
    "kwire_cluster": 'kwire_cluster({"num.partitions": 3}, users={"alice": "secret"}, size=3)',
    "kwire_simulation": 'kwire_simulation({"num.partitions": 3}, seeds=20, size=3, faults=True)',
}
"""By fixture, how its mark is written in full."""

MARK_ARGUMENT_TYPES = {"size": int, "faults": bool, "users": Mapping}
"""By what a mark may say, of which type that is, but for seeds, which are looked at by themselves."""

_INVALID_IN_NAMES = re.compile(r"[^a-zA-Z0-9._-]+")


class BrokerData(NamedTuple):
    """Where the data of some brokers is, and which tests have failed that had them: it is kept then."""

    directory: Path
    brokers: Mapping[str, Broker]
    """By what they are called in reports."""
    failed: list[pytest.Item]


class SkipAssertionRewriting(MetaPathFinder):
    """Finds kwire's modules before pytest does.

    pytest compiles the assertions of all modules anew that are installed with a plugin: here of a whole
    broker, which takes a second wherever that is not cached.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.startswith("kwire.") else None


SHARED_BROKER = pytest.StashKey[BrokerData]()
OWN_BROKERS = pytest.StashKey[list[BrokerData]]()
SIMULATED_CLUSTER = pytest.StashKey["SimulatedCluster"]()
"""While it has not failed."""
STARTED_AT_S = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kwire-seeds",
        metavar="DEFAULT_SEEDS",
        type=_parse_seeds,
        help="the seeds of tests with kwire_simulation: how many, or from one to another as in 100-199",
    )


def pytest_configure(config: pytest.Config) -> None:
    finder = SkipAssertionRewriting()
    sys.meta_path.insert(0, finder)
    config.add_cleanup(lambda: sys.meta_path.remove(finder))
    config.addinivalue_line(
        "markers",
        "kwire_broker(config, users=...): Kafka's keys for this test's own broker, the fixture kwire_broker",
    )
    config.addinivalue_line(
        "markers",
        "kwire_cluster(config, users=..., size=3): the same for its own cluster, the fixture kwire_cluster",
    )
    config.addinivalue_line(
        "markers",
        f"kwire_simulation(config, seeds={DEFAULT_SEEDS}, size=3, faults=True): the same for a simulated "
        "cluster, the fixture kwire_simulation, once for each of so many seeds, or of these",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Once for each seed, by which a failure is seen again."""
    for name, whole in MARK_USAGE.items():
        _check_mark(metafunc, name, whole)
    if "kwire_simulation" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("kwire_simulation")
        marked = DEFAULT_SEEDS if marker is None else marker.kwargs.get("seeds", DEFAULT_SEEDS)
        given = metafunc.config.getoption("--kwire-seeds")
        seeds = list(given or (range(marked) if isinstance(marked, int) else marked))
        if not seeds or not all(isinstance(seed, int) for seed in seeds):
            pytest.fail(
                f"seeds={marked!r}: say how many seeds, or which as in range(100, 200)", pytrace=False
            )
        metafunc.parametrize("kwire_simulation", seeds, indirect=True, ids=[f"seed-{each}" for each in seeds])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Add what the test's brokers have to tell, where it failed."""
    shared = (
        item.config.stash.get(SHARED_BROKER, None) if "kwire" in getattr(item, "fixturenames", ()) else None
    )
    if call.when == "setup":
        item.stash[STARTED_AT_S] = call.start
    elif call.when == "teardown" and shared is not None:
        _repair(shared.brokers[""])
    if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
        return
    simulated = item.stash.get(SIMULATED_CLUSTER, None)
    if simulated is not None:
        del item.stash[SIMULATED_CLUSTER]
        item.add_report_section(
            call.when, "kwire simulation", f"{simulated.report()}\n{_rerun_instructions(item)}"
        )
    for kept in (*([shared] if shared is not None else []), *item.stash.get(OWN_BROKERS, [])):
        if item in kept.failed:
            continue  # told before: the teardown has failed, too
        kept.failed.append(item)
        for name, broker in kept.brokers.items():
            requests = broker.requests.format(since_s=item.stash[STARTED_AT_S], limit=MAX_REQUESTS_SHOWN)
            item.add_report_section(call.when, f"kwire requests{name}", requests)
        item.add_report_section(call.when, "kwire data", f"is kept in {kept.directory}")


@pytest.fixture(scope="session")
def kwire_config() -> Mapping[str, object]:
    """Kafka's keys for brokers of this suite: override it to give some."""
    return {}


@pytest.fixture(scope="session")
def kwire(
    kwire_config: Mapping[str, object],
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Iterator[Broker]:
    """A broker that all tests of the session share."""
    from kwire.testing.broker import Broker

    directory = tmp_path_factory.mktemp("kwire")
    broker = Broker({**FEW_PARTITIONS, **kwire_config}, log_dir=directory, sync=False)
    kept = BrokerData(directory, {"": broker}, [])
    with broker:
        pytestconfig.stash[SHARED_BROKER] = kept
        yield broker
    del pytestconfig.stash[SHARED_BROKER]
    _remove_data(kept)


@pytest.fixture
def kwire_broker(
    kwire_config: Mapping[str, object],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Broker]:
    """A broker that no other test has."""
    from kwire.testing.broker import Broker

    config, others = _mark_arguments(request, "kwire_broker")
    directory = tmp_path_factory.mktemp(f"kwire-{_name_of(request)}")
    broker = Broker({**FEW_PARTITIONS, **kwire_config, **config}, log_dir=directory, sync=False, **others)
    kept = BrokerData(directory, {"": broker}, [])
    with broker:
        request.node.stash.setdefault(OWN_BROKERS, []).append(kept)
        yield broker
    _remove_data(kept)


@pytest.fixture
def kwire_cluster(
    kwire_config: Mapping[str, object],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Cluster]:
    """A cluster of three brokers that no other test has."""
    from kwire.testing.cluster import Cluster

    config, others = _mark_arguments(request, "kwire_cluster")
    directory = tmp_path_factory.mktemp(f"kwire-{_name_of(request)}")
    with Cluster(overrides={**kwire_config, **config}, log_dir=directory, **others) as cluster:
        brokers: Mapping[str, Broker] = {
            f" of broker {node_id}": broker for node_id, broker in cluster.brokers.items()
        }
        kept = BrokerData(directory, brokers, [])
        request.node.stash.setdefault(OWN_BROKERS, []).append(kept)
        yield cluster
    _remove_data(kept)


@pytest.fixture
def kwire_simulation(request: pytest.FixtureRequest) -> Iterator[SimulatedCluster]:
    """A simulated cluster that no other test has, whose promises are checked when the test has ended."""
    from kwire.testing.simulated import SimulatedCluster

    config, others = _mark_arguments(request, "kwire_simulation")
    others.pop("seeds", None)
    cluster = SimulatedCluster(request.param, config, **others)
    request.node.stash[SIMULATED_CLUSTER] = cluster
    try:
        cluster.start()
        yield cluster
        if SIMULATED_CLUSTER in request.node.stash:
            cluster.check()
    finally:
        cluster.stop()


@pytest.fixture
def kwire_topic(request: pytest.FixtureRequest) -> str:
    """A topic of one partition that no other test has, made for this one."""
    return _kafka_of(request).new_topic(_name_of(request))


@pytest.fixture
def kwire_group(request: pytest.FixtureRequest) -> str:
    """The name of a group that no other test has."""
    return _kafka_of(request).new_name(_name_of(request))


def _check_mark(metafunc: pytest.Metafunc, name: str, whole: str) -> None:
    """Fail the collection where a mark says nothing that is understood, or to nobody."""
    mark = metafunc.definition.get_closest_marker(name)
    if mark is None:
        return
    others = [f"{key}=" for key in mark.kwargs if f" {key}=" not in whole]
    others += [f"{one!r:.60}" for one in mark.args[:1] if not isinstance(one, Mapping)]
    others += [f"{one!r:.60}" for one in mark.args[1:]]
    others += [
        f"{key}={one!r:.60}"
        for key, one in mark.kwargs.items()
        if not isinstance(one, MARK_ARGUMENT_TYPES.get(key, object))
    ]
    if others:
        pytest.fail(f"@pytest.mark.{name} has no place for {others[0]}: write {whole}", pytrace=False)
    ours = ("kwire", "kwire_topic", "kwire_group", *MARK_USAGE)
    has = [one for one in metafunc.fixturenames if one in ours]
    # That of a class or a module is for those of its tests that have the fixture.
    if has and name not in has and any(mark is one for one in metafunc.definition.own_markers):
        pytest.fail(
            f"@pytest.mark.{name} is for the fixture {name}, and this test has {' and '.join(has)} instead",
            pytrace=False,
        )


def _mark_arguments(request: pytest.FixtureRequest, name: str) -> tuple[Mapping[str, object], dict[str, Any]]:
    """The keys, and what else a mark says."""
    marker = request.node.get_closest_marker(name)
    if marker is None:
        return {}, {}
    return marker.args[0] if marker.args else {}, dict(marker.kwargs)


def _parse_seeds(wanted: str) -> range:
    """How many, or from where to where: one at least."""
    first, is_range, last = wanted.partition("-")
    try:
        seeds = range(int(first), int(last) + 1) if is_range else range(int(wanted))
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise ArgumentTypeError(f"{wanted!r}: say how many seeds, or which as in 100-199")
    return seeds


def _rerun_instructions(item: pytest.Item) -> str:
    """What to type to see a seed again: the order of Python's sets of strings has a seed of its own."""
    hash_seed = os.environ.get("PYTHONHASHSEED", "random")
    again = f"pytest {item.nodeid!r}"
    if item.config.getoption("--kwire-seeds"):  # the mark alone may not have this seed
        seed = item.callspec.params["kwire_simulation"]  # type: ignore[attr-defined]
        again += f" --kwire-seeds={seed}-{seed}"
    if hash_seed == "random":
        return (
            f"see it again: {again}; where it then passes, find it with PYTHONHASHSEED=0 in the environment"
        )
    return f"see it again: PYTHONHASHSEED={hash_seed} {again}"


def _remove_data(kept: BrokerData) -> None:
    if not kept.failed:
        from shutil import rmtree

        rmtree(kept.directory, ignore_errors=True)


def _repair(broker: Broker) -> None:
    """What a test has had go wrong is not for the next one."""
    broker.faults.clear()
    broker.resume()
    broker.free_disk()
    if not broker.is_running:
        broker.start()


def _kafka_of(request: pytest.FixtureRequest) -> Kafka:
    own = [name for name in ("kwire_broker", "kwire_cluster") if name in request.fixturenames]
    kafka: Kafka = request.getfixturevalue(own[0] if own else "kwire")
    return kafka


def _name_of(request: pytest.FixtureRequest) -> str:
    return _INVALID_IN_NAMES.sub("-", request.node.name)[:MAX_PREFIX_CHARACTERS]
