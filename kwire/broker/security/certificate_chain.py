"""Chains of X.509 certificates, as Java checks and builds them for key stores. No signature is verified."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from kwire.broker.security.distinguished_name import comparable_name
from kwire.broker.security.x509 import CertificateFields


def is_chain(certificates: Sequence[CertificateFields]) -> bool:
    """Return whether each certificate names the next one as its issuer, and none is repeated."""
    return len({one.der for one in certificates}) == len(certificates) and all(
        comparable_name(one.issuer) == comparable_name(issuer.subject)
        for one, issuer in pairwise(certificates)
    )


def is_self_signed(certificate: CertificateFields) -> bool:
    """Return whether issuer and subject have the same name and key identifier."""
    own = certificate.subject_key_id
    return (own is None or certificate.authority_key_id in (None, own)) and comparable_name(
        certificate.issuer
    ) == comparable_name(certificate.subject)


class KnownCertificates:
    """The certificates of a store, from which the chains of its private keys are built."""

    def __init__(self, certificates: Sequence[CertificateFields]) -> None:
        """Index the certificates by subject. Raises MalformedDer if a subject is malformed."""
        self._by_subject: dict[str | bytes, list[CertificateFields]] = defaultdict(list)
        for one in certificates:
            self._by_subject[comparable_name(one.subject)].append(one)

    def chain_of(self, leaf: CertificateFields) -> list[CertificateFields]:
        """Return the chain from `leaf` through its issuers, as Java builds it for PKCS12."""
        chain, found = [leaf], {leaf.der}
        while not is_self_signed(chain[-1]):
            issuer = self._find_issuer(chain[-1])
            if issuer is None or issuer.der in found:
                break
            chain.append(issuer)
            found.add(issuer.der)
        return chain

    def _find_issuer(self, certificate: CertificateFields) -> CertificateFields | None:
        fallback = None
        for one in self._by_subject.get(comparable_name(certificate.issuer), []):
            if certificate.authority_key_id in (None, one.subject_key_id):
                return one
            if one.subject_key_id is None:
                fallback = one
        return fallback
