"""Writer of the data that `test_distinguished_name.py` and `test_principal_mapping.py` read; it needs Java.

Run `python -m tests.broker.security.golden`. The data has certificates with the names that Java returns, and
rules for principals with the results of Kafka.
"""

from __future__ import annotations

import json
from pathlib import Path

from interop.certificate_names import BMP, PRINTABLE, UNIVERSAL, UTF8, certificate, der, name, oid

DATA = Path(__file__).parent / "data"
CERTIFICATES = DATA / "kafka-4.3.1-certificate-names.tsv"
MAPPINGS = DATA / "kafka-4.3.1-principal-mappings.tsv"

CN, C, L, ST, STREET, O, OU = (f"2.5.4.{number}" for number in (3, 6, 7, 8, 9, 10, 11))  # noqa: E741
UID, DC = "0.9.2342.19200300.100.1.1", "0.9.2342.19200300.100.1.25"
TELETEX, IA5, GENERAL, NUMERIC, VISIBLE = 0x14, 0x16, 0x1B, 0x12, 0x1A

Rdn = list[tuple[str, int, str]]
SUBJECTS: list[list[Rdn]] = [
    [],
    [[(one, UTF8, "a")] for one in (CN, C, L, ST, STREET, O, OU, UID, DC)],
    # Types without a keyword: SN, serialNumber, title, givenName, dnQualifier, emailAddress; odd numbers.
    *([[(one, PRINTABLE, "a")]] for one in ("2.5.4.4", "2.5.4.5", "2.5.4.12", "2.5.4.42", "2.5.4.46")),
    [[("1.2.840.113549.1.9.1", IA5, "a@b.c")], [(CN, UTF8, "a")]],
    [[("2.999.3", UTF8, "é")], [("0.0", UTF8, "")], [("1.39.127.128.18446744073709551616", UTF8, "a" * 200)]],
    *([[(CN, tag, "a b")]] for tag in (UTF8, PRINTABLE, TELETEX, IA5, GENERAL, NUMERIC, VISIBLE, 0x2C, 0x04)),
    [[(CN, UNIVERSAL, "\0\0\0a")]],
    [[(CN, BMP, "")], [(O, TELETEX, "")], [(OU, UNIVERSAL, "")]],
    [[(CN, UTF8, "Zoë 日本 😀 e\u0301 \u2028")]],
    [[(CN, UTF8, 'a,b=c+d<e>f#g;h"i\\j')]],
    [[(CN, UTF8, "#a")], [(O, PRINTABLE, "-'()+,-./:=?*@_&|")]],
    [[(CN, UTF8, one)] for one in (" ", "   ", " a", "a ", "  a  b  ", "\r", "\ra\r", "\n a\t", "\\ ", ", ")],
    [[(CN, UTF8, "a\0b\0")], [(O, UTF8, "\x7f\x1f\t\n")]],
    [[(CN, UTF8, "b"), (CN, UTF8, "a"), (O, UTF8, "c"), ("2.5.4.5", UTF8, "d")], [(C, PRINTABLE, "DE")]],
    [[("2.5.4.5", UTF8, "d"), (O, UTF8, "C  C"), (CN, UTF8, " A ")]],
    [[(CN, UTF8, "a")], [], [(O, UTF8, "b")]],
    [[]],
    [[(CN, UTF8, "Straße İ ﬁ Å K 𐐀"), (CN, IA5, "A")]],
]
OPENSSL = [
    "MIICQjCCAeigAwIBAgIUWOjLaVLe4RKGlz0thoi507Q8UPowCgYIKoZIzj0EAwIwSjELMAkGA1UEBhMCREUxFTATBgNVBAoMDEV4"
    "YW1wbGUsIEluYzEUMBIGCSqGSIb3DQEJARYFYUBiLmMxDjAMBgNVBAMMBWFsaWNlMCAXDTI2MTEzMDE5MTQ1N1oYDzIxMjYxMTA2"
    "MTkxNDU3WjBKMQswCQYDVQQGEwJERTEVMBMGA1UECgwMRXhhbXBsZSwgSW5jMRQwEgYJKoZIhvcNAQkBFgVhQGIuYzEOMAwGA1UE"
    "AwwFYWxpY2UwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAS5efC5Bx9bI01vn1ipGkdAvuXtAIS7XdG2IoWHpNjHymnXkp4Ybfap"
    "/6fJz3jzMbCdMgTlVCSHBhiadey6Y5PLo4GpMIGmMB0GA1UdDgQWBBQom+7xFW4t83Dcbu1yvI6Pc8ZGmDAfBgNVHSMEGDAWgBQo"
    "m+7xFW4t83Dcbu1yvI6Pc8ZGmDAPBgNVHRMBAf8EBTADAQH/MFMGA1UdEQRMMEqCCWEuZXhhbXBsZYcEfwAAAYcQAAAAAAAAAAAA"
    "AAAAAAAAAYEJYUBleGFtcGxlhgpzcGlmZmU6Ly9hiAIqA6AKBgMqAwSgAwwBeDAKBggqhkjOPQQDAgNIADBFAiEArzv9XEPm2l8u"
    "n8WIlW5Blrx0a8eV46CFJJNpQ96w4OECIFMv8qjMMPxd0uGVXW4F6/J5HXSEJV+3Ab8qP5/0RKRg",
    "MIIBFzCBvQIUAerAOXY0z1/mr8SpoNSSGL9XcbgwCgYIKoZIzj0EAwIwDTELMAkGA1UEAwwCdjEwIBcNMjYxMTMwMTkxNDU3WhgP"
    "MjEyNjExMDYxOTE0NTdaMA0xCzAJBgNVBAMMAnYxMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEuXnwuQcfWyNNb59YqRpHQL7l"
    "7QCEu13RtiKFh6TYx8pp15KeGG32qf+nyc948zGwnTIE5VQkhwYYmnXsumOTyzAKBggqhkjOPQQDAgNJADBGAiEAvrf+N54DC60g"
    "GSdgf68qqJtvrFuiiNuHZs6UranaCpMCIQCueJzXu5gcEcspcEAgdfi7EmGXff0kyFXgkZgnJIPXkQ==",
]
"""Certificates that openssl made: version 3 with many alternative names, and version 1."""

