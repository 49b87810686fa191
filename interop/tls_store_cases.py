"""Writes the key stores and trust stores with which tests compare kwire and Java, and Java's results.

    .venv/bin/python -m interop.tls_store_cases > tests/broker/security/data/kafka-4.3.1-tls-stores.tsv

keytool, openssl and `cryptography` make the stores. A line has a name, the settings, and Java's result, which
`interop/java/TlsStores.java` describes.
"""

from __future__ import annotations

import base64
import datetime
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from interop.java_outputs import java_outputs
from interop.java_programs import compiled
from interop.reference import kafka_jars, require_java

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PASSWORD: Final = "changeit"
OTHER: Final = "key-password"
START: Final = datetime.datetime(2026, 1, 1)
END: Final = datetime.datetime(2126, 1, 1)


class Issued:
    """A private key and its certificate, which `issuer` signs, or the key itself."""

    def __init__(
        self, name: str, issuer: Issued | None = None, *, is_rsa: bool = False, ids: bool = True
    ) -> None:
        self.key: Key = (
            rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
        )
        signing = self if issuer is None else issuer
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(self.subject)
            .issuer_name(signing.subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(START)
            .not_valid_after(END)
            .add_extension(x509.BasicConstraints(ca="ca" in name, path_length=None), critical=True)
        )
        if ids:
            builder = builder.add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
            ).add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.key.public_key()), critical=False
            )
        self.certificate = builder.sign(signing.key, hashes.SHA256())
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def key_pem(self, form: serialization.PrivateFormat | None = None) -> str:
        """Return the private key in PEM format."""
        kind = serialization.PrivateFormat.PKCS8 if form is None else form
        return self.key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()).decode()


