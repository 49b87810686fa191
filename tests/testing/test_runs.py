"""Users' test suites in parallel, repeated, random and forked runs (docs/test-plugins.md)."""

from __future__ import annotations

import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from kwire.testing.broker import Process

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "kwire.testing.plugin", "-p", "no:cacheprovider")
XDIST = ("-p", "xdist", "-n2")
RANDOM = ("-p", "pytest_randomly", "--randomly-seed=1")
REPEAT = ("-p", "pytest_repeat", "--count=2")
NEWER_THAN_FORKED = tuple(map(int, pytest.__version__.split(".")[:2])) >= (9, 0)
"""pytest-forked 1.7 fails with every test in pytest 9.2."""

SUITE = {
    "conftest": """
        import pytest
        from kwire.testing import Broker

        def pytest_configure(config):
            config.addinivalue_line("markers", "xdist_group(name): also without pytest-xdist")

        @pytest.fixture(scope="session")
        def session_broker(pytestconfig):
            with Broker(process=pytestconfig.getini("kwire_process")) as broker:
                yield broker

        @pytest.fixture(scope="module")
        def module_broker(pytestconfig):
            with Broker({"num.partitions": 2}, process=pytestconfig.getini("kwire_process")) as broker:
                yield broker

        @pytest.fixture(scope="class")
        def class_topic(kwire):
            return kwire.new_topic("class")
    """,
    "test_brokers": """
        import pytest
        from confluent_kafka import Producer

        def send(broker, topic):
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            producer.produce(topic, b"x")
            assert producer.flush(10) == 0
            assert len(broker.records(topic, count=1)) == 1

        @pytest.mark.parametrize("number", range(2))
        def test_shared(kwire, kwire_topic, kwire_group, number):
            send(kwire, kwire_topic)

        @pytest.mark.xdist_group("own")
        @pytest.mark.parametrize("number", range(2))
        def test_own(kwire_broker, number):
            kwire_broker.create_topic("orders")
            send(kwire_broker, "orders")

        def test_session(session_broker):
            send(session_broker, session_broker.new_topic("session"))

        class TestClass:
            def test_first(self, kwire, class_topic):
                assert class_topic in kwire.topics()

            def test_second(self, kwire, class_topic, module_broker):
                assert class_topic in kwire.topics()
                send(module_broker, module_broker.new_topic("module"))
    """,
    "test_clusters": """
        import pytest

        @pytest.mark.kwire_cluster(size=2)
        def test_cluster(kwire_cluster, kwire_topic, module_broker):
            kwire_cluster.produce(kwire_topic, "x")

        @pytest.mark.kwire_simulation(seeds=2, faults=False, size=1)
        def test_simulation(kwire_simulation):
            kwire_simulation.create_topic("orders")
    """,
}
TESTS = 10


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_subprocess(*PLUGIN, "--tb=short", *options)


@pytest.mark.parametrize(
    ("process", "options", "rounds"),
    [
        ("thread", ("--import-mode=importlib",), 1),
        ("child", ("--import-mode=importlib",), 1),
        ("thread", (*RANDOM, *REPEAT), 2),
        ("thread", (*REPEAT, "--repeat-scope=session"), 2),
        ("child", (*XDIST, "--dist=each"), 2),
        ("thread", (*XDIST, *RANDOM, "--dist=loadgroup"), 1),
    ],
    ids=lambda value: "-".join(value).replace("-p-", "") if isinstance(value, tuple) else None,
)
def test_suite_passes_without_warnings(
    pytester: pytest.Pytester, process: Process, options: tuple[str, ...], rounds: int
) -> None:
    pytester.makepyfile(**SUITE)
    result = pytester.run(
        *(sys.executable, "-X", "dev", "-W", "error", "-m", "pytest", "-W", "error", *PLUGIN),
        *("-o", f"kwire_process={process}", *options),
    )
    result.assert_outcomes(passed=TESTS * rounds)


