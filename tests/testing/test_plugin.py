"""The pytest plugin, run as in a user's test suite."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from kwire.testing.broker import Process

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "kwire.testing.plugin", "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable plugin entry points: an installed kwire would load this plugin a second time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(
    pytester: pytest.Pytester, source: str, *options: str, process: Process = "thread"
) -> pytest.RunResult:
    """Run a suite of one module in a separate process: in this one, modules would be imported twice."""
    pytester.makepyfile(source)
    return pytester.runpytest_subprocess(*PLUGIN, "-o", f"kwire_process={process}", *options)


def kept_directories(base: Path) -> list[str]:
    return sorted(path.name for path in base.glob("kwire*") if not path.is_symlink())


def test_fixtures_need_no_import_and_give_fresh_names(pytester: pytest.Pytester, process: Process) -> None:
    result = run(
        pytester,
        """
        import pytest

        seen = set()

        @pytest.mark.parametrize("number", [1, 2])
        def test_shared(kwire, kwire_topic, kwire_group, number):
            seen.add((kwire.bootstrap_servers, kwire_topic, kwire_group))
            kwire.produce(kwire_topic, "one", "two")
            assert [record.value for record in kwire.records(kwire_topic, count=2)] == [b"one", b"two"]

        def test_own(kwire, kwire_broker, kwire_topic):
            assert kwire_broker.bootstrap_servers != kwire.bootstrap_servers
            assert kwire_broker.topics() == [kwire_topic]

        def test_names_differ():
            addresses, topics, groups = zip(*seen)
            assert len(set(addresses)) == 1
            assert len(set(topics)) == len(set(groups)) == 2
        """,
        process=process,
    )
    result.assert_outcomes(passed=4)


def test_fixtures_work_while_a_test_fakes_the_file_system(
    pytester: pytest.Pytester, process: Process
) -> None:
    result = run(
        pytester,
        """
        import os

        def use(broker, topic):
            broker.produce(topic, "one")
            broker.advance(60_000)
            assert len(broker.records(topic, count=1)) == 1

        def test_shared(kwire, kwire_topic, fs):
            assert not os.path.exists(__file__)
            use(kwire, kwire_topic)

        def test_shared_later(kwire, kwire_topic):
            kwire.restart()
            use(kwire, kwire_topic)

        def test_own(kwire_broker, fs):
            use(kwire_broker, "own")
            kwire_broker.restart()

        def test_own_with_fake_files_before(fs, kwire_broker):
            use(kwire_broker, "own")
            kwire_broker.crash()
            kwire_broker.start()

        def test_cluster_with_fake_files_before(fs, kwire_cluster):
            use(kwire_cluster, "cluster")
        """,
        "-p",
        "pyfakefs.pytest_plugin",
        process=process,
    )
    result.assert_outcomes(passed=5)


def test_requests_of_a_test_with_a_frozen_clock_are_shown(
    pytester: pytest.Pytester, process: Process
) -> None:
    result = run(
        pytester,
        """
        import freezegun
        import pytest
        from confluent_kafka import Producer

        @pytest.fixture(scope="module", autouse=True)
        def frozen_clock():
            with freezegun.freeze_time("2055-05-05"):
                yield

        def send(broker, topic):
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            producer.produce(topic, b"one")
            assert producer.flush(10) == 0

        def test_earlier(kwire):
            send(kwire, "earlier")

        def test_later(kwire):
            send(kwire, "later")
            assert False
        """,
        process=process,
    )
    result.assert_outcomes(passed=1, failed=1)
    assert "name: 'later'" in result.stdout.str()
    assert "name: 'earlier'" not in result.stdout.str()


def test_kwire_modules_are_excluded_from_assertion_rewriting(pytester: pytest.Pytester) -> None:
    # pytest does this for packages that are installed with a plugin.
    pytester.makeconftest("import pytest; pytest.register_assert_rewrite('kwire', 'theirs')")
    pytester.makepyfile(theirs="")
    result = run(
        pytester,
        """
        def test_loaders(kwire):
            from importlib.machinery import SourceFileLoader
            import kwire.broker.net.loop as ours, theirs
            assert isinstance(ours.__loader__, SourceFileLoader)
            assert type(theirs.__loader__).__name__ == "AssertionRewritingHook"
        """,
    )
    result.assert_outcomes(passed=1)


def test_marks_accept_users(pytester: pytest.Pytester, process: Process) -> None:
    result = run(
        pytester,
        """
        import pytest

        USERS = {"alice": "alice-secret", "bob": "bob-secret"}

        @pytest.mark.kwire_broker({"num.partitions": 2}, users=USERS)
        def test_broker(kwire_broker, kwire_topic):
            assert kwire_broker.client_config("bob").password == "bob-secret"
            kwire_broker.produce(kwire_topic, "one")

        @pytest.mark.kwire_cluster(size=1, users=USERS)
        def test_cluster(kwire_cluster, kwire_topic):
            assert kwire_cluster.client_config().username == "alice"
            kwire_cluster.produce(kwire_topic, "one")
        """,
        process=process,
    )
    result.assert_outcomes(passed=2)
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.kwire_broker(users=["alice"])
        def test_broker(kwire_broker):
            pass
        """,
        process=process,
    )
    result.stdout.fnmatch_lines(["*does not accept users=*alice*: write kwire_broker(*users=*"])


