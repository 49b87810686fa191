"""Keys and values as people and programs see them: text, JSON, hexadecimal digits, or Avro."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Final

from kwire.cli.shared.command_error import UsageError
from kwire.cli.shared.errors import FormatMismatch

TEXT, JSON, HEX, AVRO = "text", "json", "hex", "avro"
SCHEMALESS_FORMATS: Final = (TEXT, JSON, HEX)
"""Those that need no schema."""
FORMATS: Final = (*SCHEMALESS_FORMATS, AVRO)

Decode = Callable[[bytes], object]
"""Bytes to what JSON can say. Misfit where they are something else."""


def add_deserializer_options(parser: ArgumentParser) -> None:
    """The options that say what is in keys and values, for those who read them."""
    _add_formats(parser)
    parser.add_argument(
        "--schema",
        action="append",
        default=[],
        metavar="FILE",
        help="an Avro schema, found by its fingerprint in values of Avro's own format; may be repeated",
    )


def add_serializer_options(parser: ArgumentParser) -> None:
    """The options that say how keys and values are written."""
    _add_formats(parser)
    for what in ("key", "value"):
        parser.add_argument(
            f"--{what}-schema", metavar="FILE", help=f"the Avro schema of a {what}, instead of the registry's"
        )


def _add_formats(parser: ArgumentParser) -> None:
    for what in ("key", "value"):
        parser.add_argument(
            f"--{what}-format", choices=FORMATS, default=TEXT, help=f"what a {what} is (default: text)"
        )
    parser.add_argument("--registry", metavar="URL", help="where Avro schemas are, in Confluent's format")


def decoders(options: Namespace, properties: Mapping[str, str]) -> tuple[Decode, Decode]:
    """How to read keys and values. Failure, UsageError."""
    return (
        _decoder(options.key_format, options, properties),
        _decoder(options.value_format, options, properties),
    )


def _decoder(form: str, options: Namespace, properties: Mapping[str, str]) -> Decode:
    if form == TEXT:
        return decode_text
    if form == JSON:
        return _json
    if form == HEX:
        return bytes.hex
    from kwire.cli.records.avro import AvroDecoder

    url = _registry(options, properties)
    if not url and not options.schema:
        raise UsageError("Avro needs its schemas: say where they are with --registry URL or --schema FILE")
    return AvroDecoder(url, options.schema).decode


def decode_or_hex(decode: Decode, data: bytes | None) -> tuple[object, str | None]:
    """What is in a key, value or header; its digits, and why, where it is something else.

    What looks like such digits is told by its own, so that they always are the bytes that are there.
    """
    if data is None:
        return None, None
    try:
        found = decode(data)
    except FormatMismatch as mismatch:
        return as_hex_object(data), str(mismatch)
    return as_hex_object(data) if _is_hex_object(found) else found, None


def as_hex_object(data: bytes | None) -> object:
    """Bytes as JSON can say them, and `Encoder.of_json` takes them back."""
    return None if data is None else {HEX: data.hex()}


def _is_hex_object(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == {HEX} and isinstance(value[HEX], str)


def format_line(value: object) -> str:
    """What a decoder has given, on a line."""
    return value if isinstance(value, str) else as_json(value)


def as_json(value: object) -> str:
    """One line of JSON; what JSON has no form for is text, and bytes are hex."""
    return json.dumps(value, ensure_ascii=False, default=_text_of_other)


def _text_of_other(value: object) -> str:
    return bytes(value).hex() if isinstance(value, (bytes, bytearray, memoryview)) else str(value)


def encode(text: str, form: str) -> bytes:
    """The bytes of what somebody has written, in a form that needs no schema. Misfit."""
    if form == HEX:
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise FormatMismatch(f"not hexadecimal digits: {text[:80]!r}") from None
    if form == JSON:
        _parse_json(text)
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise FormatMismatch("half of a pair of surrogates, which is no text") from None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatMismatch(f"not JSON ({error}): {text[:80]!r}") from None


class Encoder:
    """How the keys or the values of records are written."""

    def __init__(self, form: str, avro: Callable[[object], bytes] | None = None) -> None:
        """`avro` writes what JSON has said, where the form is that."""
        self._form = form
        self._avro = avro

    def encode_text(self, text: str) -> bytes:
        """The bytes of what somebody has written. Misfit."""
        return encode(text, self._form) if self._avro is None else self._avro(_parse_json(text))

    def encode_json(self, value: object) -> bytes | None:
        """The bytes of what stands in an object, None for null. Misfit."""
        if value is None:
            return None
        if isinstance(value, Mapping) and _is_hex_object(value):
            return encode(value[HEX], HEX)
        if self._avro is not None:
            return self._avro(value)
        if isinstance(value, str) and self._form != JSON:
            return encode(value, self._form)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "backslashreplace"
        )


def encoders(options: Namespace, properties: Mapping[str, str]) -> tuple[Encoder, Encoder]:
    """How to write the keys and values of a topic. Failure, UsageError."""
    registry = _registry(options, properties)
    return (
        _encoder(options.key_format, options.key_schema, registry, f"{options.topic}-key"),
        _encoder(options.value_format, options.value_schema, registry, f"{options.topic}-value"),
    )


def _encoder(form: str, path: str | None, registry: str | None, subject: str) -> Encoder:
    if form != AVRO:
        return Encoder(form)
    from kwire.cli.records.avro import file_encoder, subject_encoder

    if path is not None:
        return Encoder(form, file_encoder(path))
    if not registry:
        what = subject.rpartition("-")[2]
        raise UsageError(f"Avro needs a schema: say where it is with --registry URL or --{what}-schema FILE")
    return Encoder(form, subject_encoder(registry, subject))


def _registry(options: Namespace, properties: Mapping[str, str]) -> str | None:
    return options.registry or properties.get("schema.registry.url")


def decode_text(data: bytes) -> str:
    """Bytes as UTF-8. Misfit."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FormatMismatch("not UTF-8") from None


def _json(data: bytes) -> object:
    text = decode_text(data)
    try:
        return json.loads(text)
    except ValueError as error:
        raise FormatMismatch(f"not JSON: {error}") from None
    except RecursionError:
        raise FormatMismatch("JSON that is nested too deeply") from None
