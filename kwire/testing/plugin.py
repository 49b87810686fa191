"""The pytest plugin: fixtures with brokers and clusters. It is loaded wherever kwire is installed.

- `kwire`: one broker for all tests of the session (of each worker under pytest-xdist)
- `kwire_broker`: a broker for one test; `@pytest.mark.kwire_broker({...})` sets broker configs
- `kwire_cluster`: a cluster for one test; `@pytest.mark.kwire_cluster({...}, size=3)`
- `kwire_simulation`: a simulated cluster for one test, which runs once per seed;
  `@pytest.mark.kwire_simulation({...}, seeds=20, size=3, faults=True)`, or `--kwire-seeds=1000`
- `kwire_topic`, `kwire_group`: a new topic, and an unused group id, on the broker or cluster of the test
- `kwire_config`: broker configs for `kwire`, `kwire_broker` and `kwire_cluster`; override this fixture

The report of a failed test shows the requests that clients sent since the test began, with their responses,
the ACLs that clients lacked, and the data directory. Data of tests that pass is removed. The log of the
broker is in pytest's own section: warnings by default, more with `--log-level=INFO`.

With the ini option `kwire_process = child`, the brokers of `kwire` and `kwire_broker` run in a child process.

A test suite that uses no fixture imports only this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kwire.host.platform import IS_SUPPORTED, SENTENCE
from kwire.testing.failure_traceback import explained
from kwire.testing.kept_modules import KEPT_MODULES
from kwire.testing.seeds import DEFAULT_SEEDS, marked_seeds, parse_seeds
from kwire.testing.started_brokers import STARTED_BROKERS, Sections

if TYPE_CHECKING:
    from kwire.testing.acl import Acl
    from kwire.testing.broker import Broker, Process
    from kwire.testing.cluster import Cluster
    from kwire.testing.embedded_kafka import EmbeddedKafka
    from kwire.testing.kafka import Kafka
    from kwire.testing.simulated import SimulatedCluster
    from kwire.testing.tls import Tls

FEW_PARTITIONS = {"offsets.topic.num.partitions": 4, "transaction.state.log.num.partitions": 4}
"""Fewer internal partitions, so that the first group and the first transaction start sooner."""
MAX_PREFIX_CHARACTERS = 100
MAX_REQUESTS_SHOWN = 100
"""The maximum number of requests that a failure report shows."""

MARK_USAGE = {
    "kwire_broker": (
        'kwire_broker({"num.partitions": 3}, users={"alice": "secret"}, tls=True, '
        'acls=[Acl.allow("alice", "READ", topic="*")], process="child", max_recorded_requests=100_000, '
        "max_recorded_bytes=1 << 30)"
    ),
    "kwire_cluster": (
        'kwire_cluster({"num.partitions": 3}, users={"alice": "secret"}, tls=True, '
        'acls=[Acl.allow("alice", "READ", topic="*")], max_recorded_requests=100_000, '
        "max_recorded_bytes=1 << 30, size=3)"
    ),
    "kwire_simulation": 'kwire_simulation({"num.partitions": 3}, seeds=20, size=3, faults=True)',
}
"""The complete syntax of each fixture's mark, for error messages."""

MARK_ARGUMENT_TYPES = {
    "size": int,
    "faults": bool,
    "users": Mapping,
    "acls": Sequence,
    "process": str,
    "max_recorded_requests": int,
    "max_recorded_bytes": int,
}
"""Types of the keyword arguments of marks. Seeds are checked separately."""

ERRORS_SECTION = "kwire unexpected errors"

_INVALID_IN_NAMES = re.compile(r"[^a-zA-Z0-9._-]+")


class MarkError(Exception):
    """A mark with arguments that it does not accept, or without the fixture that it configures."""


class BrokerData(NamedTuple):
    """The data directory of a fixture's brokers. It is kept if a test that used the brokers has failed."""

    directory: str
    kafka: EmbeddedKafka
    brokers: Mapping[str, Broker]
    """The brokers, by the suffix of their sections in reports."""
    config: Mapping[str, object]
    """The value of `kwire_config` for these brokers."""
    owner: int
    """The process that has started the brokers. Processes that pytest-forked forks leave them to it."""
    failed: list[pytest.Item]