def test_config_comes_from_the_fixture_and_the_mark(pytester: pytest.Pytester, process: Process) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.fixture(scope="session")
        def kwire_config():
            return {"num.partitions": 2}

        def partitions(broker):
            broker.produce("made", "by this")
            return len(broker.end_offsets("made"))

        @pytest.mark.kwire_broker({"num.partitions": 5})
        def test_marked(kwire_broker):
            assert partitions(kwire_broker) == 5

        def test_unmarked(kwire_broker):
            assert partitions(kwire_broker) == 2
        """,
        "--strict-markers",
        process=process,
    )
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("mark", "fixtures", "message"),
    [
        (
            "kwire_broker(num_partitions=3)",
            "kwire_broker",
            '*kwire_broker does not accept num_partitions=: write kwire_broker({"num.*": 3}, users=*)',
        ),
        (
            'kwire_broker({"num.partitions": 3})',
            "kwire, kwire_topic",
            "*kwire_broker needs the fixture kwire_broker, but this test uses kwire and kwire_topic",
        ),
        ("kwire_cluster(5)", "kwire_cluster", "*kwire_cluster does not accept 5: write *, size=3)"),
        ("kwire_cluster({}, 5)", "kwire_cluster", "*kwire_cluster does not accept 5: write *, size=3)"),
        ('kwire_cluster(size="x")', "kwire_cluster", "*kwire_cluster does not accept size='x': write *"),
        ("kwire_simulation(seed=2)", "kwire_simulation", "*does not accept seed=: write *, seeds=20, *"),
    ],
)
def test_mark_without_effect_is_refused_once(
    pytester: pytest.Pytester, mark: str, fixtures: str, message: str
) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{mark}\ndef test_it({fixtures}): pass")
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])
    assert "plugin.py" not in result.stdout.str()


def test_module_mark_applies_to_tests_with_its_fixture(pytester: pytest.Pytester, process: Process) -> None:
    result = run(
        pytester,
        """
        import pytest

        pytestmark = pytest.mark.kwire_broker({"num.partitions": 3})

        def test_shared(kwire):
            assert len(kwire.produce("made", "x")) == len(kwire.end_offsets("made")) == 1

        def test_own(kwire_broker):
            kwire_broker.produce("made", "x")
            assert len(kwire_broker.end_offsets("made")) == 3
        """,
        process=process,
    )
    result.assert_outcomes(passed=2)


def test_faults_of_the_shared_broker_end_with_the_test(pytester: pytest.Pytester, process: Process) -> None:
    result = run(
        pytester,
        """
        def test_faulty(kwire, kwire_topic):
            kwire.produce(kwire_topic, "x")
            kwire.faults.return_error("Produce", "INVALID_RECORD", times=None)
            kwire.hang()

        def test_crashed(kwire):
            assert not kwire.faults.any_pending
            assert len(kwire.topics()) == 1
            kwire.crash()
            kwire.fill_disk()

        def test_next(kwire, kwire_topic):
            kwire.produce(kwire_topic, "y")
            assert len(kwire.topics()) == 2
        """,
        process=process,
    )
    result.assert_outcomes(passed=3)


def test_dead_child_process_fails_one_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os, signal
        from kwire.testing.child_process import CHILD_PROCESSES

        def kill():
            os.kill(CHILD_PROCESSES.get().pid, signal.SIGKILL)

        def test_kills_it(kwire):
            kill()

        def test_uses_the_next_one(kwire, kwire_broker, kwire_topic):
            kwire_broker.produce(kwire_topic, "x")
            assert len(kwire_broker.records(kwire_topic)) == 1
            assert kwire.topics() == []

        def test_meets_the_death(kwire, kwire_topic):
            kill()
            kwire.produce(kwire_topic, "x")

        def test_last(kwire, kwire_topic):
            kwire.produce(kwire_topic, "x")
        """,
        process="child",
    )
    result.assert_outcomes(passed=3, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "ChildDied: the child process * was ended by signal 9*",
            "E *ChildDied: the child process * was ended by signal 9*",
        ]
    )
    assert "INTERNALERROR" not in result.stdout.str()