@pytest.mark.skipif(
    NEWER_THAN_FORKED or find_spec("pytest_forked") is None, reason="pytest-forked does not work"
)
def test_suite_passes_in_forked_processes(pytester: pytest.Pytester, process: Process) -> None:
    pytester.makepyfile(**SUITE)
    forked = ("-p", "pytest_forked", "-o", f"kwire_process={process}")
    pytester.runpytest_subprocess(*PLUGIN, *forked, "--forked").assert_outcomes(passed=TESTS)
    result = run(
        pytester,
        """
        import os
        import pytest

        def use(kwire, kwire_topic):
            kwire.produce(kwire_topic, "x")
            assert os.path.isdir(f"{kwire.log_dir}/{kwire_topic}-0")

        def test_first(kwire, kwire_topic):
            use(kwire, kwire_topic)

        @pytest.mark.forked
        def test_in_a_forked_process(kwire, kwire_topic):
            use(kwire, kwire_topic)

        def test_last(kwire, kwire_topic):
            use(kwire, kwire_topic)
            assert len(kwire.topics()) == 3
        """,
        *forked,
        "test_suite_passes_in_forked_processes.py",
    )
    result.assert_outcomes(passed=3)


def test_forked_process_leaves_the_broker_to_its_parent(pytester: pytest.Pytester) -> None:
    # As in pytest-forked, the forked process tears down all fixtures.
    pytester.makeconftest(
        """
        import os
        import pytest
        from _pytest.runner import runtestprotocol

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item):
            if item.name != "test_forked":
                return None
            child = os.fork()
            if not child:
                reports = runtestprotocol(item, log=False)
                print(*(report.longrepr for report in reports), flush=True)
                os._exit(not all(report.passed for report in reports))
            assert os.waitpid(child, 0)[1] == 0
            return True
        """
    )
    result = run(
        pytester,
        """
        import os
        import pytest

        def use(kwire):
            topic = kwire.new_topic("orders")
            kwire.produce(topic, "x")
            assert os.path.isdir(f"{kwire.log_dir}/{topic}-0")

        def test_first(kwire):
            use(kwire)

        def test_forked(kwire):
            use(kwire)
            assert kwire.is_running
            with pytest.raises(RuntimeError, match="already running"):
                kwire.start()
            for change in (kwire.restart, kwire.crash, kwire.hang, lambda: kwire.advance(1)):
                with pytest.raises(RuntimeError, match="the process that has forked this one"):
                    change()

        def test_last(kwire):
            use(kwire)
            assert len(kwire.topics()) == 3
            kwire.advance(1)
        """,
        "-s",
    )
    result.assert_outcomes(passed=2)


def test_crash_of_a_worker_fails_one_test(pytester: pytest.Pytester, process: Process) -> None:
    result = run(
        pytester,
        """
        import os, signal
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_it(kwire, kwire_broker, kwire_topic, number):
            kwire_broker.produce(kwire_topic, "x")
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            kwire.produce("orders", "x")
        """,
        *XDIST,
        "-o",
        f"kwire_process={process}",
    )
    result.assert_outcomes(passed=5, failed=1)


def test_report_of_a_repeated_test_is_that_of_its_last_attempt(
    pytester: pytest.Pytester, process: Process
) -> None:
    result = run(
        pytester,
        """
        from kwire.testing import Broker

        attempts = []

        def test_failing(kwire, kwire_broker):
            attempts.append(1)
            kwire.produce("orders", f"attempt {len(attempts)}")
            kwire.faults.return_error("Produce", "INVALID_RECORD", times=None)
            kwire_broker.produce("bills", f"attempt {len(attempts)}")
            with Broker() as broker:
                broker.produce("direct", f"attempt {len(attempts)}")
                assert False

        def test_flaky(kwire, kwire_broker):
            assert not kwire.faults.any_pending
            attempts.append(1)
            assert len(attempts) == 5
        """,
        *("-p", "pytest_rerunfailures", "--reruns=2", "-o", f"kwire_process={process}"),
    )
    result.assert_outcomes(passed=1, failed=1)
    for title, lines in (
        ("topics", ["  2: null = 'attempt 3'", "  0: null = 'attempt 3'", "  0: null = 'attempt 3'"]),
        ("data", ["kept in *kwire0", "kept in *kwire-test_failing2"]),
    ):
        assert result.stdout.str().count(f"Captured kwire {title} call") == len(lines)
        result.stdout.fnmatch_lines_random(lines)


