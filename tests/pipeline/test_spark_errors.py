"""Summaries of Spark's exceptions."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.pipeline.spark_errors import summarize_error, summarize_maven

SOURCE = "org.apache.spark.sql.kafka010.KafkaIllegalStateException: "
TRACEBACK = "Traceback (most recent call last):\n  File x, line 3\n"
BATCH = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised by the Python Proxy. "
    "Return Message: " + TRACEBACK
)


def of_spark(text: str, trace: str = "") -> Exception:
    """Create an exception of PySpark, with Java's stack trace as an attribute."""
    kind: Any = type("StreamingQueryException", (Exception,), {"__module__": "pyspark.errors.exceptions"})
    error: Exception = kind(text)
    error._stackTrace = trace  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (of_spark(BATCH + "pipeline.x.DeliveryError: t-0 is full\n\tat org.x"), "t-0 is full"),
        (
            of_spark(BATCH + "NotADirectoryError: [Errno 20] Not a directory: '/f/x'\n"),
            "Not a directory: '/f/x'",
        ),
        (
            of_spark(
                TRACEBACK + 'cimpl.KafkaException: KafkaError{code=MSG_SIZE,val=10,str="Too large"}\n',
                "org.apache.spark.api.python.PythonException: x",
            ),
            "Too large",
        ),
        (
            of_spark(
                "An error occurred while calling o1.load.\n: java.lang.IllegalStateException: no\n\tat x"
            ),
            "Spark failed: no",
        ),
        (
            of_spark(
                "[X] told\nmore",
                "org.apache.spark.A$BException: [X] told\n\tat x\nCaused by: java.io.CError: by",
            ),
            "Spark failed: by",
        ),
        (of_spark("[PARSE_SYNTAX_ERROR] near 'x'\nand so on"), "Spark failed: [PARSE_SYNTAX_ERROR] near 'x'"),
        (
            of_spark("x", "Caused by: org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This"),
            "the cluster does not have the topic or partition; check the input's options",
        ),
        (
            of_spark(
                f"{BATCH}: {SOURCE}Some data may have been lost because\nof\n"
                "Reason: Could not read records in offset [21, 41) for topic partition t-0\n"
                "Caused by: org.apache.kafka.OffsetOutOfRangeException: Fetch position"
            ),
            "offsets of the input no longer exist, Could not read records in offset [21, 41) for topic "
            "partition t-0: set the option failOnDataLoss of the input to false to continue without them",
        ),
        (
            of_spark(
                f"{SOURCE}Record at topic t partition 0 offset 7 has timestamp value 9\nKafka\n"
                "Caused by: java.lang.ArithmeticException: long"
            ),
            "Spark failed: Record at topic t partition 0 offset 7 has timestamp value 9",
        ),
    ],
)
def test_an_exception_is_summarized(error: Exception, sentence: str) -> None:
    assert summarize_error(error) == sentence


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        of_spark(BATCH + "KeyError: 'x'\n", "Caused by: py4j.Py4JException: An exception was raised"),
        of_spark(
            "Job aborted.\n" + TRACEBACK + "TypeError: x",
            "org.apache.spark.SparkException: Job\norg.apache.spark.api.python.PythonException: Trace",
        ),
    ],
)
def test_an_unexpected_exception_keeps_its_traceback(error: Exception) -> None:
    assert summarize_error(error) is None


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "[\033[1;31mERROR\033[m] the jar was not found\n[ERROR] see help\n\033[0m\033[0m\n",
            "the jar was not found",
        ),
        ("Progress\nno such file\n", "no such file"),
        ("\033[0m\n", ""),
    ],
)
def test_maven_output_is_summarized(output: str, reason: str) -> None:
    assert summarize_maven(output) == reason
