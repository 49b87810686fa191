"""Clients of other languages with TLS 1.2 and TLS 1.3, with and without client certificates.

A scenario also observes the errors of clients that are refused, or that do not accept the broker.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from interop.brokers import Broker
from interop.certificates import Certificates
from interop.languages.programs import PROGRAMS, run
from interop.scenario import Difference, Scenario
from interop.side_by_side import run_and_compare
from interop.tls import Encrypted, Listener, encrypted

if TYPE_CHECKING:
    from interop.record import Record

LISTENERS = {
    "TLS12": Listener("TLSv1.2"),
    "TLS13": Listener("TLSv1.3"),
    "MUTUAL_TLS12": Listener("TLSv1.2", is_mutual=True),
    "MUTUAL_TLS13": Listener("TLSv1.3", is_mutual=True),
}
ELSEWHERE = "subjectAltName=DNS:elsewhere"
INVALID_CERTIFICATES = {
    "EXPIRED_TLS12": Listener("TLSv1.2", valid_days=-1),
    "EXPIRED_TLS13": Listener("TLSv1.3", valid_days=-1),
    "ELSEWHERE_TLS12": Listener("TLSv1.2", names=ELSEWHERE),
    "ELSEWHERE_TLS13": Listener("TLSv1.3", names=ELSEWHERE),
}
"""Listeners whose certificates the clients must not accept."""
VALUES = ["", *(f"välue-{number}".ljust(37 * (number % 40), ".") for number in range(299))]
ALERT = re.compile(r"tls: (?P<go>[a-z ]+)$|SSL routines:\w+:\w+ alert (?P<openssl>[a-z ]+):")
SECONDS = 240


@pytest.mark.parametrize("program", PROGRAMS)
def test_kwire_does_what_apache_kafka_does(
    program: str,
    apache: Broker | None,
    kwire: Broker | None,
    record: Record,
    differences: list[Difference],
) -> None:
    PROGRAMS[program]()  # The installation is not part of the scenario's time limit.
    scenario = Scenario(f"languages.{program}", partial(_observe, program), SECONDS)
    run_and_compare(scenario, apache, kwire, record, differences)


def _observe(program: str, broker: Broker) -> Any:
    with encrypted(type(broker), LISTENERS | INVALID_CERTIFICATES) as one:
        return {
            **{name: _observe_listener(program, one, name) for name in LISTENERS},
            **{name: _refused(program, _given(one, name)) for name in INVALID_CERTIFICATES},
        }


def _observe_listener(program: str, one: Encrypted, name: str) -> Any:
    own = one.key_store() if LISTENERS[name].is_mutual else None
    refused = {"untrusted broker": _refused(program, _given(one, name, own, one.others))}
    if own is not None:
        stranger = one.key_store(one.others, "stranger")
        refused["no certificate"] = _refused(program, _given(one, name))
        refused["foreign certificate"] = _refused(program, _given(one, name, stranger))
    done = run(program, _given(one, name, own))
    assert done == {"values": VALUES}, done
    return {"consumed": len(VALUES), "refused": refused}


def _given(
    one: Encrypted, name: str, key_store: Path | None = None, authority: Certificates | None = None
) -> dict[str, Any]:
    """Return the input of a program that uses the listener of this name."""
    return {
        "bootstrap": one.bootstrap[name],
        "authority": str((authority or one.certificates).authority),
        "keyStore": str(key_store or ""),
        "topic": f"topic-{name}",
        "values": VALUES,
    }


def _refused(program: str, given: dict[str, Any]) -> Any:
    """Return the classes of the errors, and the broker's alert or, without an alert, the messages."""
    done = run(program, given)
    assert "errors" in done, f"{given['bootstrap']} accepts the client"
    classes, messages = zip(*(error.split(": ", 1) for error in done["errors"]), strict=True)
    alert = ALERT.search(messages[-1].strip())
    if alert is not None:
        return {"classes": classes, "alert": alert["go"] or alert["openssl"]}
    return {"classes": classes, "messages": [re.sub(r"\b20\d\d-\S+", "<time>", one) for one in messages]}