DN = "CN=kafka-1.example,OU=ServiceUsers,O=Example\\, Inc,C=DE"
RULES: list[tuple[str, list[str]]] = [
    ("DEFAULT", [DN, ""]),
    ("", [DN]),
    (" , ,\n", [DN]),
    (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),.*/$1@/L, DEFAULT", [DN, "CN=A,O=B", "C=DE"]),
    (r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/L", [DN, "CN=a"]),
    (r"RULE:^CN=(.*?),.*$/$1/U", [DN, "CN=straße,O=x"]),
    (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", [DN, "cn=A.b-c"]),
    (r"RULE:CN=([^,]).*/$1/", [DN]),
    (r"RULE:CN=(.*?)/$1/", ["CN=alice", "xCN=alice"]),  # replaces the shortest match only
    (r"RULE:.*/x/", ["a", "", "a\nb"]),  # replaces the empty text at the end, too
    (r"RULE:[a-z]?/-/", ["a", "b", ""]),
    (r"RULE:(?:|.)(?:|.)/-/", ["a", "ab"]),
    (r"RULE:a|ab/x/,RULE:.*b/y/", ["ab", "aab"]),
    (r"RULE:^(CN=a)?(,O=b)?.*$/[$1|$2]/", ["CN=a", ",O=b", "C=c"]),
    (r"RULE:^(.)(.).*/$2$1$12$01$3$0/", ["ab", "a"]),
    (r"RULE:^(.).*/$2x/", ["ab"]),
    (r"RULE:^(.).*/\$1\\\/\a/", ["ab"]),
    (r"RULE:^CN=a\/b$/x\/y/", ["CN=a/b"]),
    (r"RULE:^CN=(\w+)\.(\d+)[^\W\d]\s$/$2-$1/", ["CN=a.12b ", "CN=é.1a ", "CN=a.1_\u00a0", "CN=a.1a\x0b"]),
    (r"RULE:^a.$/x/", ["ab", "a😀", "a\n", "a\r", "a\u2028", "ab\n", "ab\r\n", "ab\u0085", "ab\n\n"]),
    (r"RULE:^a[^b]$/x/", ["a\n", "a\n\n", "ab", "a\r", "a\r\n"]),
    (r"RULE:(?i)^cn=[a-m]+$/x/", ["CN=aM", "cn=n", "CN=\u212a"]),
    (
        r"RULE:[\w.-]+/x/,RULE:[+--]/y/,RULE:[a-]/z/,RULE:[-,a^\]]+/w/,RULE:[\d-a]/v/",
        ["a-.", "+", ",", "-", "]^", "=", "5"],
    ),
    (r"RULE:a{2}b{1,}c{0,2}?.*/x/", ["aab", "ab", "aabbccc"]),
    (r"RULE:(?!CN=root).*(?=C=)(C=..)/$1/", ["CN=root,C=DE", "O=a,C=DE"]),
    (r"RULE:\A(?:ab|a)\z/x/", ["ab", "a", "b"]),
    ("RULE:a/b/, RULE:c/d/L ,\tDEFAULT", ["a", "c", "d"]),
    ("RULE:a/b/U", ["x"]),
    ("\0DEFAULT\x1b", ["a"]),
    ("x\nDEFAULT", ["a"]),  # a line that is not a rule is skipped
    *(
        (one, [])
        for one in ("default", "DEFAULT DEFAULT", "RULE:a/b", "RULE:a/b/x", "RULE:a/b/LU", "RULE:a", "a,b")
    ),
    *(
        (f"RULE:{one}/x/", [])
        for one in ("*a", "a**", "(a", "a)", "[a", "[b-a]", "a{", "a{3,1}", r"\y", "a{,2}")
    ),
]


def alternative_names() -> bytes:
    """Return alternative names of the types that openssl's certificate lacks, and an IPv4-mapped address."""
    directory = name([(CN, der(UTF8, "Zoë, A".encode()))], [(O, der(PRINTABLE, b"b"))])
    mapped = bytes(10) + b"\xff\xff\1\2\3\4"
    return der(0xA4, directory) + der(0x87, mapped) + der(0x88, oid("2.999.3")[2:])


def certificates() -> list[bytes]:
    """Return a certificate for each of the subjects, and those of openssl."""
    from base64 import b64decode

    charsets = {UTF8: "utf-8", UNIVERSAL: "latin-1", 0x2C: "utf-8", 0x04: "utf-8"}
    subjects = [
        name(
            *(
                [(one, der(tag, text.encode(charsets.get(tag, "ascii")))) for one, tag, text in rdn]
                for rdn in rdns
            )
        )
        for rdns in SUBJECTS
    ]
    # Java refuses an empty subject without critical alternative names.
    return [
        *(certificate(one, alternative_names() if len(one) < 5 else b"") for one in subjects),
        *map(b64decode, OPENSSL),
    ]


def write() -> None:
    """Write the data files with the output of Java."""
    from interop.java_outputs import java_outputs

    DATA.mkdir(exist_ok=True)
    for path, program, inputs in (
        (CERTIFICATES, "CertificateNames", [one.hex() for one in certificates()]),
        (MAPPINGS, "PrincipalMappings", [json.dumps(one) for one in RULES]),
    ):
        outputs = java_outputs(program, inputs)
        path.write_text(
            "".join(f"{asked}\t{output}\n" for asked, output in zip(inputs, outputs, strict=True))
        )


if __name__ == "__main__":
    write()
