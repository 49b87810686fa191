"""The bytes of messages that kwire's tests compare with are those of Apache Kafka's own classes.

The comparison with kwire needs no JVM, and is in `tests/kwire/test_java_bytes.py`.
"""

from __future__ import annotations

import json
from typing import Any

from interop.kafka_messages import java_bytes, java_errors, kafka_messages
from interop.reference import HERE

DATA = HERE.parent / "tests" / "kwire" / "data"


def lines(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="ascii").splitlines()


def test_messages() -> None:
    cases: list[dict[str, Any]] = [json.loads(line) for line in lines("kafka-4.3.1-messages.jsonl")]
    assert cases
    messages = kafka_messages()
    questions = [
        (messages[case["name"]].class_name, case["version"], json.dumps(case["value"])) for case in cases
    ]
    assert java_bytes(questions) == [case["bytes"] for case in cases]


def test_error_codes() -> None:
    assert lines("kafka-4.3.1-errors.tsv") == java_errors()
