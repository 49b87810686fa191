"""Names of certificates and principals: random ones, compared with Java and with Kafka's SslPrincipalMapper.

A text that kwire returns is always that of Java. kwire refuses some names and rules that Java accepts; the
module docstrings of `distinguished_name` and `java_pattern` list them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from interop.certificate_names import RandomNames, RandomRules, certificate
from interop.java_outputs import java_outputs
from kwire.broker.security.distinguished_name import canonical_name, rfc2253_name, san_of, subject_of
from kwire.broker.security.principal_mapping import NoMatchingRuleError, PrincipalMapper

SEED = 371
CERTIFICATES = 1500
RULES = 1500


def test_names() -> None:
    random = RandomNames(SEED)
    cases = []
    for _ in range(CERTIFICATES):
        subject, is_formatted = random.name()
        cases.append((certificate(subject, random.alternative_names()), is_formatted))
    outputs = java_outputs("CertificateNames", [encoded.hex() for encoded, _ in cases])
    formatted = 0
    for (encoded, is_formatted), output in zip(cases, outputs, strict=True):
        name, canonical, alternative_names = json.loads(output)
        subject = subject_of(encoded)
        assert _or_none(rfc2253_name, subject) == (name if is_formatted else None), encoded.hex()
        # Java and Python choose the form of a sigma at the end of a word by different rules.
        found_canonical = _or_none(canonical_name, subject)
        if found_canonical is not None:
            assert found_canonical.replace("ς", "σ") == canonical.replace("ς", "σ"), encoded.hex()
        found = [[kind, value if isinstance(value, str) else ""] for kind, value in san_of(encoded)]
        assert found == alternative_names, encoded.hex()
        formatted += is_formatted
    assert formatted > CERTIFICATES // 2


def test_mapping_rules() -> None:
    random = RandomRules(SEED)
    cases = [(random.rules(), random.names()) for _ in range(RULES)]
    outputs = java_outputs("PrincipalMappings", [json.dumps(case) for case in cases])
    compared = 0
    for (rules, names), output in zip(cases, outputs, strict=True):
        try:
            mapper = PrincipalMapper(rules)
        except ValueError:
            continue
        for name, expected in zip(names, json.loads(output), strict=True):
            found = _outcome(mapper, name)
            if found is not None:
                assert found == expected, (rules, name)
                compared += 1
    assert compared > RULES


def _or_none(function: Callable[[bytes], str], subject: bytes) -> str | None:
    try:
        return function(subject)
    except ValueError:
        return None


def _outcome(mapper: PrincipalMapper, name: str) -> list[str | None] | None:
    """Return Java's form of an outcome; None if kwire refuses it because Java's name may be another."""
    try:
        return [mapper.name_of(name)]
    except NoMatchingRuleError as error:
        text = str(error)
        return [None, text] if text.startswith("No rules apply") else None
