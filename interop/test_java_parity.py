"""Checks that the expected results stored in kwire's tests equal the results of Apache Kafka's classes.

The results are message bytes, assignments, regular expression matches, topic hashes, error responses,
partition changes, names of certificates and of principals, and the keys and certificates of TLS stores. Other
tests compare kwire with the stored results and need no JVM: `tests/wire/test_java_bytes.py`,
`tests/coordinator/groups/assignors/test_parity.py`, `tests/coordinator/groups/consumer`,
`tests/broker/api/request/test_error_responses.py`, `tests/broker/controller/test_partition_parity.py` and
`tests/broker/security`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from interop.java_outputs import java_outputs
from interop.kafka_messages import java_bytes, java_errors, kafka_messages
from interop.reference import HERE

TESTS = HERE.parent / "tests"
DATA = TESTS / "wire" / "data"

ANSWERED = {
    "Assignments": "coordinator/groups/assignors/data/kafka-4.3.1-assignments.jsonl",
    "Expressions": "coordinator/groups/consumer/data/kafka-4.3.1-expressions.tsv",
    "TopicHashes": "coordinator/groups/consumer/data/kafka-4.3.1-topic-hashes.tsv",
    "ErrorResponses": "broker/api/data/kafka-4.3.1-error-responses.tsv",
    "PartitionChanges": "broker/controller/data/kafka-4.3.1-partition-changes.tsv",
    "CertificateNames": "broker/security/data/kafka-4.3.1-certificate-names.tsv",
    "PrincipalMappings": "broker/security/data/kafka-4.3.1-principal-mappings.tsv",
    "TlsStores": "broker/security/data/kafka-4.3.1-tls-stores.tsv",
}
"""By program in `interop/java`: the file in kwire's tests with the program's inputs and outputs."""


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


@pytest.mark.parametrize(("program", "path"), ANSWERED.items(), ids=ANSWERED)
def test_answers(program: str, path: str) -> None:
    cases = [line.split("\t", 1) for line in (TESTS / path).read_text(encoding="utf-8").splitlines()]
    assert cases
    assert java_outputs(program, [question for question, _ in cases]) == [answer for _, answer in cases]