def test_mark_sets_the_process_of_a_broker(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import socket
        import pytest
        from unittest.mock import patch

        @pytest.mark.kwire_broker(process="child")
        def test_it(kwire_broker):
            with patch("socket.socket", side_effect=OSError):
                kwire_broker.produce("orders", "x")
        """,
    )
    result.assert_outcomes(passed=1)


def test_fixtures_in_a_child_process_work_beside_fake_files_and_blocked_sockets(
    pytester: pytest.Pytester,
) -> None:
    result = run(
        pytester,
        """
        import os

        directories = []

        def use(*brokers):
            for broker in brokers:
                broker.produce("orders", "x")
                assert len(broker.records("orders")) >= 1
                assert not os.path.exists(broker.log_dir), "the file system is not faked"
                directories.append(broker.log_dir)

        def test_files_faked_before_the_brokers_start(fs, kwire_broker, kwire):
            use(kwire_broker, kwire)

        def test_files_faked_while_the_brokers_run(kwire, kwire_broker, fs):
            use(kwire_broker, kwire)

        def test_data_of_passed_tests_is_removed(kwire):
            exist = [os.path.exists(directory) for directory in directories]
            assert exist == [False, True] * 2

        def test_blocked_sockets(kwire, kwire_broker, socket_disabled):
            kwire.produce("orders", "x")
            kwire_broker.produce("orders", "x")
        """,
        "-p",
        "pyfakefs.pytest_plugin",
        "-p",
        "pytest_socket",
        process="child",
    )
    result.assert_outcomes(passed=4)


def test_invalid_process_is_refused(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(*PLUGIN, "-o", "kwire_process=container")
    result.stderr.fnmatch_lines(["*kwire_process = container: set thread or child*"])


def test_failure_report_has_the_log_and_keeps_the_data(pytester: pytest.Pytester, process: Process) -> None:
    base = pytester.path / "base"
    result = run(
        pytester,
        """
        import socket

        def test_before(kwire_broker):
            kwire_broker.create_topic("forgotten")

        def test_failing(kwire, kwire_broker, caplog):
            kwire_broker.create_topic("remembered")
            host, port = kwire_broker.bootstrap_servers.split(":")
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(b"GET / HTTP/1.1")
                kwire_broker.wait_until(lambda: caplog.records)
            with socket.create_connection((host, int(port))) as client:
                client.sendall(bytes([0, 0, 0, 16, 0, 18, 0, 0, 0, 0, 0, 7, 0, 6]) + b"tester")
                assert client.recv(4)
            assert kwire_broker.records("remembered", count=1, timeout_s=0)
        """,
        f"--basetemp={base}",
        process=process,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*AssertionError: remembered has 0 records after 0 s, not 1*",
            "*Captured log call*",
            "*Closing connection*: the peer sent an HTTP request*",
            "*Captured kwire data call*",
            "kept in *kwire0",
            "*Captured kwire requests call*",
            "only 1 ApiVersions",
            "*Captured kwire data call*",
            "kept in *kwire-test_failing0",
        ],
        consecutive=False,
    )
    # Other tests use the shared broker too, so its data is kept as well.
    assert kept_directories(base) == ["kwire-test_failing0", "kwire0"]
    assert (base / "kwire-test_failing0" / "remembered-0").is_dir()


def test_cluster_has_the_size_of_its_mark_and_reports_per_broker(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import socket

        import pytest

        @pytest.mark.kwire_cluster({"num.partitions": 2}, size=1)
        def test_it(kwire_cluster, kwire_topic):
            kwire_cluster.produce("made", "x")
            assert len(kwire_cluster.end_offsets("made")) == 2
            assert kwire_cluster.leader(kwire_topic) is kwire_cluster.brokers[1]
            host, port = kwire_cluster.bootstrap_servers.split(":")
            with socket.create_connection((host, int(port))) as client:
                client.sendall(bytes([0, 0, 0, 16, 0, 18, 0, 0, 0, 0, 0, 7, 0, 6]) + b"tester")
                assert client.recv(4)
            assert len(kwire_cluster.brokers) == 3
        """,
        "--strict-markers",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*assert 1 == 3*", "*Captured kwire requests of broker 1 call*", "only 1 ApiVersions"]
    )