SHARED_BROKER = pytest.StashKey[BrokerData]()
OWN_BROKERS = pytest.StashKey[list[BrokerData]]()
SIMULATED_CLUSTER = pytest.StashKey["SimulatedCluster"]()
"""The cluster of a test that has not failed yet."""
STARTED_AT_S = pytest.StashKey[float]()
SECTIONS_FOR_PDB = pytest.StashKey[Sequence[tuple[str, str]]]()
REPORTED = pytest.StashKey[str]()
"""The phase of a test ("setup", "call", "teardown") whose failure has been reported."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--kwire-seeds` and `kwire_process`."""
    parser.addini(
        "kwire_process",
        "where the brokers of kwire and kwire_broker run: thread (in the process of the tests, the default) "
        "or child (in a child process, which frozen time, fake files and sockets, or gevent do not affect)",
        default="thread",
    )
    parser.addoption(
        "--kwire-seeds",
        metavar="SEEDS",
        type=parse_seeds,
        help="seeds of tests that use kwire_simulation: a number of seeds, or a range such as 100-199",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check `kwire_process`, register the marks, and exclude kwire from assertion rewriting."""
    if config.getini("kwire_process") not in ("thread", "child"):
        raise pytest.UsageError(f"kwire_process = {config.getini('kwire_process')}: set thread or child")
    STARTED_BROKERS.read_state = _read_state
    KEPT_MODULES.install()  # pytest has installed its own finder
    config.addinivalue_line(
        "markers",
        "kwire_broker(config, users=..., tls=True, acls=[...]): broker configs for the fixture kwire_broker",
    )
    config.addinivalue_line(
        "markers",
        "kwire_cluster(config, users=..., tls=True, acls=[...], size=3): broker configs and size for the "
        "fixture kwire_cluster",
    )
    config.addinivalue_line(
        "markers",
        f"kwire_simulation(config, seeds={DEFAULT_SEEDS}, size=3, faults=True): broker configs, seeds (a "
        "number or an iterable) and size for the fixture kwire_simulation",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a simulated test once per seed. With an invalid mark, it runs once, and fails at its setup."""
    if "kwire_simulation" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("kwire_simulation")
        given = metafunc.config.getoption("--kwire-seeds")
        is_valid = marker is None or not _wrong_argument("kwire_simulation", marker)
        seeds = list(given or marked_seeds(marker)) if is_valid else []
        ids = [f"seed-{each}" for each in seeds] or ["invalid-mark"]
        metafunc.parametrize("kwire_simulation", seeds or [None], indirect=True, ids=ids)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when a test with kwire's fixtures begins, and check its marks.

    The clock of pytest may be replaced by then. On systems without a broker, the test fails.
    """
    _forget_report(item)  # of the last attempt, if pytest-rerunfailures repeats the test
    item.stash[OWN_BROKERS] = []
    if any(name.startswith("kwire") for name in getattr(item, "fixturenames", ())):
        if not IS_SUPPORTED:
            pytest.fail(SENTENCE, pytrace=False)
        from kwire.host.system_time import libc_time_ns

        item.stash[STARTED_AT_S] = libc_time_ns() / 1_000_000_000
        shared = item.config.stash.get(SHARED_BROKER, None)
        if shared is not None:
            shared.brokers[""].requests.begin_test(item.stash[STARTED_AT_S])
        for name in MARK_USAGE:
            _check_mark(item, name)


@pytest.hookimpl(trylast=True, specname="pytest_runtest_setup")
def pytest_runtest_check_shared_config(item: pytest.Item) -> None:
    """Fail a test that uses `kwire`, but whose `kwire_config` is not that of this broker."""
    shared, request = _shared_broker_of(item), getattr(item, "_request", None)
    if shared is None or request is None:
        return
    config = request.getfixturevalue("kwire_config")
    if config != shared.config:
        pytest.fail(
            f"kwire_config is {config!r:.200} for this test, but the shared broker of the fixture kwire has "
            f"started with {shared.config!r:.200}: use the fixture kwire_broker in this test, or override "
            "kwire_config only in the conftest.py of the test suite",
            pytrace=False,
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Add the requests, the data directory and the simulation's transcript to the report of a failure.

    After a test, also repair the shared broker.
    """
    shared = _shared_broker_of(item)
    if call.when == "setup":
        item.stash.setdefault(STARTED_AT_S, call.start)
    elif call.when == "teardown" and shared is not None and shared.owner == os.getpid():
        try:
            _repair(shared.brokers[""])
        except Exception:  # an exception here would end the session with an internal error
            call.excinfo = call.excinfo or pytest.ExceptionInfo.from_current()
    if call.when != "setup" and (errors := STARTED_BROKERS.take_errors()):
        if call.excinfo is None:
            call.excinfo = _failure_of(errors)
        else:
            item.add_report_section(call.when, ERRORS_SECTION, "\n".join(errors))
    if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
        return
    if not item.config.getoption("fulltrace", False):
        call.excinfo = explained(item, call.excinfo)
    reported = item.stash.get(REPORTED, None)
    if reported == call.when:
        _forget_report(item)  # of another subtest of this test
    elif reported is not None:
        return  # now the teardown has failed, too
    item.stash[REPORTED] = call.when
    simulated = item.stash.get(SIMULATED_CLUSTER, None)
    if simulated is not None:
        del item.stash[SIMULATED_CLUSTER]
        item.add_report_section(
            call.when, "kwire simulation", f"{simulated.report()}\n{_rerun_instructions(item)}"
        )
    own = item.stash.get(OWN_BROKERS, [])
    for data in (*([shared] if shared is not None else []), *own):
        data.failed.append(item)
        _report(item, call.when, data.kafka, data.brokers, is_own=data in own, is_fixture=True)
        if data.owner == os.getpid():
            item.add_report_section(call.when, "kwire data", f"kept in {data.directory}")
    _report_direct_brokers(item, call.when)
    STARTED_BROKERS.take_errors()  # of requests of the report itself


@pytest.hookimpl(tryfirst=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector, report: pytest.TestReport) -> None:
    """Keep the sections of a report for `pytest_enter_pdb`: with `--pdb`, pytest does not show them."""
    if isinstance(node, pytest.Item) and node.config.getoption("usepdb", False):
        node.config.stash[SECTIONS_FOR_PDB] = [
            section for section in report.sections if section[0].startswith("Captured kwire ")
        ]


@pytest.hookimpl(tryfirst=True)
def pytest_enter_pdb(config: pytest.Config) -> None:
    """Show the sections of a failure. Stop the clocks of all brokers while pdb has stopped the test."""
    terminal = config.get_terminal_writer()
    for title, text in config.stash.get(SECTIONS_FOR_PDB, []):
        terminal.sep("-", title)
        terminal.line(text)
    config.stash[SECTIONS_FOR_PDB] = []
    STARTED_BROKERS.pause_clocks()


def pytest_leave_pdb() -> None:
    """Continue the clocks."""
    STARTED_BROKERS.resume_clocks()


@pytest.fixture(scope="session")
def kwire_config() -> Mapping[str, object]:
    """Return broker configs for `kwire`, `kwire_broker` and `kwire_cluster`. Override this fixture."""
    return {}


@pytest.fixture(scope="session")
def _kwire_process(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Process:
    """Return where brokers run. Fixtures of the session are set up before the doubles of a test.

    So the child process is started here, and pytest creates the directory of all temporary directories.
    """
    process: Process = pytestconfig.getini("kwire_process")
    tmp_path_factory.getbasetemp()
    if process == "child":
        from kwire.testing.child_process import CHILD_PROCESSES

        CHILD_PROCESSES.get()
    return process


@pytest.fixture(scope="session")
def kwire(
    kwire_config: Mapping[str, object],
    _kwire_process: Process,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Iterator[Broker]:
    """Share one broker among all tests of the session."""
    data = _new_broker("kwire", tmp_path_factory, FEW_PARTITIONS, kwire_config, process=_kwire_process)
    broker = data.brokers[""]
    with broker:
        pytestconfig.stash[SHARED_BROKER] = data
        yield broker
    del pytestconfig.stash[SHARED_BROKER]
    _remove_data(data)


@pytest.fixture
def kwire_broker(
    kwire_config: Mapping[str, object],
    _kwire_process: Process,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Broker]:
    """Start a broker for one test."""
    config, others = _mark_arguments(request, "kwire_broker")
    data = _new_broker(
        f"kwire-{_name_of(request)}",
        tmp_path_factory,
        FEW_PARTITIONS,
        {**kwire_config, **config},
        **{"process": _kwire_process, **others},
    )
    broker = data.brokers[""]
    with broker:
        request.node.stash.setdefault(OWN_BROKERS, []).append(data)
        yield broker
    _remove_data(data)


@pytest.fixture
def kwire_cluster(
    kwire_config: Mapping[str, object],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Cluster]:
    """Start a cluster for one test, with three brokers by default."""
    from kwire.testing.cluster import Cluster

    config, others = _mark_arguments(request, "kwire_cluster")
    directory = _new_directory(tmp_path_factory, f"kwire-{_name_of(request)}")
    with Cluster(overrides={**kwire_config, **config}, log_dir=directory, **others) as cluster:
        brokers: Mapping[str, Broker] = {
            f" of broker {node_id}": broker for node_id, broker in cluster.brokers.items()
        }
        data = BrokerData(directory, cluster, brokers, kwire_config, os.getpid(), [])
        request.node.stash.setdefault(OWN_BROKERS, []).append(data)
        yield cluster
    _remove_data(data)


@pytest.fixture
def kwire_simulation(request: pytest.FixtureRequest) -> Iterator[SimulatedCluster]:
    """Start a simulated cluster for one test, and check its invariants after the test."""
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
    """Create a topic with one partition, and return its name."""
    return _kafka_of(request).new_topic(_name_of(request))


@pytest.fixture
def kwire_group(request: pytest.FixtureRequest) -> str:
    """Return a group id that no other test uses."""
    return _kafka_of(request).new_name(_name_of(request))


def _failure_of(errors: list[str]) -> pytest.ExceptionInfo[BaseException]:
    from kwire.testing.unexpected_errors import failure_of

    try:
        raise failure_of(errors)
    except Exception:
        return pytest.ExceptionInfo.from_current()


def _read_state(kafka: EmbeddedKafka) -> Sections:
    from kwire.testing.failure_report import read_state

    return read_state(kafka)


def _shared_broker_of(item: pytest.Item) -> BrokerData | None:
    """Return the shared broker if it has started, and the test uses it by the fixture `kwire`."""
    shared = item.config.stash.get(SHARED_BROKER, None)
    if shared is None or "kwire" not in getattr(item, "fixturenames", ()):
        return None
    used = (getattr(item, "funcargs", None) or {}).get("kwire", shared.kafka)
    return shared if used is shared.kafka else None  # a suite may have its own fixture of this name


def _forget_report(item: pytest.Item) -> None:
    """Remove the sections of an earlier failure of this test, which pytest would show again."""
    item.stash.setdefault(REPORTED, "")
    del item.stash[REPORTED]
    sections: list[tuple[str, str, str]] = getattr(item, "_report_sections", [])
    kept = [one for one in sections if not one[1].startswith("kwire ") or one[1] == ERRORS_SECTION]
    sections[:] = kept


def _report(
    item: pytest.Item,
    when: str,
    kafka: EmbeddedKafka,
    brokers: Mapping[str, Broker],
    *,
    is_own: bool,
    is_fixture: bool,
) -> None:
    """Add the sections about a broker or cluster to the report of a failed test.

    If it is not running, this is worth a section only where a fixture should have kept it running.
    """
    from kwire.testing.failure_report import report

    given = getattr(item, "funcargs", {})
    names = [given[name] for name in ("kwire_topic", "kwire_group") if isinstance(given.get(name), str)]
    expects_running = is_fixture and when == "call"
    since_s = item.stash[STARTED_AT_S]
    for title, text in report(kafka, brokers, since_s, names, is_own=is_own, expects_running=expects_running):
        item.add_report_section(when, title, text)


def _report_direct_brokers(item: pytest.Item, when: str) -> None:
    """Report the brokers and clusters that the test has started without a fixture of kwire."""
    data = [*item.stash.get(OWN_BROKERS, []), item.config.stash.get(SHARED_BROKER, None)]
    known = [one.kafka for one in data if one is not None]
    for kafka in STARTED_BROKERS.all():
        is_own = STARTED_BROKERS.started_at_s(kafka) >= item.stash[STARTED_AT_S]
        brokers: Mapping[int, Broker] | None = getattr(kafka, "brokers", None)
        if any(kafka is one for one in known) or not (is_own or getattr(kafka, "is_running", bool(brokers))):
            continue
        named: dict[str, Any] = {"": kafka}
        if brokers is not None:
            named = {f" of broker {key}": one for key, one in brokers.items()}
        _report(item, when, kafka, named, is_own=is_own, is_fixture=False)


def _check_mark(item: pytest.Item, name: str) -> None:
    """Raise MarkError if a mark has invalid arguments, or marks a test that uses other fixtures only."""
    mark = item.get_closest_marker(name)
    if mark is None:
        return
    if wrong := _wrong_argument(name, mark):
        raise MarkError(f"@pytest.mark.{name} does not accept {wrong}: write {MARK_USAGE[name]}")
    ours = ("kwire", "kwire_topic", "kwire_group", *MARK_USAGE)
    has = [one for one in getattr(item, "fixturenames", ()) if one in ours]
    # A mark of a class or module may apply to some of its tests only.
    if has and name not in has and any(mark is one for one in item.own_markers):
        raise MarkError(
            f"@pytest.mark.{name} needs the fixture {name}, but this test uses {' and '.join(has)}"
        )
    if name in has and name == "kwire_simulation" and item.callspec.params.get(name, 0) is None:  # type: ignore[attr-defined]
        raise MarkError(
            f"seeds={mark.kwargs['seeds']!r}: pass a number of seeds, or seeds such as range(100, 200)"
        )


def _wrong_argument(name: str, mark: pytest.Mark) -> str:
    """Return the first argument that a mark does not accept; empty if it accepts all."""
    others = [f"{key}=" for key in mark.kwargs if f" {key}=" not in MARK_USAGE[name]]
    others += [f"{one!r:.60}" for one in mark.args[:1] if not isinstance(one, Mapping)]
    others += [f"{one!r:.60}" for one in mark.args[1:]]
    others += [
        f"{key}={one!r:.60}"
        for key, one in mark.kwargs.items()
        if not isinstance(one, MARK_ARGUMENT_TYPES.get(key, object))
    ]
    return others[0] if others else ""


def _mark_arguments(request: pytest.FixtureRequest, name: str) -> tuple[Mapping[str, object], dict[str, Any]]:
    """Return the broker configs and the keyword arguments of a mark."""
    marker = request.node.get_closest_marker(name)
    if marker is None:
        return {}, {}
    return marker.args[0] if marker.args else {}, dict(marker.kwargs)


def _rerun_instructions(item: pytest.Item) -> str:
    """Return the command that reproduces a failure. PYTHONHASHSEED determines the order of sets."""
    hash_seed = os.environ.get("PYTHONHASHSEED", "random")
    again = f"pytest {item.nodeid!r}"
    if item.config.getoption("--kwire-seeds"):  # the mark alone may not have this seed
        seed = item.callspec.params["kwire_simulation"]  # type: ignore[attr-defined]
        again += f" --kwire-seeds={seed}-{seed}"
    if hash_seed == "random":
        return (
            f"reproduce: {again} (if it passes now, the order of sets mattered: "
            "find a seed with PYTHONHASHSEED=0 set)"
        )
    return f"reproduce: PYTHONHASHSEED={hash_seed} {again}"


def _new_broker(
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    defaults: Mapping[str, object],
    config: Mapping[str, object],
    *,
    process: Process,
    users: Mapping[str, str] | None = None,
    tls: bool | Tls = False,
    acls: Sequence[Acl] | None = None,
    **limits: int,
) -> BrokerData:
    """Return a broker that has not started, with a new data directory.

    `limits` are those of its recorder.
    """
    from kwire.testing.broker import Broker

    directory = _new_directory(tmp_path_factory, name)
    broker = Broker(
        {**defaults, **config},
        users=users,
        tls=tls,
        acls=acls,
        log_dir=directory,
        sync=False,
        process=process,
        **limits,
    )
    return BrokerData(directory, broker, {"": broker}, config, os.getpid(), [])


def _new_directory(tmp_path_factory: pytest.TempPathFactory, name: str) -> str:
    """Create a directory as `mktemp` does, but in the real file system even if the test fakes it."""
    from kwire.testing.temporary_directory import new_numbered_directory

    return new_numbered_directory(str(tmp_path_factory.getbasetemp()), name)


def _remove_data(data: BrokerData) -> None:
    if not data.failed and data.owner == os.getpid():
        from kwire.testing.temporary_directory import remove_directory

        remove_directory(data.directory)


def _repair(broker: Broker) -> None:
    """Remove the faults that a test left in the shared broker, and start the broker if it is down."""
    try:
        broker.faults.clear()
        broker.resume()
        broker.free_disk()
    finally:  # after the death of a child process, the next tests have a new one
        if not broker.is_running:
            broker.start()


def _kafka_of(request: pytest.FixtureRequest) -> Kafka | SimulatedCluster:
    """Return the broker or cluster of the test. A simulated program reaches only the simulated cluster."""
    own = [
        name for name in ("kwire_simulation", "kwire_broker", "kwire_cluster") if name in request.fixturenames
    ]
    kafka: Kafka | SimulatedCluster = request.getfixturevalue(own[0] if own else "kwire")
    return kafka


def _name_of(request: pytest.FixtureRequest) -> str:
    return _INVALID_IN_NAMES.sub("-", request.node.name)[:MAX_PREFIX_CHARACTERS]