class Stores:
    """The cases, by name: settings, with the content of a store as the value of its location."""

    def __init__(self, directory: Path) -> None:
        self.cases: dict[str, dict[str, bytes]] = {}
        self._directory = directory
        self._root = Issued("root ca")
        self._inner = Issued("inner ca", self._root)
        self._leaf = Issued("leaf", self._inner)
        self._rsa = Issued("rsa leaf", self._inner, is_rsa=True)
        self._files = {
            name: self._write(f"{name}.pem", issued.pem)
            for name, issued in (("root", self._root), ("inner", self._inner), ("leaf", self._leaf))
        }

    def _write(self, name: str, text: str) -> str:
        path = self._directory / name
        path.write_text(text)
        return str(path)

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=self._directory)

    def key(self, name: str, store: bytes, kind: str = "PKCS12", **passwords: str) -> None:
        """Add a case with a key store file."""
        settings = {"ssl.keystore.type": kind.encode(), "ssl.keystore.location": store}
        for password in passwords:
            settings[f"ssl.{password}.password"] = passwords[password].encode()
        self.cases[name] = settings

    def trust(self, name: str, store: bytes, kind: str = "PKCS12", password: str | None = PASSWORD) -> None:
        """Add a case with a trust store file."""
        settings = {"ssl.truststore.type": kind.encode(), "ssl.truststore.location": store}
        if password is not None:
            settings["ssl.truststore.password"] = password.encode()
        self.cases[name] = settings

    def keytool(self) -> None:
        """Add stores of keytool: the current and the old encryption, three keys, trusted certificates."""
        for name, option in (("keytool", "-J-Da=b"), ("keytool-legacy", "-J-Dkeystore.pkcs12.legacy=true")):
            for alias in ("root", "inner"):
                self._run(
                    *("keytool", option, "-importcert", "-noprompt", "-alias", alias, "-storetype", "PKCS12"),
                    *("-file", self._files[alias], "-keystore", f"{name}-trust", "-storepass", PASSWORD),
                )
            store = (self._directory / f"{name}-trust").read_bytes()
            self.trust(f"{name}-trust", store)
            self.trust(f"{name}-trust-type-jks", store, "JKS")
        self.trust("keytool-trust-wrong-password", store, password="wrong")
        self.trust("keytool-trust-no-password", store, password=None)
        for alias, algorithm in (("zeta", "RSA"), ("Alpha", "RSA"), ("curve", "EC")):
            self._run(
                *("keytool", "-genkeypair", "-alias", alias, "-keyalg", algorithm, "-storetype", "PKCS12"),
                *("-dname", f"CN={alias}", "-keystore", "keytool-keys", "-storepass", PASSWORD),
                *("-validity", "36500"),
            )
        keys = (self._directory / "keytool-keys").read_bytes()
        self.key("keytool-keys", keys, keystore=PASSWORD)
        self.key("keytool-keys-type-jks", keys, "JKS", keystore=PASSWORD)
        self.key("keytool-keys-wrong-password", keys, keystore="wrong")
        self.key("keytool-keys-wrong-key-password", keys, keystore=PASSWORD, key="wrong")
        self.trust("keytool-keys-as-trust", keys)
        self._run(
            *(require_java(), "-cp", f"{compiled('TlsStores')}:{kafka_jars()}/*", "TlsStores"),
            *("keytool-keys", PASSWORD, OTHER),
        )
        changed = (self._directory / "keytool-keys").read_bytes()
        self.key("java-key-password", changed, keystore=PASSWORD, key=OTHER)
        self.key("java-key-password-missing", changed, keystore=PASSWORD)

    def openssl(self) -> None:
        """Add stores of openssl: with and without names, encryption, MAC, chain and certificate."""
        key = self._write("leaf.key", self._leaf.key_pem())
        chain = self._write("chain.pem", self._root.pem + self._inner.pem)
        common = ("openssl", "pkcs12", "-export", "-passout", f"pass:{PASSWORD}", "-out")
        made = {
            "openssl": ("-inkey", key, "-in", self._files["leaf"], "-certfile", chain),
            "openssl-name": (
                "-inkey",
                key,
                "-in",
                self._files["leaf"],
                "-certfile",
                chain,
                "-name",
                "Broker",
            ),
            "openssl-no-chain": ("-inkey", key, "-in", self._files["leaf"]),
            "openssl-legacy": ("-legacy", "-inkey", key, "-in", self._files["leaf"], "-certfile", chain),
            "openssl-no-certificate": ("-inkey", key, "-nocerts"),
            "openssl-plain-key": ("-keypbe", "NONE", "-inkey", key, "-in", self._files["leaf"]),
            "openssl-plain-certificates": ("-certpbe", "NONE", "-inkey", key, "-in", self._files["leaf"]),
            "openssl-no-mac": ("-nomac", "-inkey", key, "-in", self._files["leaf"]),
            "openssl-sha1-mac": ("-macalg", "sha1", "-inkey", key, "-in", self._files["leaf"]),
        }
        for name, options in made.items():
            self._run(*common, name, *options)
            self.key(name, (self._directory / name).read_bytes(), keystore=PASSWORD)
        self._run("openssl", "pkcs12", "-export", "-passout", "pass:", "-out", "empty", *made["openssl"])
        self.key("openssl-empty-password", (self._directory / "empty").read_bytes(), keystore="")
        self._run(*common, "openssl-trust", "-nokeys", "-in", chain)
        self.trust("openssl-trust", (self._directory / "openssl-trust").read_bytes())
        self._run(*common, "openssl-trust-named", "-nokeys", "-in", chain, "-caname", "root")
        self.trust("openssl-trust-named", (self._directory / "openssl-trust-named").read_bytes(), "JKS")

    def cryptography(self) -> None:
        """Add stores of `cryptography`, with each encryption and without names."""
        builder = serialization.PrivateFormat.PKCS12.encryption_builder()
        for name, algorithm, mac in (
            ("pbes2", pkcs12.PBES.PBESv2SHA256AndAES256CBC, hashes.SHA512()),
            ("triple-des", pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC, hashes.SHA1()),
        ):
            encryption = builder.key_cert_algorithm(algorithm).hmac_hash(mac).build(PASSWORD.encode())
            for friendly in (None, b"node"):
                store = pkcs12.serialize_key_and_certificates(
                    friendly, self._rsa.key, self._rsa.certificate,
                    [self._root.certificate, self._inner.certificate], encryption,
                )  # fmt: skip
                self.key(f"cryptography-{name}-{(friendly or b'unnamed').decode()}", store, keystore=PASSWORD)
        java_trust = pkcs12.serialize_java_truststore(
            [
                pkcs12.PKCS12Certificate(self._root.certificate, b"Same"),
                pkcs12.PKCS12Certificate(self._inner.certificate, b"same"),
                pkcs12.PKCS12Certificate(self._leaf.certificate, None),
            ],
            encryption,
        )
        self.trust("cryptography-java-trust", java_trust)
        # Certificates of the same name, of which the key identifier decides, or nothing does.
        for name, ids in (("identifiers", True), ("no-identifiers", False)):
            first, second = Issued("twin ca", ids=ids), Issued("twin ca", ids=ids)
            leaf = Issued("twin leaf", second, ids=ids)
            store = pkcs12.serialize_key_and_certificates(
                b"twin", leaf.key, leaf.certificate, [first.certificate, second.certificate], encryption
            )
            self.key(f"twins-{name}", store, keystore=PASSWORD)

    def pem(self) -> None:
        """Add stores in PEM format, as files and inline."""
        chain = self._leaf.pem + self._inner.pem + self._root.pem
        plain = self._write("plain.key", self._leaf.key_pem())
        self._run(
            *("openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-in", plain, "-out", "triple-des.key"),
            *("-passout", f"pass:{OTHER}"),
        )
        triple_des = (self._directory / "triple-des.key").read_text()
        files = {
            "pem-key": (self._leaf.key_pem() + chain, None),
            "pem-key-last": (chain + self._leaf.key_pem(), None),
            "pem-wrong-order": (
                self._leaf.key_pem() + self._leaf.pem + self._root.pem + self._inner.pem,
                None,
            ),
            "pem-repeated": (self._leaf.key_pem() + self._leaf.pem + self._inner.pem * 2, None),
            "pem-encrypted": (triple_des + chain, OTHER),
            "pem-encrypted-no-password": (triple_des + chain, None),
            "pem-plain-with-password": (self._leaf.key_pem() + chain, OTHER),
            "pem-pkcs1": (
                self._rsa.key_pem(form=serialization.PrivateFormat.TraditionalOpenSSL) + self._rsa.pem,
                None,
            ),
            "pem-two-keys": (self._leaf.key_pem() + self._rsa.key_pem() + chain, None),
            "pem-no-key": (chain, None),
            "pem-no-certificate": (self._leaf.key_pem(), None),
        }
        for name, (text, password) in files.items():
            self.key(name, text.encode(), "PEM", **({"key": password} if password else {}))
        self.trust("pem-trust", (self._root.pem + self._inner.pem).encode(), "PEM", None)
        self.trust("pem-trust-with-password", self._root.pem.encode(), "PEM")
        self.trust("pem-trust-empty", b"nothing", "PEM", None)
        inline = {
            "ssl.keystore.type": b"PEM",
            "ssl.keystore.key": self._leaf.key_pem().replace("\n", " ").encode(),
            "ssl.keystore.certificate.chain": chain.encode(),
        }
        trust = {"ssl.truststore.type": b"PEM", "ssl.truststore.certificates": self._root.pem.encode()}
        self.cases["inline"] = {**inline, **trust}
        self.cases["inline-no-chain"] = {**inline}
        del self.cases["inline-no-chain"]["ssl.keystore.certificate.chain"]
        self.cases["inline-type-jks"] = {**trust, "ssl.truststore.type": b"JKS"}


def write_cases() -> None:
    """Print the cases with Java's results."""
    with tempfile.TemporaryDirectory() as directory:
        stores = Stores(Path(directory))
        stores.keytool()
        stores.openssl()
        stores.cryptography()
        stores.pem()
    questions = [
        " ".join([name, *(f"{key}={base64.b64encode(value).decode()}" for key, value in settings.items())])
        for name, settings in stores.cases.items()
    ]
    for question, answer in zip(questions, java_outputs("TlsStores", questions), strict=True):
        print(f"{question}\t{answer}")


if __name__ == "__main__":
    write_cases()
