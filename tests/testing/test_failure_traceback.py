"""The tracebacks in reports of failed tests: without kwire's frames, unless kwire has a bug."""

from __future__ import annotations

import pytest

from kwire.testing.broker import Process
from tests.testing.test_plugin import PLUGIN, no_other_plugins, run

__all__ = ["no_other_plugins"]

pytest_plugins = ["pytester"]

WRONG_CALLS = """
    import pytest
    from kwire.testing import Broker

    def test_api(kwire):
        kwire.faults.return_error("Prodce", "NOT_LEADER_OR_FOLLOWER")

    def test_config(kwire_broker):
        kwire_broker.create_topic("x", config={"retenton.ms": 3})

    def test_start():
        with Broker({"num.partitionz": 3}):
            pass

    def test_cause(kwire):
        try:
            kwire.client_config("alice")
        except LookupError as error:
            raise ValueError("no alice") from error
"""


@pytest.mark.parametrize("style", ["auto", "native", "line"])
def test_wrong_call_is_reported_without_frames_of_kwire(
    pytester: pytest.Pytester, process: Process, style: str
) -> None:
    result = run(pytester, WRONG_CALLS, f"--tb={style}", process=process)
    result.assert_outcomes(failed=4)
    output = result.stdout.str()
    assert "kwire/testing" not in output
    assert "kwire/client" not in output
    assert "kwire/broker" not in output
    result.stdout.fnmatch_lines(
        ["*did you mean 'Produce'?*", "*retenton.ms*", "*did you mean num.partitions?*", "*no alice*"]
    )


def test_full_trace_shows_frames_of_kwire(pytester: pytest.Pytester) -> None:
    result = run(pytester, WRONG_CALLS, "--full-trace")
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["*kwire/testing/faults.py:*", "*kwire/broker/config/load.py:*"])


def test_bug_in_kwire_is_reported_with_all_frames(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_it(kwire):
            kwire._numbers = None
            kwire.new_topic()

        def test_assertion():
            from kwire.testing.exchange import Exchange

            exchange = Exchange.__new__(Exchange)
            exchange._result = None
            exchange._decoded_response
        """,
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*kwire/testing/kafka.py:*: TypeError", "*exchange.py:*: AssertionError"])


def test_bug_in_the_child_process_is_reported_with_its_traceback(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_it(kwire): kwire._embedded._call('no_such_method')",
        process="child",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *AttributeError:*no_such_method*", "E *In the child process:*"])


@pytest.mark.parametrize("style", ["auto", "native"])
def test_wrong_setting_of_a_fixture_is_reported_without_a_traceback(
    pytester: pytest.Pytester, process: Process, style: str
) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.fixture(scope="session")
        def kwire_config():
            return {"log.retention.hour": 3}

        @pytest.mark.kwire_broker({"num.partitionz": 3})
        def test_mark(kwire_broker):
            pass

        def test_fixture(kwire_broker):
            pass

        @pytest.mark.kwire_broker(procss="child")
        def test_option(kwire_broker):
            pass

        def test_without_a_broker():
            pass
        """,
        f"--tb={style}",
        process=process,
    )
    result.assert_outcomes(passed=1, errors=3)
    module = "test_wrong_setting_of_a_fixture_is_reported_without_a_traceback.py"
    lines = [
        "log.retention.hour is not a configuration key*did you mean log.retention.hours?",
        f"at {module}:7, set by the fixture kwire_config",
        "log.retention.hour is not a configuration key*",
        f"at {module}:11, set by the fixture kwire_config",
        "@pytest.mark.kwire_broker does not accept procss=: write *",
        f"at {module}:14",
    ]
    result.stdout.fnmatch_lines(lines, consecutive=False)
    assert "kwire/" not in result.stdout.str()


def test_wrong_config_of_a_mark_names_the_mark(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.kwire_broker({"num.partitions": -3})
        def test_mark(kwire_broker):
            pass
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "Invalid value -3 for configuration num.partitions: Value must be at least 1",
            "at test_wrong_config_of_a_mark_names_the_mark.py:3, set by @pytest.mark.kwire_broker",
        ]
    )
