"""Message declarations: encoding, and errors of contradictory declarations and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kwire.wire.codegen import decode, decoder, encode, encoder
from kwire.wire.errors import WireError
from kwire.wire.messages.alter_configs import AlterableConfig
from kwire.wire.messages.alter_user_scram_credentials import ScramCredentialUpsertion
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.schema import (
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    MessageMeta,
    Records,
    SchemaError,
    Str,
    Versions,
    field,
    fields_of,
    message,
)


class Inner(Message):
    """A nested structure."""

    number: Int32 = field(default=7)
    text: Str | None = field("2+", nullable="2+", ignorable=True, default=None)


@message(key=99, versions="0-3", flexible="2+")
class Sample(Message):
    """A message with fields of every kind."""

    name: Str = field()
    count: Int16 = field("1+")
    hint: Int64 = field("1-2", ignorable=True, default=-1)
    one: Inner = field()
    many: list[Inner] | None = field(nullable="1+")
    blob: Bytes | None = field("2+", nullable="3+", default=None)
    records: Records | None = field("2+", nullable="2+")
    ids: list[Uuid] = field("2+")
    names: list[Str] = field("3+", tag=0)
    aside: Inner = field("2+", tag=1)
    maybe: Inner | None = field("3+", nullable="3+", default=None)
    flag: Bool = field("0", ignorable=True)
    late: Int8 = field("2+", tag=2, tagged="3+", ignorable=True, default=-1)


class Tagged(Message):
    """A message with tagged fields that is not flexible."""

    aside: Int32 = field(tag=0)


message(versions="0-1", flexible="1+")(Tagged)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", (0, 0)), ("3-5", (3, 5)), ("9+", (9, 0x7FFF)), ("none", (1, 0)), ("4-4", (4, 4))],
)
def test_versions(text: str, expected: tuple[int, int]) -> None:
    assert tuple(Versions.parse(text)) == expected


@pytest.mark.parametrize("text", ["", "+", "-3", "3-", "a", "3-5+", "1,3", "5-3", "1-2-3"])
def test_invalid_versions_raise(text: str) -> None:
    with pytest.raises(SchemaError, match="versions"):
        Versions.parse(text)


def test_versions_within_others() -> None:
    assert Versions.parse("3-5").within(Versions.parse("3+"))
    assert Versions.parse("none").within(Versions.parse("7"))
    assert not Versions.parse("2-5").within(Versions.parse("3+"))
    assert not Versions.parse("3+").within(Versions.parse("3-9"))
    assert 3 in Versions.parse("3-5")
    assert 6 not in Versions.parse("3-5")
    assert 0 not in Versions.parse("none")


def declare(owner: str, annotations: dict[str, str], options: dict[str, Any]) -> tuple[Any, ...]:
    """Declare a message class and return its fields."""
    namespace = {"__module__": __name__, "__annotations__": annotations, **options}
    made: Any = MessageMeta(owner, (Message,), namespace)
    return fields_of(made)


@pytest.mark.parametrize(
    ("annotation", "make", "message"),
    [
        ("Int32", lambda: field("2+", nullable="2+"), "contradict each other"),
        ("Int32 | None", lambda: field(), "contradict each other"),
        ("Str | None", lambda: field("3+", nullable="2+"), "nullable in a version that lacks the field"),
        ("Str | None", lambda: field("3-5", nullable="3+"), "nullable in a version that lacks the field"),
        ("Int32", lambda: field("3+", tag=0, tagged="2+"), "tagged in a version that lacks the field"),
        ("Int32", lambda: field(tagged="2+"), "without a tag"),
        ("Int32", lambda: field(tag=1), r"its tags are \[1\]"),
        ("Int32", lambda: field("3-2"), "end before they start"),
        ("Int32", lambda: field("three"), "is not a range of versions"),
        ("Int32", lambda: field(default=None), "null by default, but never nullable"),
        ("list[Int32]", lambda: field(default=None), "null by default, but never nullable"),
        ("Inner", lambda: field(default=None), "null by default, but never nullable"),
        ("Int32", lambda: field(default="7"), "is not a default of its type"),
        ("Int32", lambda: field(default=True), "is not a default of its type"),
        ("Bool", lambda: field(default=0), "is not a default of its type"),
        ("Str", lambda: field(default=b""), "is not a default of its type"),
        ("list[Int32]", lambda: field(default=[1]), "is not a default of its type"),
        ("Inner", lambda: field(default=Inner()), "is not a default of its type"),
        ("Unheard", lambda: field(), "'Unheard' is not a type"),
        ("list[Unheard]", lambda: field(), "'Unheard' is not a type"),
        ("pytest", lambda: field(), "'pytest' is not a type"),
        ("Int32 | Str", lambda: field(), "is not a type"),
        ("Int32", lambda: 5, "declare options with field"),
    ],
)
def test_contradictory_declaration_raises(annotation: str, make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        declare("Declared", {"it": annotation}, {"it": make()})


def test_error_names_the_field() -> None:
    with pytest.raises(SchemaError, match=r"^Owner\.it: "):
        declare("Owner", {"it": "Unheard"}, {})


@pytest.mark.parametrize("tags", [(0, 0), (0, 2), (1, 2)])
def test_tags_count_up_from_zero(tags: tuple[int, int]) -> None:
    options = {"first": field(tag=tags[0]), "second": field(tag=tags[1])}
    with pytest.raises(SchemaError, match="Gap: its tags are"):
        declare("Gap", {"first": "Int32", "second": "Int32"}, options)


def test_tags_need_a_flexible_version() -> None:
    assert encode(Tagged(aside=1), 1) == bytes.fromhex("01 00 04 00000001")
    with pytest.raises(SchemaError, match="Tagged v0 has tags, but is not flexible"):
        encoder(Tagged, 0)
    with pytest.raises(SchemaError, match="Tagged v0 has tags, but is not flexible"):
        decoder(Tagged, 0)


@pytest.mark.parametrize("version", [-1, 4, 0x7FFF])
def test_undeclared_version_raises(version: int) -> None:
    with pytest.raises(SchemaError, match="Sample has no version"):
        encode(Sample(), version)
    with pytest.raises(SchemaError, match="Sample has no version"):
        decode(Sample, version, b"")


def test_construction() -> None:
    sample = Sample(name="a", many=None)
    assert sample.one == Inner(number=7)
    assert (sample.hint, sample.blob, sample.records, sample.names) == (-1, None, None, [])
    assert Sample().ids is not Sample().ids
    assert Sample().one is not Sample().one
    with pytest.raises(TypeError):
        Sample(nmae="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Sample("a")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        sample.nmae = "a"  # type: ignore[attr-defined]


def test_equality_and_text() -> None:
    assert Inner(number=1) == Inner(number=1)
    assert Inner(number=1) != Inner(number=2)
    assert Inner(number=1) != 1
    assert repr(Inner(number=1)) == "Inner(number=1, text=None)"
    with pytest.raises(TypeError):
        hash(Inner())


def test_bytes_of_every_version_match() -> None:
    """The expected bytes are written by hand."""
    inner = Inner(number=1, text="x")
    assert encode(Sample(name="ab", one=inner, flag=True), 0) == bytes.fromhex(
        "0002 6162"  # name
        "00000001"  # one, without its text
        "00000000"  # many
        "01"  # flag
    )
    assert encode(Sample(name="ab", count=3, one=inner, many=None), 1) == bytes.fromhex(
        "0002 6162 0003 ffffffffffffffff 00000001 ffffffff"
    )
    sample = Sample(
        name="ab",
        count=3,
        hint=4,
        one=inner,
        many=[inner],
        blob=b"b",
        records=b"rr",
        ids=[Uuid(b"u" * 16)],
        aside=inner,
        late=5,
    )
    assert (
        encode(sample, 2)
        == bytes.fromhex(
            "03 6162 0003 0000000000000004"
            "00000001 02 78 00"  # one, with an empty section of tags
            "02 00000001 02 78 00"  # many
            "02 62"  # blob
            "03 7272"  # records
            "02" + "75" * 16 + "05"  # late, not tagged in this version
            "01 01 07 00000001 02 78 00"  # one tag: aside
        )
    )
    sample = Sample(name="", names=["n"], maybe=Inner(), late=5)
    assert encode(sample, 3) == bytes.fromhex(
        "01 0000"  # name, count; hint is gone
        "00000007 00 00"  # one
        "01"  # many
        "00"  # blob
        "00"  # records
        "01"  # ids
        "01 00000007 00 00"  # maybe is there
        "02 00 03 02 02 6e 02 01 05"  # tags: names and late
    )
    assert encode(Sample(), 3).endswith(bytes.fromhex("ff 00"))  # maybe is null, and no tag


@pytest.mark.parametrize("version", range(4))
def test_decode_sets_defaults_for_fields_missing_in_the_version(version: int) -> None:
    data = encode(Sample(name="x", blob=b"" if version == 2 else None), version)
    sample, end = decode(Sample, version, data)
    assert end == len(data)
    assert sample == Sample(name="x", blob=b"" if version == 2 else None)


@pytest.mark.parametrize(
    ("sample", "version", "message"),
    [
        (Sample(count=1), 0, "Sample.count is not in version 0"),
        (Sample(ids=[ZERO_UUID]), 1, "Sample.ids is not in version 1"),
        (Sample(aside=Inner(number=1)), 1, "Sample.aside is not in version 1"),
        (Sample(names=["a"]), 2, "Sample.names is not in version 2"),
        (Sample(many=None), 0, "Sample.many may not be None in version 0"),
        (Sample(), 2, "Sample.blob may not be None in version 2"),
        (Sample(count=0x8000), 1, "Sample v1 cannot carry a value"),
        (Sample(one=Inner(number=1 << 40)), 1, "Sample v1 cannot carry a value"),
        (Sample(name="x" * 0x8000), 0, "Sample v0 cannot carry a value"),
        (Sample(name="x" * 0x8000), 3, "a string of 32768 bytes"),
        (Sample(name="\ud800"), 0, "surrogates"),
    ],
)
def test_value_missing_in_the_version_raises(sample: Sample, version: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(sample, version)


def test_ignorable_values_are_omitted() -> None:
    assert encode(Sample(hint=5, flag=True), 3) == encode(Sample(), 3)


def test_longest_string() -> None:
    """The limit is 32767 bytes, for compact and normal lengths."""
    for version in (0, 3):
        sample = Sample(name="x" * 0x7FFF)
        assert decode(Sample, version, encode(sample, version))[0] == sample
    too_long = b"\x81\x80\x02" + b"x" * 0x8000
    with pytest.raises(WireError, match=r"Sample\.name has length 32768"):
        decode(Sample, 3, too_long + bytes(40))


def test_malformed_text_is_replaced() -> None:
    """As in Java. An error would close a connection because of a client id or a rack."""
    sample, _ = decode(Sample, 0, b"\x00\x02\xff\xfe" + bytes(9))
    assert sample.name == "\ufffd\ufffd"


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("02 01 07 00000001 02 78 00 00 03 02 02 6e", "tag 0 after tag 1"),
        ("02 02 01 05 02 01 05", "tag 2 after tag 2"),
        ("01 02 02 05 05", "tag 2 does not match its size"),
        ("01 02 09 05", "exceeds the buffer"),
        ("01 00 02 02 00", "null in Sample.names"),
    ],
)
def test_tags_out_of_order_raise(tags: str, message: str) -> None:
    data = encode(Sample(), 3)[:-1] + bytes.fromhex(tags)
    with pytest.raises(WireError, match=message):
        decode(Sample, 3, data)


class Span:
    """A fake file region."""

    size_bytes = 300


def test_regions_are_recorded_and_not_copied() -> None:
    region = Span()
    out, regions = bytearray(), []  # type: bytearray, list[Any]
    encoder(Sample, 3)(Sample(records=region), out, regions)
    [(position, found)] = regions
    assert found is region
    with_bytes = encode(Sample(records=bytes(300)), 3)
    assert bytes(out[:position]) + bytes(300) + bytes(out[position:]) == with_bytes
    with pytest.raises(ValueError, match="regions"):
        encode(Sample(records=region), 3)


def test_records_are_a_view_and_bytes_a_copy() -> None:
    data = bytearray(encode(Sample(records=b"abc", blob=b"abc"), 3))
    sample, _ = decode(Sample, 3, data)
    assert isinstance(sample.records, memoryview)
    assert isinstance(sample.blob, bytes)
    assert bytes(sample.records) == b"abc"


def test_generated_code_shows_in_tracebacks() -> None:
    """Tracebacks show generated code because `linecache` has its source."""
    import linecache
    import traceback

    try:
        encode(Sample(name=5), 0)  # type: ignore[arg-type]
    except AttributeError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        assert frame.filename == "<kwire Sample v0 encode>"
        assert frame.line == "s = v.encode()"
        assert linecache.getline(frame.filename, 1) == "def encode(o, out, regions):\n"
    else:
        raise AssertionError("a number was encoded as text")


def test_any_negative_length_is_null_where_one_may_be() -> None:
    """Java's reader accepts any negative length as null."""
    data = encode(Sample(name="", many=None), 1)
    assert data.endswith(b"\xff\xff\xff\xff")
    assert decode(Sample, 1, data[:-4] + b"\x80\x00\x00\x00") == (Sample(many=None), len(data))
    with pytest.raises(WireError, match=r"Sample\.many may not be null"):
        decode(Sample, 0, bytes(6) + b"\xff\xff\xff\xfe" + b"\x00")


def test_repr_hides_secrets() -> None:
    shown = repr([SaslAuthenticateRequest(auth_bytes=b"secret"), ScramCredentialUpsertion(name="alice")])
    assert "auth_bytes=[hidden]" in shown
    assert "name='alice', mechanism=0, iterations=0, salt=b'', salted_password=[hidden]" in shown
    assert "secret" not in shown
    config = AlterableConfig(name="ssl.key.password", value="secret")
    assert repr(config) == "AlterableConfig(name='ssl.key.password', value=[hidden])"
