"""Replacing the stores of a running listener (KIP-226): subjects, alternative names and missing stores."""

from __future__ import annotations

import pytest

from interop.certificate_names import PRINTABLE, UTF8, certificate, der, name
from kwire.broker.security.tls_replacement import check_replacement, check_trust_replacement
from kwire.broker.security.tls_settings import TlsConfigError
from kwire.broker.security.tls_stores import KeyStore, TrustStore
from tests.broker.security.golden import CN, IA5

BOTH = der(0x82, b"a.example") + der(0x87, b"\x7f\0\0\1")


def store(*certificates: bytes) -> KeyStore:
    named = tuple((f"alias{at}", one) for at, one in enumerate(certificates))
    return KeyStore("ssl.keystore.location=new.p12", (), named)


def with_cn(text: str, tag: int = UTF8, names: bytes = BOTH) -> bytes:
    return certificate(name([(CN, der(tag, text.encode("latin-1" if tag == PRINTABLE else "utf-8")))]), names)


def check(old: bytes, new: bytes, *, dn: bool = False, san: bool = False) -> None:
    check_replacement(store(old), store(new), allow_dn_changes=dn, allow_san_changes=san)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (with_cn("alice"), with_cn("alice")),
        (with_cn("alice"), with_cn(" Alice")),
        (with_cn("alice"), with_cn("ALICE", IA5)),
        (with_cn("alice", names=der(0x82, b"a.example")), with_cn("alice")),
    ],
    ids=["same", "case", "type", "more names"],
)
def test_same_subject_with_at_least_the_same_names_is_accepted(old: bytes, new: bytes) -> None:
    check(old, new)


def test_other_subject_needs_allow_dn_changes() -> None:
    old, new = with_cn("alice"), with_cn("bob")
    with pytest.raises(
        TlsConfigError,
        match=r"^the certificate in ssl\.keystore\.location=new\.p12 has another subject, CN=bob instead "
        r"of CN=alice: keep the subject, or set ssl\.allow\.dn\.changes=true$",
    ):
        check(old, new, san=True)
    check(old, new, dn=True)


def test_missing_alternative_name_needs_allow_san_changes() -> None:
    old, new = with_cn("alice"), with_cn("alice", names=der(0x82, b"a.example"))
    with pytest.raises(
        TlsConfigError,
        match=r"^the certificate in ssl\.keystore\.location=new\.p12 lacks subject alternative names of the "
        r"current certificate \(127\.0\.0\.1\): keep all names, or set ssl\.allow\.san\.changes=",
    ):
        check(old, new, dn=True)
    check(old, new, san=True)


def test_names_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(TlsConfigError, match=r"has a subject that cannot be compared .*allow\.dn\.changes"):
        check(with_cn("alice"), with_cn("é", PRINTABLE))
    check(with_cn("é", PRINTABLE), with_cn("é", PRINTABLE))
    with pytest.raises(TlsConfigError, match=r"has names that cannot be compared .*allow\.san\.changes=true"):
        check(with_cn("alice"), with_cn("alice", names=der(0x89, b"a")))


def test_number_of_certificates_must_stay_the_same() -> None:
    one = with_cn("alice")
    for old, new in ((store(one), store(one, one)), (store(one, one), store(one))):
        for dn, san in ((False, False), (True, False), (False, True)):
            with pytest.raises(TlsConfigError, match="but the current key store has"):
                check_replacement(old, new, allow_dn_changes=dn, allow_san_changes=san)
        check_replacement(old, new, allow_dn_changes=True, allow_san_changes=True)


def test_every_certificate_is_compared() -> None:
    old, new = store(with_cn("a"), with_cn("b")), store(with_cn("a"), with_cn("c"))
    with pytest.raises(TlsConfigError, match="the certificate alias1 in"):
        check_replacement(old, new, allow_dn_changes=False, allow_san_changes=False)


def test_store_is_neither_added_nor_removed() -> None:
    own = store(with_cn("alice"))
    check_replacement(None, None, allow_dn_changes=False, allow_san_changes=False)
    with pytest.raises(TlsConfigError, match="cannot be added to a listener without a key store"):
        check_replacement(None, own, allow_dn_changes=True, allow_san_changes=True)
    with pytest.raises(TlsConfigError, match="cannot be removed while the broker is running"):
        check_replacement(own, None, allow_dn_changes=True, allow_san_changes=True)
    trusted = TrustStore("ssl.truststore.location=x", ())
    with pytest.raises(TlsConfigError, match="cannot be added to a listener without a trust store"):
        check_trust_replacement(None, trusted)
    check_trust_replacement(trusted, trusted)
    check_trust_replacement(trusted, None)
