"""One-sentence summaries of Spark's exceptions and Maven's output, which can have a hundred lines of text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

OWN_ERRORS: Final = (
    "SegmentsError: ",
    "CorruptSegment: ",
    "ArchiveError: ",
    "DeliveryError: ",
    "RegistryError: ",
    "ConfigError: ",
    "MissingDependencyError: ",
)
"""The names of this package's exceptions in the text of Spark's exceptions. A message for people follows."""
NO_TOPIC: Final = "UnknownTopicOrPartitionException"
LOST: Final = "KafkaIllegalStateException: "
"""The exception of Spark's Kafka source for lost offsets, and for timestamps that Spark cannot represent."""
_REASON: Final = "Reason: "
_JAVA: Final = re.compile(r"^(?:Caused by: |: )?((?:org|java|scala|com)\.[\w.$]+(?:Exception|Error)): ?(.*)$")
_PYSPARK: Final = re.compile(r"^pyspark\.errors\.[\w.]+: (.+)$")
_SYSTEM: Final = re.compile(r"^\w*Error: \[Errno \d+\] (.+)$")
_CLIENT: Final = re.compile(r'^cimpl\.KafkaException: KafkaError\{.*str="(.*)"\}$')
_WRAPPERS: Final = ("PythonException", "Py4JException", "StreamingQueryException")
"""Java exceptions that only wrap another one."""


def summarize_error(error: Exception) -> str | None:
    """Summarize an exception. Returns None for an unexpected exception, whose traceback is needed.

    If the exception has an exception of this package as its cause, the summary is the message of the cause.
    The summary of a Java exception is usually the message of its innermost cause.
    """
    lines = [*str(error).splitlines(), *str(getattr(error, "_stackTrace", "")).splitlines()]
    for line in lines:
        for name in OWN_ERRORS:
            if name in line:
                return line.partition(name)[2]
    for pattern in (_SYSTEM, _CLIENT):
        found = _last(pattern, lines)
        if found is not None:
            return found[1]
    return _summarize_java(lines, is_sparks=type(error).__module__.startswith(("pyspark.", "py4j.")))


def _summarize_java(lines: Sequence[str], *, is_sparks: bool) -> str | None:
    if not is_sparks:
        return None
    text = "\n".join(lines)
    if NO_TOPIC in text:
        return "the cluster does not have the topic or partition; check the input's options"
    if LOST in text:
        return _lost(lines)
    causes = [match for match in map(_JAVA.match, lines) if match and not match[1].endswith(_WRAPPERS)]
    if causes and not any(".PythonException" in line for line in lines):
        return _sentence(causes[-1][2] or causes[-1][1])
    found = _last(_PYSPARK, lines)
    if found is not None:
        return _sentence(found[1])
    return None if "Traceback (most recent call last)" in text else _sentence(lines[0])


def _lost(lines: Sequence[str]) -> str:
    at = next(number for number, line in enumerate(lines) if LOST in line)
    for line in lines[at : at + 8]:
        if line.startswith(_REASON):
            return (
                f"offsets of the input no longer exist, {line.removeprefix(_REASON).strip()}: set the "
                f"option failOnDataLoss of the input to false to continue without them"
            )
    return _sentence(lines[at].partition(LOST)[2])


def _sentence(text: str) -> str:
    return f"Spark failed: {text.strip()}"


def _last(pattern: re.Pattern[str], lines: Sequence[str]) -> re.Match[str] | None:
    found = [match for match in map(pattern.match, lines) if match]
    return found[-1] if found else None


def summarize_maven(output: str) -> str:
    """Return the first error in Maven's output, which may be colored, or its last line."""
    plain = (re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in output.splitlines())
    lines = [line for line in plain if line]
    errors = [line for line in lines if line.startswith("[ERROR]")]
    return next(iter(errors), lines[-1] if lines else "").removeprefix("[ERROR]").strip()
