"""Keys and values as people and programs see them: text, JSON, hexadecimal digits, or Avro."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Final

from kwire.desk.failure import Misfit, UsageError

TEXT, JSON, HEX, AVRO = "text", "json", "hex", "avro"
FORMS: Final = (TEXT, JSON, HEX, AVRO)
WRITTEN: Final = (TEXT, JSON, HEX)

Decode = Callable[[bytes], object]
"""Bytes to what JSON can say. Misfit where they are something else."""


def add_forms(parser: ArgumentParser) -> None:
    """The options that say what is in keys and values, for those who read them."""
    for what in ("key", "value"):
        parser.add_argument(
            f"--{what}-format", choices=FORMS, default=TEXT, help=f"what a {what} is (default: text)"
        )
    parser.add_argument(
        "--registry", metavar="URL", help="where Avro schemas are found by their ids (Confluent's format)"
    )
    parser.add_argument(
        "--schema",
        action="append",
        default=[],
        metavar="FILE",
        help="an Avro schema, found by its fingerprint in values of Avro's own format; may be repeated",
    )


def decoders(options: Namespace, properties: Mapping[str, str]) -> tuple[Decode, Decode]:
    """How to read keys and values. Failure, UsageError."""
    return (
        _decoder(options.key_format, options, properties),
        _decoder(options.value_format, options, properties),
    )


def _decoder(form: str, options: Namespace, properties: Mapping[str, str]) -> Decode:
    if form == TEXT:
        return text_of
    if form == JSON:
        return _json
    if form == HEX:
        return bytes.hex
    from kwire.desk.avro import AvroValues

    url = options.registry or properties.get("schema.registry.url")
    if not url and not options.schema:
        raise UsageError("Avro needs its schemas: say where they are with --registry URL or --schema FILE")
    return AvroValues(url, options.schema).read


def written(value: object) -> str:
    """What a decoder has given, on a line."""
    return value if isinstance(value, str) else as_json(value)


def as_json(value: object) -> str:
    """One line of JSON; what JSON has no form for is text, and bytes are hex."""
    return json.dumps(value, ensure_ascii=False, default=_text_of_other)


def _text_of_other(value: object) -> str:
    return bytes(value).hex() if isinstance(value, (bytes, bytearray, memoryview)) else str(value)


def encode(text: str, form: str) -> bytes:
    """The bytes of what somebody has written. Misfit."""
    if form == HEX:
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise Misfit(f"not hexadecimal digits: {text[:80]!r}") from None
    if form == JSON:
        try:
            json.loads(text)
        except ValueError as error:
            raise Misfit(f"not JSON ({error}): {text[:80]!r}") from None
    return text.encode("utf-8", "surrogateescape")


def text_of(data: bytes) -> str:
    """Bytes as UTF-8; what is not is escaped."""
    return data.decode("utf-8", "backslashreplace")


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError as error:
        raise Misfit(f"not JSON: {error}") from None
    except RecursionError:
        raise Misfit("JSON that is nested too deeply") from None
