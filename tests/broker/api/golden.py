"""Write the data of `test_error_responses.py`: `python -m tests.broker.api.golden`, with Java.

The data is requests of every API and version, whose bytes are in `tests/wire/data`, and the error responses
of Apache Kafka's own classes to them.
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


def requests() -> list[str]:
    """Return lines of an API key, a version and the bytes of a request, separated by spaces."""
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

    requests_in_order = requests()
    answers = zip(requests_in_order, java_outputs("ErrorResponses", requests_in_order), strict=True)
    RESPONSES.parent.mkdir(exist_ok=True)
    # Where Kafka fails to create a response, its client gets none: there is nothing to compare.
    RESPONSES.write_text(
        "".join(f"{request}\t{answer}\n" for request, answer in answers if answer != FAILS),
        encoding="ascii",
    )


if __name__ == "__main__":
    write()
