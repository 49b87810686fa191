"""Names of certificates, compared with those that Java returned (see `golden.py`)."""

from __future__ import annotations

import json

import pytest

from interop.certificate_names import BMP, EC_KEY, PRINTABLE, UNIVERSAL, UTF8, certificate, der, name, oid
from kwire.broker.security.distinguished_name import (
    canonical_name,
    is_same_subject,
    rfc2253_name,
    san_of,
    subject_of,
)
from tests.broker.security.golden import CERTIFICATES, CN, IA5, TELETEX, O, certificates

LINES = CERTIFICATES.read_text(encoding="utf-8").splitlines()
SUBJECT = name([(CN, der(UTF8, b"alice"))])


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_names_are_formatted_as_in_java(line: str) -> None:
    encoded, output = line.split("\t")
    subject, canonical, alternative_names = json.loads(output)
    given = bytes.fromhex(encoded)
    assert rfc2253_name(subject_of(given)) == subject
    assert canonical_name(subject_of(given)) == canonical
    found = [[kind, value if isinstance(value, str) else ""] for kind, value in san_of(given)]
    assert found == alternative_names


def test_data_has_every_certificate() -> None:
    assert [line.split("\t")[0] for line in LINES] == [one.hex() for one in certificates()]


def test_alternative_name_without_text_has_its_content() -> None:
    other = oid("1.2.3.4") + der(0xA0, der(UTF8, b"x"))
    assert san_of(certificate(SUBJECT, der(0xA0, other))) == [(0, other)]


def value_of_cn(tag: int, content: bytes) -> bytes:
    return name([(CN, der(tag, content))])


@pytest.mark.parametrize(
    ("tag", "content"),
    [
        (BMP, b"\0a"),
        *(
            (tag, "é".encode(charset))
            for tag in (PRINTABLE, TELETEX, IA5)
            for charset in ("utf-8", "latin-1")
        ),
    ],
)
def test_text_that_depends_on_the_version_of_java_is_refused(tag: int, content: bytes) -> None:
    with pytest.raises(
        ValueError, match="the CN of the distinguished name is not a UTF8String and not ASCII"
    ):
        rfc2253_name(value_of_cn(tag, content))


@pytest.mark.parametrize("content", [b"\xe9", b"\xed\xa0\x80", b"\xc0\x80", b"\xf0\x9f\x98"])
def test_text_that_is_not_utf8_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="the CN is not valid utf-8"):
        rfc2253_name(value_of_cn(UTF8, content))


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ((UTF8, "alice"), (PRINTABLE, "Alice"), True),
        ((UTF8, " A  b "), (UTF8, "a B"), True),
        ((UTF8, "Straße"), (UTF8, "STRASSE"), True),
        ((UTF8, "ΟΔΟΣ"), (UTF8, "οδος"), True),
        ((UTF8, "alice"), (IA5, "Alice"), True),  # their canonical names differ: one is hexadecimal
        ((UTF8, "a  b"), (IA5, "a b"), False),
        ((UTF8, "alice"), (UTF8, "alicf"), False),
        ((UTF8, "alice"), (UNIVERSAL, "alice"), False),
    ],
)
def test_subjects_are_compared_as_in_kafka(
    first: tuple[int, str], second: tuple[int, str], is_same: bool
) -> None:
    one, other = (value_of_cn(tag, text.encode()) for tag, text in (first, second))
    assert is_same_subject(one, other) is is_same
    assert is_same_subject(other, one) is is_same


def test_order_within_an_rdn_does_not_matter_for_comparison() -> None:
    parts = [(CN, der(UTF8, b"a")), (O, der(UTF8, b"b"))]
    assert is_same_subject(name(parts), name(parts[::-1]))
    assert not is_same_subject(name(parts), name(parts[:1], parts[1:]))