def test_data_of_passed_tests_is_removed(pytester: pytest.Pytester, process: Process) -> None:
    base = pytester.path / "base"
    result = run(
        pytester,
        "def test_it(kwire, kwire_broker): kwire_broker.new_topic()",
        f"--basetemp={base}",
        process=process,
    )
    result.assert_outcomes(passed=1)
    assert kept_directories(base) == []


def test_each_xdist_worker_has_its_own_broker(pytester: pytest.Pytester, process: Process) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test_it(kwire, kwire_topic, number):
            kwire.produce(kwire_topic, "x")
            assert len(kwire.records(kwire_topic)) == 1
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "xdist", "-n2", "-o", f"kwire_process={process}")
    result.assert_outcomes(passed=2)


def test_suite_without_a_broker_does_not_import_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            print(*sorted(name for name in sys.modules if name.partition(".")[0] in ("kwire", "trio")))
        """
    )
    result = pytester.run(sys.executable, "-m", "pytest", *PLUGIN, "-s")
    result.assert_outcomes(passed=1)
    ours = [line for line in result.outlines if "kwire.testing.plugin" in line][-1].split()
    assert {
        "kwire.client",
        "kwire.testing.blocking_client",
        "kwire.testing.interceptor",
        "kwire.broker",
        "trio",
    }.isdisjoint(ours)


SIMULATED = """
    import asyncio
    import pytest

    async def connect(servers):
        host, _, port = servers.split(",")[0].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.close()

    @pytest.mark.kwire_simulation(seeds=[3, 4], size=1, faults=False)
    def test_simulated(kwire_simulation):
        kwire_simulation.run(connect(kwire_simulation.bootstrap_servers))
        assert kwire_simulation.seed != 4
"""


def test_failing_seed_reports_how_to_reproduce_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    result = run(pytester, SIMULATED, "--strict-markers")
    result.assert_outcomes(passed=1, failed=1)
    again = "test_failing_seed_reports_how_to_reproduce_it.py::test_simulated[seed-4]"
    result.stdout.fnmatch_lines(
        [
            "*kwire simulation*",
            "kwire simulation with seed 4:",
            "*--- a program begins",
            f"reproduce: PYTHONHASHSEED=5 pytest '{again.replace('[', '[[]')}'",
        ]
    )
    run(pytester, SIMULATED, again).assert_outcomes(failed=1)


@pytest.mark.parametrize("wrong", ["0", "[]", "'ab'", "[1.5]"])
def test_invalid_seeds_are_refused_at_the_setup(pytester: pytest.Pytester, wrong: str) -> None:
    result = run(pytester, SIMULATED.replace("seeds=[3, 4]", f"seeds={wrong}"))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*pass a number of seeds, or seeds such as range(100, 200)*"])


def test_option_overrides_the_seeds_of_the_mark(pytester: pytest.Pytester) -> None:
    run(pytester, SIMULATED, "--kwire-seeds=2").assert_outcomes(passed=2)
    run(pytester, SIMULATED, "--kwire-seeds=4-6").assert_outcomes(passed=2, failed=1)
    for wrong in ("many", "0", "9-1"):
        result = run(pytester, SIMULATED, f"--kwire-seeds={wrong}")
        result.stderr.fnmatch_lines([f"*'{wrong}': pass a number of seeds, or a range such as 100-199"])


def test_seed_from_the_option_is_reproducible(pytester: pytest.Pytester) -> None:
    test = SIMULATED.replace("seeds=[3, 4]", "seeds=1")
    output = run(pytester, test, "--kwire-seeds=4-5").stdout.str()
    again = re.search(r"reproduce: .*pytest '(.*)' (--kwire-seeds=4-4)", output)
    assert again is not None, output
    run(pytester, test, *again.groups()).assert_outcomes(failed=1)


def test_invariants_are_checked_when_a_simulated_test_ends(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.kwire_simulation(seeds=1, faults=False)
        def test_broken(monkeypatch, kwire_simulation):
            name = "kwire.testing.simulated.cluster.replica_differences"
            monkeypatch.setattr(name, lambda environment: ["orders-0 differs"])
            kwire_simulation.create_topic("orders")
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*Violation: orders-0 differs", "kwire simulation with seed 0:"])
