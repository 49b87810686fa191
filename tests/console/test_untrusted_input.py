"""Protection of the console against other sites and hostile messages."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kwire.console.app import GET
from kwire.console.display import display_bytes, visible
from kwire.console.page import ConsoleSettings
from kwire.testing import Broker
from tests.console.conftest import BASE, TOKEN, ConsoleClient, run_console, text_of

OWN = {"origin": BASE, "sec-fetch-site": "same-origin"}
WRITE = "/console/topics/mine/messages"


@pytest.fixture(scope="module", autouse=True)
def topic(admin: AdminClient) -> None:
    admin.create_topics([NewTopic("mine", 1, 1)])["mine"].result(10)


@pytest.mark.parametrize(
    ("headers", "token", "sentence"),
    [
        ({"sec-fetch-site": "cross-site"}, TOKEN, "another site"),
        ({"sec-fetch-site": "same-site"}, TOKEN, "another site"),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, TOKEN, "sent by another site"),
        ({"origin": "https://evil.example"}, TOKEN, "sent by a page of https://evil.example"),
        ({"origin": "http://127.0.0.1:9999"}, TOKEN, "sent by a page of http://127.0.0.1:9999"),
        ({"origin": "null"}, TOKEN, "sent by a page of null"),
        (OWN, "", "the console was restarted after this form was loaded"),
        (OWN, "guessed", "the console was restarted after this form was loaded"),
        (OWN, "ümlaut", "the console was restarted after this form was loaded"),
    ],
)
async def test_cross_site_form_is_refused(
    console: ConsoleClient, broker: Broker, headers: dict[str, str], token: str, sentence: str
) -> None:
    response = await console.http.post(WRITE, data={"token": token, "value": "evil"}, headers=headers)
    assert response.status_code == 403
    assert sentence in text_of(response.text)
    assert await broker.aio.records("mine") == []


async def test_slow_form_times_out(console: ConsoleClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kwire.console.app.FORM_SECONDS", 0.1)

    async def parts() -> AsyncIterator[bytes]:
        yield b"token="
        await trio.sleep_forever()

    response = await console.http.post(WRITE, content=parts(), headers=OWN)
    assert response.status_code == 408
    assert "send it again" in text_of(response.text)


async def test_malformed_form_is_refused(console: ConsoleClient, broker: Broker) -> None:
    for content_type, content in (
        ("text/plain", f"token={TOKEN}\r\nvalue=x".encode() + b"\xff"),
        ("application/json", b"\xff\xfe"),
        ("application/x-www-form-urlencoded", b"&".join(b"f%d=1" % n for n in range(51))),
    ):
        headers = {**OWN, "content-type": content_type}
        response = await console.http.post(WRITE, content=content, headers=headers)
        assert response.status_code == 400, text_of(response.text)
    assert await broker.aio.records("mine") == []


async def test_get_requests_change_nothing(console: ConsoleClient) -> None:
    assert (await console.http.get(WRITE)).status_code == 405


async def test_pages_forbid_embedding(console: ConsoleClient) -> None:
    for mode in ("no-cors", "cors"):
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode}
        assert (await console.http.get("/console/", headers=headers)).status_code == 403
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    response = await console.http.get("/console/", headers=followed)
    assert response.status_code == 200
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    "path", ["/console/", "/console/static/console.css", "/console/none", "/console/topics/no"]
)
async def test_every_response_has_a_content_security_policy(console: ConsoleClient, path: str) -> None:
    headers = (await console.http.get(path)).headers
    assert headers["content-security-policy"].startswith("default-src 'none';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


async def test_read_only_console_has_no_forms_and_refuses_them(broker: Broker) -> None:
    async with run_console(ConsoleSettings(broker.bootstrap_servers, 1, (), may_write=False)) as console:
        assert 'method="post"' not in await console.source("/topics/mine")
        response = await console.http.post(WRITE, data={"token": TOKEN, "value": "x"}, headers=OWN)
        assert response.status_code == 403
        assert "is read-only" in response.text
    assert await broker.aio.records("mine") == []


SCRIPTS = (
    b"<script>alert(1)</script>",
    b"<img src=x onerror=alert(2)>",
    b"'\"><svg/onload=alert(3)>",
    b"{{ 7*7 }}{% include 'base.html' %}",
    b"</td></table><h1>Free</h1>",
)


async def test_html_in_messages_is_escaped(
    console: ConsoleClient, admin: AdminClient, producer: Producer
) -> None:
    admin.create_topics([NewTopic("scripts", 1, 1)])["scripts"].result(10)
    for script in SCRIPTS:
        producer.produce("scripts", script, script, headers={script.decode(): script})
    producer.flush(10)
    for path in ("/topics/scripts/0", *(f"/topics/scripts/0/{offset}" for offset in range(len(SCRIPTS)))):
        source = await console.source(path)
        for wrong in ("<script>", "<img", "<svg/", "<h1>Free", "onerror=alert(2)>"):
            assert wrong not in source
    page = await console.source("/topics/scripts/0")
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2
    assert "{{ 7*7 }}" in page


@pytest.mark.parametrize(
    "name", ["<script>alert(1)<%2Fscript>", "%22onfocus%3Dalert(1)%20x%3D%22", "..%2F..%2Fx"]
)
async def test_html_in_urls_is_escaped(console: ConsoleClient, name: str) -> None:
    for path in (
        f"/topics/{name}",
        f"/topics/mine/0?key={name}",
        f"/?q={name}",
        f"/topics/mine/0?from={name}",
    ):
        source = (await console.http.get(f"/console{path}")).text
        assert "<script>alert" not in source
        assert '"onfocus' not in source


JUNK = (
    *(
        "",
        "0",
        "-1",
        "9" * 30,
        "9" * 400,
        "9" * 5000,  # Python parses no number of more than 4,300 digits
        "0" * 5000,
        "-" + "9" * 30,
        "9" * 30 + "d",
        "9999-12-31T23:59:59",
        "0001-01-01",
    ),
    *(
        "٣",
        "½",
        "\x00",
        "a\r\nb: c",
        "<script>",
        "../..",
        "%",
        "é" * 50,
        "x" * 5000,
        "mine",
        "mine:0,1",
        "group",
    ),
)


@pytest.mark.parametrize("path", [*GET, "/topics/{topic}/live/events"])
async def test_random_urls_cause_no_server_error(console: ConsoleClient, path: str) -> None:
    """Every random URL gets a page or an error page."""
    draw = random.Random(path)
    for junk in JUNK:
        place = path.replace("{partition:int}", draw.choice(["0", "7", "9" * 30, "9" * 5000]))
        place = place.replace("{topic}", quote(junk, safe="") or "mine")
        place = place.replace("{offset:int}", draw.choice(["0", "9223372036854775807", "9" * 30, "9" * 5000]))
        query = {
            name: draw.choice(JUNK) for name in ("from", "key", "id", "to", "topic", "kind", "name", "at")
        }
        if "events" in path:
            query["partition"] = draw.choice(["no number", "9" * 30, "9" * 5000])
        for each in ({}, query, {"id": junk, "kind": "topic", "name": junk, "from": junk, "form": "hex"}):
            if "events" in path and not each.get("partition"):
                continue
            response = await console.http.get(f"/console{place}", params=each)
            assert response.status_code in (200, 303, 400, 404), (place, each)
            assert "<script>" not in response.text


async def test_huge_and_binary_messages_are_shortened(
    console: ConsoleClient, admin: AdminClient, producer: Producer
) -> None:
    admin.create_topics([NewTopic("huge", 1, 1)])["huge"].result(10)
    for value in (b"x" * 900_000, bytes(range(256)) * 3_000, b"\xff" * 900_000, b"y" * 900_000):
        producer.produce("huge", value, value[:10_000])
        producer.flush(10)
    assert len(await console.source("/topics/huge/0")) < 20_000
    for offset in range(4):
        assert len(await console.source(f"/topics/huge/0/{offset}")) < 200_000
    assert "878.9 KiB, text; the first 64.0 KiB are shown" in await console.page("/topics/huge/0/0")
    assert "000010 10 11 12" in await console.page("/topics/huge/0/1")


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy"])
async def test_oversized_compressed_batch_is_refused(
    console: ConsoleClient, broker: Broker, admin: AdminClient, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topics([NewTopic(f"bomb-{codec}", 1, 1)])[f"bomb-{codec}"].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec})
    producer.produce(f"bomb-{codec}", bytes(900_000))
    producer.flush(10)
    monkeypatch.setattr("kwire.console.fetching.MAX_BATCH_BYTES", 100_000)
    page = await console.page(f"/topics/bomb-{codec}/0", 404)
    assert "the batch at offset 0 cannot be read" in page
    assert "continue after it, at 1" in page


async def test_record_with_too_many_headers_is_refused(
    console: ConsoleClient, admin: AdminClient, producer: Producer
) -> None:
    admin.create_topics([NewTopic("headed", 1, 1)])["headed"].result(10)
    for count in (10_000, 10_001):
        producer.produce("headed", b"x", headers=[("", None)] * count)
        producer.flush(10)
    assert "and 9900 more" in await console.page("/topics/headed/0/0")
    page = await console.page("/topics/headed/0/1", 404)
    assert "a record has 10001 headers; the limit is 10000" in page
    assert "continue after it, at 2" in page


async def test_list_of_large_messages_ends_early(
    console: ConsoleClient, broker: Broker, admin: AdminClient
) -> None:
    admin.create_topics([NewTopic("large-ones", 1, 1)])["large-ones"].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "zstd"})
    for number in range(24):
        producer.produce("large-ones", b"number %d, " % number + bytes(900_000))
        producer.flush(10)
    first = await console.source("/topics/large-ones/0?from=0")
    assert first.count("6e 75 6d 62 65 72") == 19, "16 MiB of them, and the one that reaches beyond"
    assert "?from=19" in first
    assert (await console.source("/topics/large-ones/0?from=19")).count("6e 75 6d 62 65 72") == 5


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b"plain", "text", "plain"),
        ("Grüße, 日本語".encode(), "text", "Grüße, 日本語"),
        (b"tab\tand\nline", "text", "tab\tand\nline"),
        ("gpj\u202etxt.exe".encode(), "text", "gpj\\u{202e}txt.exe"),
        (b"one \x07 bell in a long text", "text", "one \\u{7} bell in a long text"),
        (b"\x00\x01\x02", "binary", "00 01 02"),
        (b"\xc3\x28", "binary", "c3 28"),
    ],
)
def test_invisible_characters_are_escaped(data: bytes | None, kind: str, text: str) -> None:
    found = display_bytes(data)
    assert (found.kind, found.text) == (kind, text)


def test_incomplete_character_at_the_end_is_omitted() -> None:
    assert display_bytes("aé".encode(), 2).text == "a"
    assert display_bytes("ab€".encode() + b"x", 4).text == "ab"
    assert display_bytes(b"ab\xe2\x82", 9).kind == "binary"
    assert re.fullmatch(r"\\u\{2066\}", visible("\u2066"))
