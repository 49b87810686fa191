"""The fixtures in asynchronous tests, whose plugins run the tests of a user's suite in an event loop."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

FIXTURES = """
    import pytest

    @pytest.fixture
    def orders(kwire_broker):
        topic = kwire_broker.new_topic("orders")
        yield topic
        assert kwire_broker.records(topic, count=1)

    @pytest.fixture
    async def bills(kwire{event_loop}):
        return await kwire.aio.new_topic("bills")

"""
TESTS = """
    {mark}
    async def test_all(kwire, kwire_broker, kwire_cluster, kwire_topic, kwire_group, orders, bills):
        await kwire_broker.aio.produce(orders, "first")
        assert await kwire_broker.aio.records(orders, count=1)
        assert bills in await kwire.aio.topics()
        assert kwire_topic in await kwire_broker.aio.topics()
        with pytest.raises(RuntimeError, match="await broker.aio.topics"):
            kwire.topics()
        await kwire.aio.crash()

    {mark}
    @pytest.mark.kwire_broker(process="child")
    async def test_next(kwire, kwire_broker, orders):
        assert await kwire.aio.topics(), "the shared broker was started again"
        await kwire_broker.aio.produce(orders, "first")

    {mark}
    async def test_failure(kwire_broker):
        await kwire_broker.aio.create_topic("orders")
        await kwire_broker.aio.records("orders", count=1, timeout_s=0)

    def test_blocking(kwire_broker, orders):
        kwire_broker.produce(orders, "first")
"""


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.parametrize(
    ("plugin", "tests_per_test", "mark", "event_loop"),
    [
        ("anyio.pytest_plugin", 2, "@pytest.mark.anyio", ", anyio_backend"),
        ("pytest_trio.plugin", 1, "@pytest.mark.trio", ""),
    ],
)
def test_fixtures_work_in_asynchronous_tests(
    pytester: pytest.Pytester, plugin: str, tests_per_test: int, mark: str, event_loop: str
) -> None:
    pytester.makeini("[pytest]\ntrio_mode = true\n" if "trio" in plugin else "[pytest]\n")
    pytester.makepyfile((FIXTURES + TESTS).format(mark=mark, event_loop=event_loop))
    result = pytester.runpytest_subprocess(
        "-p", "kwire.testing.plugin", "-p", plugin, "-p", "no:cacheprovider", "-W", "error"
    )
    result.assert_outcomes(passed=2 * tests_per_test + 1, failed=tests_per_test)
    result.stdout.fnmatch_lines(
        [
            '*await kwire_broker.aio.records("orders", count=1, timeout_s=0)',
            "*AssertionError: orders has 0 records after 0 s, not 1",
        ]
    )
    result.stdout.no_fnmatch_line("*/kwire/testing/*")


def test_fixtures_work_in_asynchronous_tests_of_unittest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import unittest
        import pytest
        from kwire.testing import Broker

        class Test(unittest.IsolatedAsyncioTestCase):
            @pytest.fixture(autouse=True)
            def use_broker(self, kwire_broker):
                self.shared = kwire_broker

            def setUp(self):
                self.blocking = self.enterContext(Broker())

            async def asyncSetUp(self):
                self.broker = await self.enterAsyncContext(Broker())

            async def test_it(self):
                for broker in (self.shared, self.blocking, self.broker):
                    await broker.aio.produce("orders", "first")
                    assert len(await broker.aio.records("orders", count=1)) == 1
        """
    )
    result = pytester.runpytest_subprocess("-p", "kwire.testing.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
