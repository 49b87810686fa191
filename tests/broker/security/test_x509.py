"""The validity of X.509 certificates."""

from __future__ import annotations

import pytest

from kwire.broker.security.der import SEQUENCE, MalformedDer, encode, read_element
from kwire.broker.security.x509 import Validity, parse_certificate, validity_of
from kwire.certificates.authority import Authority

UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
CERTIFICATE = parse_certificate(Authority.create("test", 1_700_000_000_000).der)


def validity(*times: tuple[int, bytes]) -> Validity:
    content = b"".join(encode(tag, text) for tag, text in times)
    return validity_of(CERTIFICATE._replace(validity=read_element(encode(SEQUENCE, content))))


def test_validity_of_a_certificate() -> None:
    day_ms = 24 * 3600 * 1000
    start_ms = 1_700_000_000_000
    assert validity_of(CERTIFICATE) == (start_ms - 3600 * 1000, start_ms + 3650 * day_ms)


@pytest.mark.parametrize(
    ("tag", "text", "time_ms"),
    [
        (UTC_TIME, b"700101000000Z", 0),
        (UTC_TIME, b"500101000000Z", -631_152_000_000),
        (UTC_TIME, b"491231235959Z", 2_524_607_999_000),
        (GENERALIZED_TIME, b"20500101000000Z", 2_524_608_000_000),
        (GENERALIZED_TIME, b"99991231235959Z", 253_402_300_799_000),
    ],
)
def test_time_is_in_milliseconds(tag: int, text: bytes, time_ms: int) -> None:
    assert validity((tag, text), (tag, text)) == (time_ms, time_ms)


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        (UTC_TIME, b"7001010000Z"),
        (UTC_TIME, b"700101000000+0000"),
        (UTC_TIME, b"20500101000000Z"),
        (UTC_TIME, b"701301000000Z"),
        (UTC_TIME, b"700100000000Z"),
        (GENERALIZED_TIME, b"700101000000Z"),
        (GENERALIZED_TIME, b"20500101000000.5Z"),
        (GENERALIZED_TIME, b"00000101000000Z"),
        (GENERALIZED_TIME, b"20500101240000Z"),
        (GENERALIZED_TIME, b"2050010100000xZ"),
        (GENERALIZED_TIME, b"205001010000000"),
        (0x0C, b"20500101000000Z"),
    ],
)
def test_malformed_time_is_refused(tag: int, text: bytes) -> None:
    with pytest.raises(MalformedDer, match="its validity has the time"):
        validity((tag, text), (tag, text))


def test_validity_has_two_times() -> None:
    with pytest.raises(MalformedDer, match="has 1 parts, not 2"):
        validity((UTC_TIME, b"700101000000Z"))
