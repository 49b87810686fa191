"""Random certificates with odd subjects, and random rules for principals, to compare kwire with Java."""

from __future__ import annotations

from random import Random
from typing import Final

OIDS: Final = [
    *("2.5.4.3", "2.5.4.6", "2.5.4.7", "2.5.4.8", "2.5.4.9", "2.5.4.10", "2.5.4.11"),
    *("0.9.2342.19200300.100.1.1", "0.9.2342.19200300.100.1.25"),
]
"""The types with a keyword in RFC 2253."""
OTHER_OIDS: Final = [
    *(
        "2.5.4.4",
        "2.5.4.5",
        "2.5.4.12",
        "2.5.4.42",
        "2.5.4.43",
        "2.5.4.44",
        "2.5.4.46",
        "1.2.840.113549.1.9.1",
    ),
    *("1.3.6.1.4.1.42.2.11.2.1", "2.999.3", "2.100.18446744073709551616", "0.0", "1.39.127.128.16383.16384"),
]
"""Types that Java writes as OIDs, some with a keyword in other forms."""
UTF8, PRINTABLE, BMP, UNIVERSAL = 0x0C, 0x13, 0x1E, 0x1C
CHARSETS: Final = {
    UTF8: "utf-8",
    PRINTABLE: "latin-1",
    BMP: "utf-16-be",
    UNIVERSAL: "utf-32-be",
    **dict.fromkeys((0x14, 0x16, 0x1B, 0x12, 0x1A, 0x2C, 0x04), "latin-1"),
}
"""By tag: types of strings, a constructed UTF8String, and OCTET STRING."""
HEXADECIMAL: Final = {UNIVERSAL, 0x12, 0x1A, 0x2C, 0x04}
"""Tags whose values Java writes in hexadecimal."""
CHARACTERS: Final = [
    *("abcXYZ019", ',=+<>#;"\\', "   \r", "\n\t\0\x7f\x1f", "'()-./:?*@_&!|{}[]~^`$%"),
    *("éüßÄÿ\x80\xad", "İıΣσςſKŁ", "日本ﬁ①Å", "e\u0301o\u0308\u200b\u2028\u2029\x85\ufeff\ufffd", "😀𝔸𐐀"),
]
VALIDITY: Final = "301e170d3236303130313030303030305a170d3336303130313030303030305a"
EC_KEY: Final = (
    "3059301306072a8648ce3d020106082a8648ce3d030107034200046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0"
    "f4a13945d898c2964fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"
)
"""The generator of P-256 as a public key. Nobody checks the signatures of these certificates."""
ALGORITHM: Final = "300a06082a8648ce3d040302"


def der(tag: int, *parts: bytes) -> bytes:
    """Return one element of DER."""
    content = b"".join(parts)
    if len(content) < 0x80:
        return bytes([tag, len(content)]) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content


def oid(dotted: str) -> bytes:
    """Return an object identifier as DER."""
    first, second, *rest = map(int, dotted.split("."))
    content = bytearray()
    for number in (40 * first + second, *rest):
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(0x80 | number & 0x7F)
        content += bytes(reversed(groups))
    return der(0x06, bytes(content))


def name(*rdns: list[tuple[str, bytes]]) -> bytes:
    """Return a distinguished name from lists of types and encoded values."""
    return der(0x30, *(der(0x31, *(der(0x30, oid(kind), value) for kind, value in rdn)) for rdn in rdns))


def certificate(subject: bytes, alternative_names: bytes = b"", is_critical: bool = True) -> bytes:
    """Return a certificate of version 3, or of version 1 if it has no alternative names."""
    version = extensions = b""
    if alternative_names:
        version = der(0xA0, b"\x02\x01\x02")
        parts = [oid("2.5.29.17"), b"\x01\x01\xff" * is_critical, der(0x04, der(0x30, alternative_names))]
        extensions = der(0xA3, der(0x30, der(0x30, *parts)))
    algorithm = bytes.fromhex(ALGORITHM)
    issuer = name([("2.5.4.3", der(UTF8, b"authority"))])
    validity, key = bytes.fromhex(VALIDITY), bytes.fromhex(EC_KEY)
    signed = der(0x30, version, b"\x02\x01\x01", algorithm, issuer, validity, subject, key, extensions)
    return der(0x30, signed, algorithm, der(0x03, b"\0", der(0x30, b"\x02\x01\x01\x02\x01\x01")))