def test_unittest_runs_without_warnings(pytester: pytest.Pytester, process: Process) -> None:
    path = pytester.makepyfile(
        f"""
        import unittest
        from kwire.testing import Broker

        def new_broker():
            return Broker(process={process!r})

        def setUpModule():
            broker = new_broker()
            broker.start()
            unittest.addModuleCleanup(broker.stop)

        class Test(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.broker = cls.enterClassContext(new_broker())

            def test_subtests(self):
                for number in range(3):
                    with self.subTest(number=number):
                        topic = self.broker.new_topic("orders")
                        self.broker.produce(topic, "x")
                        self.assertEqual(len(self.broker.records(topic)), 1)

        class TestAsync(unittest.IsolatedAsyncioTestCase):
            @classmethod
            def setUpClass(cls):
                cls.broker = cls.enterClassContext(new_broker())

            async def asyncSetUp(self):
                self.own = await self.enterAsyncContext(new_broker())

            async def test_it(self):
                for broker in (self.broker, self.own):
                    with self.subTest(broker=broker):
                        await broker.aio.produce("orders", "x")
                        self.assertEqual(len(await broker.aio.records("orders")), 1)
        """
    )
    result = pytester.run(sys.executable, "-X", "dev", "-W", "error", "-m", "unittest", path.name)
    assert result.ret == 0
    result.stderr.no_fnmatch_line("*Warning*")
    result = pytester.runpytest_subprocess(*PLUGIN, "-W", "error", path)
    assert result.ret == 0


@pytest.mark.skipif(find_spec("_pytest.subtests") is None, reason="pytest 9 reports each subtest")
def test_report_of_a_subtest_has_the_state_at_its_failure(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import unittest
        from kwire.testing import Broker

        class Test(unittest.TestCase):
            def test_it(self):
                with Broker() as broker:
                    for number in range(2):
                        with self.subTest(number=number):
                            broker.produce("orders", f"record {number}")
                            self.fail()
        """,
    )
    first, _, second = result.stdout.str().partition("(number=1)")
    assert "record 0" in first
    assert "record 1" not in first
    assert second.count("Captured kwire topics") == 1
    assert "1: null = 'record 1'" in second


def test_sections_of_brokers_that_do_not_run_are_omitted(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        from kwire.testing import Broker

        @pytest.fixture
        def stopped(kwire_broker):
            yield
            raise ValueError("after the test")

        @pytest.fixture
        def own():
            with Broker() as broker:
                yield broker
            raise ValueError("after the test")

        @pytest.mark.kwire_broker({"log.retention.ms": "soon"})
        def test_setup_fails(kwire_broker):
            pass

        def test_own_broker_does_not_start():
            Broker({"log.retention.ms": "soon"}).start()

        def test_teardown_fails(stopped):
            pass

        def test_own_teardown_fails(own):
            pass

        def test_broker_was_stopped():
            with Broker():
                pass
            assert False
        """,
    )
    result.assert_outcomes(passed=2, failed=2, errors=3)
    result.stdout.no_fnmatch_line("*not available*")
    crashed = run(pytester, "def test_it(kwire_broker):\n    kwire_broker.crash()\n    assert False")
    crashed.stdout.fnmatch_lines(["not available: the broker is not running"])


def test_shared_broker_with_another_kwire_config_is_an_error(pytester: pytest.Pytester) -> None:
    override = """
        import pytest

        @pytest.fixture(scope="session")
        def kwire_config():
            return {{"num.partitions": {partitions}}}

        def test_shared(kwire):
            pass

        def test_own(kwire_broker):
            kwire_broker.produce("orders", "x")
            assert len(kwire_broker.end_offsets("orders")) == {partitions}
    """
    pytester.makepyfile(
        test_first=override.format(partitions=3),
        test_second=override.format(partitions=5),
        test_third="def test_default(kwire): pass",
        test_fourth="""
            import pytest
            from kwire.testing import Broker

            @pytest.fixture(scope="module")
            def kwire():
                with Broker({"num.partitions": 6}) as broker:
                    yield broker

            def test_fixture_of_the_suite(kwire, kwire_topic):
                assert kwire.topics() == [kwire_topic]
        """,
    )
    result = pytester.runpytest_subprocess(
        *PLUGIN, *(f"test_{name}.py" for name in ("first", "second", "third", "fourth"))
    )
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(
        [
            "kwire_config is {'num.partitions': 5} for this test, but the shared broker of the *",
            "kwire_config is {} for this test, but the *{'num.partitions': 3}: use the fixture *",
        ]
    )


