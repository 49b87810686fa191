"""Writes the file that `test_error_responses.py` reads: `python -m tests.broker.api.golden`, with Java.

Requests of every API and version, from those whose bytes are in `tests/kwire/data`, and what Apache Kafka's
own classes answer when it fails on them.
"""

from __future__ import annotations

import json
from pathlib import Path

from kwire.broker.api.request.supported_apis import SUPPORTED_APIS
from kwire.wire.codegen import encode
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.registry import API_VERSIONS
from tests.wire.golden import MESSAGES

RESPONSES = Path(__file__).parent / "data" / "kafka-4.3.1-error-responses.tsv"
FAILS = "fails"


def questions() -> list[str]:
    """An API's key, a version and a request's bytes, parted by blanks."""
    keys = {api.request_class.__name__: key for key, api in API_VERSIONS.items()}
    unanswered = ProduceRequest(
        acks=0, topic_data=[TopicProduceData(partition_data=[PartitionProduceData(records=b"")])]
    )
    found = [f"0 9 {encode(unanswered, 9).hex()}"]
    for line in MESSAGES.read_text(encoding="ascii").splitlines():
        case = json.loads(line)
        key, version = keys.get(case["name"]), case["version"]
        served = None if key is None else SUPPORTED_APIS.get(key)
        if served is not None and version in range(served.min_version, served.max_version + 1):
            found.append(f"{key} {version} {case['bytes']}")
    return found


def write() -> None:
    """Ask Java."""
    from interop.java_outputs import java_outputs

    asked = questions()
    answers = zip(asked, java_outputs("ErrorResponses", asked), strict=True)
    RESPONSES.parent.mkdir(exist_ok=True)
    # Where Kafka fails to make a response, its client waits for ever: nothing to follow.
    RESPONSES.write_text(
        "".join(f"{question}\t{answer}\n" for question, answer in answers if answer != FAILS),
        encoding="ascii",
    )


if __name__ == "__main__":
    write()
