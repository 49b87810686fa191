"""A transactional copy program in Java on kwire, while instances of the program and the broker are killed."""

from __future__ import annotations

import os

from interop.brokers import Kwire
from interop.exactly_once.copying import SETTINGS, copy_under_kills

SECONDS = float(os.environ.get("INTEROP_COPY_SECONDS", "60"))
"""The time during which instances and the broker are killed, in seconds. A long run uses 600."""


def test_three_java_instances_copy_exactly_once() -> None:
    broker = Kwire(SETTINGS)
    try:
        copied = copy_under_kills(broker, SECONDS)
    finally:
        broker.discard()
    summary = (
        f"{copied.records} records, {copied.killed_instances} instances and {copied.killed_brokers} "
        f"brokers killed"
    )
    print(summary)
    assert not copied.wrong(), "\n".join([summary, *copied.wrong()])
    assert copied.records > SECONDS * 50, summary
    assert copied.killed_instances >= SECONDS / 20, summary
