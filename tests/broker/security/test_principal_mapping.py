"""ssl.principal.mapping.rules, compared with Apache Kafka (see `golden.py`)."""

from __future__ import annotations

import json

import pytest

from interop.certificate_names import PRINTABLE, UTF8, certificate, der, name
from kwire.broker.security.principal_mapping import NoMatchingRuleError, PrincipalMapper, principal_of
from tests.broker.security.golden import CN, MAPPINGS, RULES

LINES = MAPPINGS.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_rules_map_names_as_in_kafka(line: str) -> None:
    asked, output = map(json.loads, line.split("\t"))
    rules, names = asked
    if isinstance(output, str):
        with pytest.raises(ValueError, match="Invalid rule") as invalid:
            PrincipalMapper(rules)
        if output.startswith("Invalid rule"):
            assert str(invalid.value) == output
        return
    mapper = PrincipalMapper(rules)
    assert [outcome(mapper, name) for name in names] == output


def outcome(mapper: PrincipalMapper, name: str) -> list[str | None]:
    try:
        return [mapper.name_of(name)]
    except NoMatchingRuleError as error:
        return [None, str(error)]


def test_data_has_every_rule() -> None:
    assert [json.loads(line.split("\t")[0]) for line in LINES] == [list(one) for one in RULES]


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        (r"\bCN=a", r"the escape \b"),
        (r"(a)\1", r"the escape \1"),
        (r"\x41", r"the escape \x"),
        (r"\p{L}", r"the escape \p"),
        (r"\Qa\E", r"the escape \Q"),
        (r"a\Z", r"the escape \Z"),
        ("(?<name>a)", "(?<"),
        ("(?<=a)b", "(?<"),
        ("(?>a)", "(?>"),
        ("a(?i)b", "(?i"),
        ("(?=(a))a", "a capturing group in a lookahead"),
        ("[a[b]]", "an unescaped [ or ] or &&"),
        ("[a&&b]", "an unescaped [ or ] or &&"),
        ("[]a]", "an unescaped [ or ] or &&"),
        (r"[a-\d]", "an invalid range"),
        ("a++", "a quantifier after a quantifier"),
        ("a{2}{3}", "a quantifier after a quantifier"),
        ("{2}", "a quantifier without an expression"),
        ("^*", "a quantifier after an assertion"),
        (r"\A?", "a quantifier after an assertion"),
        ("(?=a)?", "a quantifier after an assertion"),
        ("(a)*", "a repeated group that captures or may be empty"),
        ("(?:a*)*", "a repeated group that captures or may be empty"),
        ("(?:a|)+", "a repeated group that captures or may be empty"),
        ("(?:a{0,2}|b)+", "a repeated group that captures or may be empty"),
        ("a{1001}", "an invalid number in {}"),
        ("a{0}", "an invalid number in {}"),
        ("a{99999999999}", "too large a number in {}"),
        ("(" * 21 + ")" * 21, "more than 20 nested groups"),
    ],
)
def test_pattern_that_python_may_evaluate_in_another_way_is_refused(pattern: str, fault: str) -> None:
    with pytest.raises(ValueError, match="which is invalid or cannot be evaluated exactly") as refused:
        PrincipalMapper(f"RULE:{pattern}/x/")
    assert f"the regular expression `{pattern}` has {fault}" in str(refused.value)


@pytest.mark.parametrize(
    ("replacement", "fault"),
    [
        ("$1", "the pattern has no group 1."),
        ("$", "an incomplete $."),
        ("${name}", "an incomplete $."),
        ("x$x", "an incomplete $."),
    ],
)
def test_replacement_with_which_every_connection_to_kafka_fails_is_refused(
    replacement: str, fault: str
) -> None:
    with pytest.raises(ValueError, match="Invalid rule") as refused:
        PrincipalMapper(f"RULE:a/{replacement}/")
    assert fault in str(refused.value)


@pytest.mark.parametrize(
    ("replacement", "fault"),
    [
        ("$2x$3", "the pattern has no group 3."),  # Kafka inserts its second backslash too early
        (r"\$2", "the pattern has no group 2."),
        ("$9999999999", "the replacement has too large a number: $9999999999."),
    ],
)
def test_reference_that_kafka_fails_to_escape_is_refused(replacement: str, fault: str) -> None:
    with pytest.raises(ValueError, match="Invalid rule") as refused:
        PrincipalMapper(f"RULE:(a)/{replacement}/")
    assert fault in str(refused.value)


def test_capital_sigma_is_not_changed_to_lower_case() -> None:
    assert PrincipalMapper("RULE:CN=(.*)/$1/U").name_of("CN=οδος") == "ΟΔΟΣ"
    with pytest.raises(NoMatchingRuleError, match="A rule with /L cannot change the Σ"):
        PrincipalMapper("RULE:CN=(.*)/$1/L").name_of("CN=ΟΔΟΣ")


def test_empty_match_before_a_surrogate_pair_is_refused() -> None:
    mapper = PrincipalMapper("RULE:a?|.*/x/")
    assert mapper.name_of("b") == "xbx"
    with pytest.raises(NoMatchingRuleError, match="matches the empty text before 😀"):
        mapper.name_of("😀")


def test_mapper_formats_its_rules() -> None:
    assert str(PrincipalMapper("RULE:a/b/L,DEFAULT, RULE:c,d/e/")) == "[RULE:a/b/L, DEFAULT, RULE:c,d/e]"
    assert str(PrincipalMapper()) == "[DEFAULT]"


def with_cn(content: bytes, tag: int = UTF8) -> bytes:
    return certificate(name([(CN, der(tag, content))]), b"")


MAPPER = PrincipalMapper("RULE:^CN=(.*?)$/$1/L")


def test_principal_has_the_mapped_name_of_the_certificate() -> None:
    assert principal_of(with_cn(b"Alice"), PrincipalMapper()) == "CN=Alice"
    assert principal_of(with_cn(b"Alice"), MAPPER) == "alice"


def test_client_without_a_certificate_is_anonymous_whatever_the_rules_are() -> None:
    assert principal_of(None, PrincipalMapper()) == "ANONYMOUS"
    assert principal_of(None, MAPPER) == "ANONYMOUS"


def test_empty_subject_gives_an_empty_name_or_no_matching_rule() -> None:
    empty = certificate(name(), der(0x82, b"a.example"))
    assert principal_of(empty, PrincipalMapper()) == ""
    with pytest.raises(NoMatchingRuleError, match=r"^No rules apply to , rules "):
        principal_of(empty, MAPPER)


def test_name_without_a_matching_rule_is_no_principal() -> None:
    with pytest.raises(NoMatchingRuleError, match=r"^No rules apply to CN=bob, rules "):
        principal_of(with_cn(b"bob"), PrincipalMapper("RULE:CN=alice/alice/"))


@pytest.mark.parametrize("certificate", [b"", b"\x30\0", with_cn(b"a")[:-1], with_cn(b"a") + b"\0"])
def test_malformed_certificate_is_no_principal(certificate: bytes) -> None:
    with pytest.raises(ValueError, match="malformed"):
        principal_of(certificate, PrincipalMapper())


def test_certificate_whose_name_depends_on_the_version_of_java_is_no_principal() -> None:
    with pytest.raises(ValueError, match="its text depends on the version of Java"):
        principal_of(with_cn(b"\xe9", PRINTABLE), PrincipalMapper())