class RandomNames:
    """Distinguished names and certificates from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def text(self, longest: int = 8) -> str:
        return "".join(
            self._random.choice(self._random.choice(CHARACTERS))
            for _ in range(self._random.randint(0, longest))
        )

    def value(self) -> tuple[bytes, bool]:
        """Return an encoded value, and whether kwire formats it if its type has a keyword."""
        tag = self._random.choice([*CHARSETS, UTF8, UTF8, UTF8, PRINTABLE])
        text = self.text(80 if self._random.random() < 0.05 else 8)
        if tag not in (UTF8, BMP, UNIVERSAL) and self._random.random() < 0.7:
            text = text.encode("ascii", "ignore").decode()
        if tag == BMP:
            text = "".join(one for one in text if one <= "\uffff")
        content = text.encode(CHARSETS[tag], "ignore")
        is_damaged = tag != UNIVERSAL and self._random.random() < 0.05
        if is_damaged:
            content += self._random.randbytes(self._random.randint(1, 3))
        return der(tag, content), tag in HEXADECIMAL or (content.isascii() and tag != BMP) or (
            tag == UTF8 and _is_utf8(content)
        ) or not content

    def name(self) -> tuple[bytes, bool]:
        """Return a distinguished name, and whether kwire formats it."""
        is_formatted = True
        rdns = []
        for _ in range(self._random.choice([0, 1, 1, 2, 3, 5])):
            rdn = []
            for _ in range(self._random.choice([0, 1, 1, 1, 1, 1, 2, 3])):
                kind = self._random.choice(self._random.choice([OIDS, OIDS, OTHER_OIDS]))
                value, is_known = self.value()
                is_formatted &= is_known or kind in OTHER_OIDS
                rdn.append((kind, value))
            rdns.append(rdn)
        return name(*rdns), is_formatted

    def alternative_names(self) -> bytes:
        """Return the content of a subjectAltName extension whose names Java accepts."""
        dns = self._random.choice(["localhost", "*.example.com", "a-b.example", "xn--bcher-kva.example"])
        address = self._random.choice([b"\x7f\0\0\1", bytes(15) + b"\1", bytes(10) + b"\xff\xff\1\2\3\4"])
        names = [
            der(0x82, dns.encode()),
            der(0x87, address),
            der(0x87, self._random.randbytes(16)),
            der(0x81, b"admin@example.com"),
            der(0x86, b"spiffe://example.com/a"),
            der(0x88, oid(self._random.choice(OTHER_OIDS))[2:]),
            der(0xA4, name([("2.5.4.3", der(UTF8, "Zoë, A".encode()))])),
            der(0xA0, oid("1.3.6.1.4.1.311.20.2.3"), der(0xA0, der(UTF8, b"a@b"))),
        ]
        return b"".join(self._random.sample(names, self._random.randint(1, len(names))))


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


LITERALS: Final = [
    *"abcCNOU=,.@ -_1é😀",
    r"\.",
    r"\\",
    r"\,",
    r"\=",
    r"\/",
    "CN=",
    ",OU=",
    "&",
    "]",
    "}",
    "#",
    "~",
]
CLASSES: Final = [
    *(
        r"\d",
        r"\w",
        r"\s",
        r"\D",
        r"\W",
        r"\S",
        "[^,]",
        "[a-z]",
        "[a-zA-Z0-9.]",
        r"[\w-.]",
        "[^,=]",
        "[-a]",
        "[a-]",
    ),
    *(
        r"[\w.-]",
        "[a-c-e]",
        "[+--]",
        r"[\]\[]",
        "[é-ü]",
        "[^😀]",
        r"[\D,]",
        r"[^\W_]",
        "[a^]",
        "[&a]",
        r"[\n\t]",
        "[ #~|]",
    ),
    *(
        "[*-/]",
        r"[\*-\/]",
        "[$.]",
        "[A-z]",
        "[Z-z]",
        "[^A]",
        r"[a\-z]",
        r"[\d-a]",
        "[,-]",
        r"[\--0]",
        "[?-Z]",
    ),
]
OTHERS: Final = [
    *(
        r"\b",
        r"\1",
        r"\p{L}",
        "(?<a>b)",
        "(?>a)",
        "(?<=a)",
        "a++",
        "[a&&b]",
        "[a[b]]",
        r"\Qa\E",
        "(?i)",
        "a**",
        "[]a]",
    ),
    *(
        r"\h",
        r"\R",
        r"\Z",
        r"\x41",
        "(?-i)",
        "{",
        "a{",
        "a{2",
        "a{,2}",
        "a{3,1}",
        "[b-a]",
        "*a",
        "(a",
        "a)",
        "(a)*",
        "(a*)*",
        "[]",
    ),
]
MAX_UNBOUNDED: Final = 3


class RandomRules:
    """Rules for principals from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def pattern(self, depth: int = 2) -> str:
        """Return a pattern, in most cases of the subset that kwire accepts."""
        parts = []
        for _ in range(self._random.randint(0, 4)):
            chance = self._random.random()
            if chance < 0.45 or not depth:
                part = self._random.choice([*LITERALS, *CLASSES, ".", ".", "."])
            elif chance < 0.8:
                opening = self._random.choice(["(", "(", "(", "(?:", "(?=", "(?!"])
                part = f"{opening}{self.pattern(depth - 1)})"
            elif chance < 0.83:
                part = self._random.choice(OTHERS)
            else:
                part = self._random.choice(["^", "$", "a|b", "|", r"\A", r"\z", "(.*?)", "(.*)", "([^,]*)"])
            if self._random.random() < 0.4:
                part += self._random.choice(["?", "??", "{2}", "{0,2}", "{1}", "*", "+", "*?", "+?", "{1,}?"])
            parts.append(part)
        return "".join(parts)

    def replacement(self) -> str:
        parts = [
            "$0",
            "$1",
            "$2",
            "$3",
            "$12",
            "$01",
            "a",
            "B",
            "@",
            "é",
            r"\$",
            r"\\",
            r"\/",
            r"\a",
            "Σ",
            " ",
        ]
        odd = ["$", "${a}", "$9", "$4$5", "$99999999999", "$x"]
        return "".join(
            self._random.choice(odd if self._random.random() < 0.05 else parts)
            for _ in range(self._random.randint(0, 4))
        )

    def rules(self) -> str:
        """Return rules that need a short time, because no pattern has many unbounded quantifiers."""
        while True:
            rules = self._rules()
            patterns = rules.split("RULE:")
            if all(sum(map(one.count, ("*", "+", ",}"))) <= MAX_UNBOUNDED for one in patterns):
                return rules

    def _rules(self) -> str:
        rules = []
        for _ in range(self._random.choice([1, 1, 1, 2, 3])):
            chance = self._random.random()
            if chance < 0.85:
                start = self._random.choice(["", "", "^", ".*", "^.*?", "(?i)", "^CN=(.*?)"])
                end = self._random.choice(["", ".*", ".*$", "$", "(.*)", ",.*"])
                case = self._random.choice(["", "", "L", "U", "LU", "x", "L "])
                rules.append(f"RULE:{start}{self.pattern()}{end}/{self.replacement()}/{case}")
            elif chance < 0.95:
                rules.append("DEFAULT")
            else:
                rules.append(
                    self._random.choice(["", " ", "default", "DEFAULT DEFAULT", "RULE:a/b", "RULE:a", "x\ny"])
                )
        separator = self._random.choice([",", ", ", " , ", "\n,", ",\x85", ", ,"])
        return (
            self._random.choice(["", "", " ", "\n"])
            + separator.join(rules)
            + self._random.choice(["", ",", "\n"])
        )

    def names(self) -> list[str]:
        """Return texts to which the rules are applied. Not all of them are distinguished names."""
        known = ["CN=alice,OU=Eng,O=a.b", "CN=Duke\\, J,OU=ServiceUsers,O=Org,C=US", "", "a", "ab", "abcCN=1"]
        known += [
            "CN=a\nb",
            "a\r\n",
            "a\n",
            "a\r",
            "CN=é\u2028",
            "b😀a",
            "😀",
            "aa,bb",
            "CN=ΑΣ,OU=Straße",
            "UID=İx",
        ]
        pieces = [
            "CN=",
            ",OU=",
            ",",
            "a",
            "b",
            "c",
            "1",
            ".",
            " ",
            "-",
            "é",
            "😀",
            "\n",
            "=",
            "@",
            "_",
            "C",
            "ΟΔΟΣ",
            "ß",
        ]
        made = "".join(self._random.choice(pieces) for _ in range(self._random.randint(1, 8)))
        return [*self._random.sample(known, 4), made]