def test_coverage_of_a_suite_does_not_contain_kwire(pytester: pytest.Pytester, process: Process) -> None:
    # coverage excludes installed packages, but the kwire of these tests is editable.
    kwire = Path(__file__).parents[2] / "kwire"
    pytester.makefile(
        "", **{".coveragerc": f"[run]\nbranch = true\nconcurrency = thread\nomit = {kwire}/*\n"}
    )
    pytester.makepyfile(
        billing="def bill(broker):\n    if broker:\n        broker.produce('bills', 'x')",
        test_it="from billing import bill\ndef test_it(kwire, kwire_broker): bill(kwire_broker)",
    )
    result = pytester.run(
        *(sys.executable, "-W", "error", "-m", "coverage", "run", "-m", "pytest", *PLUGIN),
        *("-o", f"kwire_process={process}"),
    )
    result.assert_outcomes(passed=1)
    report = pytester.run(sys.executable, "-m", "coverage", "report")
    report.stdout.fnmatch_lines(["billing.py * 80%", "test_it.py * 100%"])
    report.stdout.no_fnmatch_line("*kwire*")


@pytest.mark.skipif(version("pytest-asyncio") < "1", reason="older versions have no loop_scope")
@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_fixtures_work_with_pytest_asyncio(pytester: pytest.Pytester, mode: str) -> None:
    result = run(
        pytester,
        """
        import pytest
        import pytest_asyncio
        from kwire.testing import Broker

        @pytest_asyncio.fixture
        async def bills(kwire):
            return await kwire.aio.new_topic("bills")

        @pytest_asyncio.fixture(loop_scope="session", scope="session")
        async def session_broker():
            async with Broker() as broker:
                yield broker

        @pytest.mark.asyncio
        async def test_fixtures(kwire, kwire_broker, kwire_cluster, kwire_topic, bills):
            await kwire_broker.aio.produce("orders", "x")
            assert len(await kwire_broker.aio.records("orders", count=1)) == 1
            assert bills in await kwire.aio.topics()

        @pytest.mark.asyncio(loop_scope="session")
        async def test_session(session_broker):
            await session_broker.aio.produce("orders", "x")

        @pytest.mark.asyncio
        async def test_failing(kwire_broker):
            await kwire_broker.aio.produce("orders", "x")
            await kwire_broker.aio.records("orders", count=2, timeout_s=0)
        """,
        *("-p", "pytest_asyncio.plugin", f"--asyncio-mode={mode}", "-W", "error"),
        *("-o", "asyncio_default_fixture_loop_scope=function"),
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*Captured kwire topics call*", "  0: null = 'x'"])


def test_suite_can_test_its_own_plugins_with_pytester(pytester: pytest.Pytester, process: Process) -> None:
    result = run(
        pytester,
        """
        import pytest

        pytest_plugins = ["pytester"]
        OPTIONS = "-p", "kwire.testing.plugin"

        @pytest.mark.parametrize("how", ["runpytest_inprocess", "runpytest_subprocess"])
        def test_inner_suite(pytester, kwire, kwire_topic, how):
            pytester.makepyfile('''
                def test_passing(kwire, kwire_broker, kwire_topic):
                    kwire_broker.produce(kwire_topic, "x")
                    kwire.produce("orders", "x")

                def test_failing(kwire_broker, kwire_topic):
                    assert kwire_broker.records(kwire_topic)
            ''')
            result = getattr(pytester, how)(*OPTIONS)
            result.assert_outcomes(passed=1, failed=1)
            kwire.produce(kwire_topic, "x")
            assert "orders" not in kwire.topics()
        """,
        *("-W", "error", "-o", f"kwire_process={process}"),
    )
    result.assert_outcomes(passed=2)