def test_equal_subjects_are_the_same_even_if_their_text_is_refused() -> None:
    subject = value_of_cn(PRINTABLE, b"\xe9")
    assert is_same_subject(subject, subject)


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "30",
        "3001",
        "30820000",  # a length with a leading zero
        "308100",  # a long form of a short length
        "3085000000000030",  # a length of five bytes
        "30817f" + "00" * 127,  # a long form of a short length
        "30820080" + "00" * 128,
        "30800000",  # an indefinite length
        "3100",  # SET instead of SEQUENCE
        "30000000",  # bytes after the end
        "30023000",  # SEQUENCE instead of SET
        "300431023100",
        "3006310430020603",
        "30073105300306005500",
        "300c310a30080603550403" + "0c01",
        "300d310b300906035504030c0161" + "00",
        "300e310c300a06035504030c01610500",  # an attribute of three parts
        "3009310730050603550403",  # an attribute of one part
        "300c310a3008060355048 30c0161".replace(" ", ""),  # an object identifier without an end
        "300c310a30080603558003" + "0c0161",  # a number with leading zeros
        "300b310930070601" + "1f" + "1f0100",
        "300c310a30080603550403" + "1f0161",  # a tag of several bytes
    ],
)
def test_malformed_name_is_refused(encoded: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        rfc2253_name(bytes.fromhex(encoded))


def test_object_identifier_is_bounded() -> None:
    with pytest.raises(ValueError, match="malformed"):
        rfc2253_name(name([("1.2." + ".".join(["1"] * 1100), der(UTF8, b"a"))]))


@pytest.mark.parametrize(
    "parts",
    [
        (der(0x30, b"\x02\x01\x01"), der(0x30), der(0x03)),  # fields are missing
        (der(0x30, *[der(0x30)] * 6), der(0x30), der(0x03)),  # no serial number
        (der(0x30, b"\x02\x01\x01", *[der(0x30)] * 5), der(0x30), der(0x03), der(0x30)),
    ],
)
def test_certificate_of_other_parts_is_refused(parts: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="malformed certificate"):
        subject_of(der(0x30, *parts))


def test_every_truncated_certificate_is_refused() -> None:
    whole = certificate(SUBJECT, der(0x82, b"a.example"))
    assert san_of(whole) == [(2, "a.example")]
    for length in range(len(whole)):
        for function in (subject_of, san_of):
            with pytest.raises(ValueError, match="malformed"):
                function(whole[:length])


def test_damaged_certificates_raise_nothing_but_value_error() -> None:
    whole = certificate(SUBJECT, der(0x82, b"a.example") + der(0x87, b"\x7f\0\0\1") + der(0x88, b"\x2a\3"))
    outcomes = set()
    for at in range(whole.index(bytes.fromhex(EC_KEY)[-8:])):
        for byte in (0, 0x1F, 0x30, 0x7F, 0x80, 0x84, 0xFF):
            damaged = whole[:at] + bytes([byte]) + whole[at + 1 :]
            try:
                rfc2253_name(subject_of(damaged))
                san_of(damaged)
                outcomes.add(True)
            except ValueError:
                outcomes.add(False)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    "names",
    [
        der(0x0C, b"a"),  # not context-specific
        der(0x02, b"a"),
        der(0x89, b"a"),
        der(0x87, b"\1\2\3\4\xff\xff\xff\0"),  # an address with a mask
        der(0x82, "é".encode()),
    ],
)
def test_malformed_alternative_name_is_refused(names: bytes) -> None:
    with pytest.raises(ValueError, match="malformed certificate"):
        san_of(certificate(SUBJECT, names))


def test_two_extensions_of_alternative_names_are_refused() -> None:
    extension = der(0x30, oid("2.5.29.17"), der(0x04, der(0x30, der(0x82, b"a.example"))))
    once = certificate(SUBJECT, der(0x82, b"a.example"), is_critical=False)
    assert extension in once
    fields = once[once.index(b"\xa0\x03\x02\x01\x02") : once.index(der(0xA3, der(0x30, extension)))]
    twice = der(0x30, der(0x30, fields, der(0xA3, der(0x30, extension, extension))), der(0x30), der(0x03))
    with pytest.raises(ValueError, match=r"two extensions 2\.5\.29\.17"):
        san_of(twice)
