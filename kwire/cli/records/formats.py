"""Formats of keys and values: text, JSON, hex and Avro."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Final

from kwire.cli.shared.command_error import UsageError
from kwire.cli.shared.errors import FormatMismatch
from kwire.cli.shared.options import add_repeatable_option

TEXT, JSON, HEX, AVRO = "text", "json", "hex", "avro"
SCHEMALESS_FORMATS: Final = (TEXT, JSON, HEX)
"""Formats that need no schema."""
FORMATS: Final = (*SCHEMALESS_FORMATS, AVRO)

Decode = Callable[[bytes], object]
"""Decodes bytes to a JSON value. Raises FormatMismatch."""


def add_deserializer_options(parser: ArgumentParser) -> None:
    """Add the options that select how keys and values are decoded."""
    _add_formats(parser)
    add_repeatable_option(
        parser, "--schema", "FILE", "an Avro schema for values in Avro's single-object encoding"
    )


def add_serializer_options(parser: ArgumentParser) -> None:
    """Add the options that select how keys and values are encoded."""
    _add_formats(parser)
    for what in ("key", "value"):
        parser.add_argument(
            f"--{what}-schema", metavar="FILE", help=f"Avro schema of the {what} (default: from --registry)"
        )


def _add_formats(parser: ArgumentParser) -> None:
    for what in ("key", "value"):
        parser.add_argument(
            f"--{what}-format", choices=FORMATS, default=TEXT, help=f"format of the {what} (default: text)"
        )
    parser.add_argument("--registry", metavar="URL", help="Confluent schema registry with the Avro schemas")


def decoders(options: Namespace, properties: Mapping[str, str]) -> tuple[Decode, Decode]:
    """Return the decoders of keys and values. Raises CommandError."""
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
        raise UsageError("Avro values need schemas: use --registry URL or --schema FILE")
    return AvroDecoder(url, options.schema).decode


def decode_or_hex(decode: Decode, data: bytes | None) -> tuple[object, str | None]:
    """Return the decoded bytes and None, or a hex object and the reason why they could not be decoded.

    A decoded value that looks like a hex object becomes a hex object itself, to be unambiguous.
    """
    if data is None:
        return None, None
    try:
        found = decode(data)
    except FormatMismatch as mismatch:
        return as_hex_object(data), str(mismatch)
    return as_hex_object(data) if _is_hex_object(found) else found, None


def as_hex_object(data: bytes | None) -> object:
    """Return bytes as a hex object, like {"hex": "00ff"}, which `Encoder.encode_json` accepts."""
    return None if data is None else {HEX: data.hex()}


def _is_hex_object(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == {HEX} and isinstance(value[HEX], str)


def format_line(value: object) -> str:
    """Return a decoded value for display: text unchanged, any other value as one line of JSON."""
    return value if isinstance(value, str) else as_json(value)


def as_json(value: object) -> str:
    """Return one line of JSON. Bytes become hex, and other types that JSON lacks become text."""
    return json.dumps(value, ensure_ascii=False, default=_text_of_other)


def _text_of_other(value: object) -> str:
    return bytes(value).hex() if isinstance(value, (bytes, bytearray, memoryview)) else str(value)


def encode(text: str, form: str) -> bytes:
    """Encode text in a format without a schema. Raises FormatMismatch."""
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
        raise FormatMismatch("a lone surrogate, which is not text") from None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatMismatch(f"not JSON ({error}): {text[:80]!r}") from None


class Encoder:
    """An encoder of keys or values."""

    def __init__(self, form: str, avro: Callable[[object], bytes] | None = None) -> None:
        """Select the format. `avro` encodes JSON values if the format is Avro."""
        self._form = form
        self._avro = avro

    def encode_text(self, text: str) -> bytes:
        """Encode what a user typed. Raises FormatMismatch."""
        return encode(text, self._form) if self._avro is None else self._avro(_parse_json(text))

    def encode_json(self, value: object) -> bytes | None:
        """Encode a value of a JSON record; None for null. Raises FormatMismatch."""
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
    """Return the encoders of keys and values. Raises CommandError."""
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
        raise UsageError(f"Avro values need a schema: use --registry URL or --{what}-schema FILE")
    return Encoder(form, subject_encoder(registry, subject))


def _registry(options: Namespace, properties: Mapping[str, str]) -> str | None:
    return options.registry or properties.get("schema.registry.url")


def decode_text(data: bytes) -> str:
    """Decode UTF-8. Raises FormatMismatch."""
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
