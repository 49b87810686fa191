"""What kwire's tests compare with is what Apache Kafka's own classes do: bytes of messages, assignments.

The comparison with kwire needs no JVM, and is in `tests/kwire/test_java_bytes.py` and in
`tests/coordinator/assignors/test_parity.py`.
"""

from __future__ import annotations

import json
from typing import Any

from interop.java_answers import java_answers
from interop.kafka_messages import java_bytes, java_errors, kafka_messages
from interop.reference import HERE

DATA = HERE.parent / "tests" / "kwire" / "data"
ASSIGNMENTS = HERE.parent / "tests/coordinator/assignors/data/kafka-4.3.1-assignments.jsonl"


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


def test_assignments() -> None:
    cases = [line.split("\t") for line in ASSIGNMENTS.read_text(encoding="ascii").splitlines()]
    assert cases
    assert java_answers("Assignments", [question for question, _ in cases]) == [made for _, made in cases]
