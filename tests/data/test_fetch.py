"""Downloads from a real HTTP server on loopback that drops connections, lies and sends the wrong thing."""

from __future__ import annotations

import hashlib
import http.server
import json
import random
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers import linux_only
from onepass.data import fetch
from onepass.data.fetch import DownloadError, download

DATA = random.Random(0).randbytes(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
PAGE = b"<!DOCTYPE html>\n<html><body>Too many users have viewed this file.</body></html>"


@dataclass
class Script:
    """What the server holds, and how it misbehaves."""

    data: bytes = DATA
    tag: str = '"v1"'
    ranges: bool = True
    shift: int = 0  # how far a resumed answer begins from where it was asked to
    if_range: bool = True  # whether it looks at If-Range, as it must
    drops: list[int] = field(default_factory=list)  # bytes after which each next answer breaks off
    announced: int | None = None  # another length than the true one
    status: int = 200
    length: bool = True
    chunked: bool = False
    location: str = ""
    on_answer: Callable[[Script], None] = lambda script: None
    asked: list[str] = field(default_factory=list)  # the Range of each request
    sent: int = 0  # bytes of content, over all answers


class Handler(http.server.BaseHTTPRequestHandler):
    script: Script

    def do_GET(self) -> None:
        script = self.script
        self.close_connection = True
        script.asked.append(self.headers.get("Range", ""))
        start = self.begin()
        if start is None:
            return
        body = script.data[start:]
        if script.drops:
            body = body[: script.drops.pop(0)]
        is_all = start + len(body) == len(script.data)
        script.on_answer(script)  # all that the tests look at is done before the last byte, which lets the client go on
        for at in range(0, len(body), 10_000):
            piece = body[at : at + 10_000]
            script.sent += len(piece)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if script.chunked else piece)
        if script.chunked and is_all:
            self.wfile.write(b"0\r\n\r\n")

    def begin(self) -> int | None:
        """Send status and headers; where the content begins, if there is any."""
        script, start = self.script, 0
        if script.ranges and (wanted := self.headers.get("Range")):
            same = self.headers.get("If-Range") == script.tag or not script.if_range
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) + script.shift if same else 0
        if start >= len(script.data) > 0:
            self.answer(416, {"Content-Range": f"bytes */{len(script.data)}"})
            return None
        total = script.announced or len(script.data)
        headers = {"ETag": script.tag, "Content-Length": str(total - start), "Location": script.location}
        if start:
            headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
        if script.chunked or not script.length:
            del headers["Content-Length"]
        if script.chunked:
            headers["Transfer-Encoding"] = "chunked"
        self.answer(206 if start else script.status, headers)
        return start

    def answer(self, status: int, headers: dict[str, str]) -> None:
        self.protocol_version = "HTTP/1.1"
        self.send_response(status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that hangs up is part of the tests."""


@dataclass
class Site:
    script: Script
    url: str


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "_PAUSE", 0.0)
    script = Script()
    handler = type("ScriptedHandler", (Handler,), {"script": script})
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield Site(script, f"http://127.0.0.1:{server.server_port}/archive.tar.gz")
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "data" / "archive.tar.gz"


def left(to: Path) -> dict[str, int]:
    """The files beside the target, with their sizes."""
    return {path.name: path.stat().st_size for path in sorted(to.parent.iterdir()) if path.suffix != ".json"}


def fails(site: Site, to: Path, **expected: Any) -> str:
    with pytest.raises(DownloadError) as caught:
        download(site.url, to, timeout=60, attempts=3, **expected)  # sha256, md5, size
    assert not to.exists()
    for hint in (site.url, to.name, str(to.parent)):
        assert hint in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_file_arrives_with_progress_and_leaves_nothing_else(site: Site, to: Path, chunked: bool) -> None:
    site.script.chunked = chunked
    seen: list[tuple[int, int | None]] = []
    assert download(site.url, to, sha256=SHA256.upper(), md5=MD5, progress=lambda *at: seen.append(at)) == to
    assert to.read_bytes() == DATA
    assert seen[-1] == (len(DATA), None if chunked else len(DATA))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert list(to.parent.iterdir()) == [to]


def test_a_file_that_is_there_and_right_is_not_fetched_again_and_a_wrong_one_is_replaced(site: Site, to: Path) -> None:
    to.parent.mkdir()
    to.write_bytes(DATA)
    download(site.url, to, sha256=SHA256)
    assert site.script.asked == []
    to.write_bytes(b"wrong")
    download(site.url, to, sha256=SHA256)
    assert to.read_bytes() == DATA


@pytest.mark.parametrize("chunked", [False, True])
def test_dropped_connections_are_resumed_where_they_broke(site: Site, to: Path, chunked: bool) -> None:
    site.script.chunked = chunked
    site.script.drops = [100_000, 50_000, 0, 70_000]
    download(site.url, to, sha256=SHA256)
    assert to.read_bytes() == DATA
    assert site.script.asked == ["", "bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=220000-"]
    assert site.script.sent == len(DATA)


def test_more_drops_than_attempts_are_fine_while_each_brings_something(site: Site, to: Path) -> None:
    site.script.drops = [10_000] * 20
    download(site.url, to, attempts=2)
    assert to.read_bytes() == DATA
    assert site.script.sent == len(DATA)


def test_a_later_call_continues_what_an_earlier_one_left(site: Site, to: Path) -> None:
    site.script.drops = [120_000, 0, 0, 0]
    assert "the connection ended after 120,000 of 300,000 bytes" in fails(site, to)
    assert left(to) == {"archive.tar.gz.part": 120_000}
    download(site.url, to)
    assert to.read_bytes() == DATA
    assert site.script.sent == len(DATA)


def test_a_complete_part_is_only_checked_and_placed(site: Site, to: Path) -> None:
    to.parent.mkdir()
    to.with_name("archive.tar.gz.part").write_bytes(DATA)
    to.with_name("archive.tar.gz.part.json").write_text(json.dumps([site.url, '"v1"', len(DATA)]))
    download(site.url, to, sha256=SHA256)
    assert to.read_bytes() == DATA
    assert site.script.asked == []


@pytest.mark.parametrize("note", ["", "{", "[]", "7", json.dumps(["http://elsewhere/", '"v1"', 9]), None])
def test_a_part_of_unknown_origin_is_not_continued(site: Site, to: Path, note: str | None) -> None:
    to.parent.mkdir()
    to.with_name("archive.tar.gz.part").write_bytes(b"something else")
    if note is not None:
        to.with_name("archive.tar.gz.part.json").write_text(note)
    download(site.url, to)
    assert to.read_bytes() == DATA


@pytest.mark.parametrize("if_range", [True, False])
def test_a_file_that_changed_in_between_is_not_glued(site: Site, to: Path, if_range: bool) -> None:
    def change(script: Script) -> None:
        script.data, script.tag = DATA[::-1], '"v2"'

    site.script.drops, site.script.on_answer, site.script.if_range = [100_000], change, if_range
    download(site.url, to)
    assert to.read_bytes() == DATA[::-1]


@pytest.mark.parametrize("shift", [-1000, 1000])
def test_an_answer_that_begins_elsewhere_is_not_glued(site: Site, to: Path, shift: int) -> None:
    site.script.drops, site.script.shift = [100_000], shift
    download(site.url, to)
    assert to.read_bytes() == DATA


@pytest.mark.parametrize("tag", ["", 'W/"weak"'])
def test_without_a_strong_version_it_begins_again(site: Site, to: Path, tag: str) -> None:
    site.script.tag, site.script.drops = tag, [100_000]
    download(site.url, to, sha256=SHA256)
    assert site.script.asked == ["", ""]
    assert to.read_bytes() == DATA


def test_a_server_that_ignores_range_is_read_from_the_beginning(site: Site, to: Path) -> None:
    site.script.ranges, site.script.drops = False, [100_000]
    download(site.url, to, sha256=SHA256)
    assert to.read_bytes() == DATA
    assert site.script.sent == 100_000 + len(DATA)


def test_a_server_that_always_breaks_off_is_given_up(site: Site, to: Path) -> None:
    site.script.ranges, site.script.drops = False, [100_000] * 99
    assert "100,000 of 300,000 bytes" in fails(site, to)
    assert len(site.script.asked) == 4  # the first brought something, the next three nothing new


def test_a_length_too_long_is_not_believed_against_a_checksum(site: Site, to: Path) -> None:
    site.script.announced = len(DATA) + 1000
    download(site.url, to, sha256=SHA256)
    assert to.read_bytes() == DATA


def test_a_length_too_long_without_a_checksum_is_an_error(site: Site, to: Path) -> None:
    site.script.announced = len(DATA) + 1000
    fails(site, to)
    site.script.ranges = False
    assert "ended after 300,000 of 301,000 bytes" in fails(site, to)


def test_a_length_too_short_is_noticed_by_checksum_and_by_size(site: Site, to: Path) -> None:
    site.script.announced = 1000
    assert f"expected {SHA256}" in fails(site, to, sha256=SHA256)
    assert "announces 1,000 bytes" in fails(site, to, size=len(DATA))
    assert left(to) == {}


def test_a_file_of_another_size_is_refused_before_it_is_fetched(site: Site, to: Path) -> None:
    assert "announces 300,000 bytes" in fails(site, to, size=7)
    site.script.chunked = True
    assert "more than the 200,000 bytes" in fails(site, to, size=200_000)
    assert left(to) == {}
    site.script.data = b""
    fails(site, to, size=200_000)
    site.script.chunked, site.script.announced = False, None
    assert "announces 0 bytes" in fails(site, to)


def test_without_length_and_checksum_half_a_file_is_not_accepted(site: Site, to: Path) -> None:
    site.script.length = False
    assert "half a file would not be noticed" in fails(site, to)
    site.script.drops = [100_000]
    download(site.url, to, size=len(DATA))
    assert to.read_bytes() == DATA


def test_a_wrong_checksum_removes_the_part_and_says_both(site: Site, to: Path) -> None:
    message = fails(site, to, sha256="0" * 64)
    assert f"its sha256 is {SHA256}, expected {'0' * 64}" in message
    assert f"its md5 is {MD5}, expected {'1' * 32}" in fails(site, to, md5="1" * 32)
    assert list(to.parent.iterdir()) == []


def test_an_html_page_is_not_taken_for_the_file_and_does_not_cost_what_has_come(site: Site, to: Path) -> None:
    site.script.drops = [100_000, 0, 0, 0]
    fails(site, to)
    site.script.data, site.script.tag = PAGE, '"page"'
    assert "the server sent an HTML page, not the file" in fails(site, to)
    assert left(to) == {"archive.tar.gz.part": 100_000}
    site.script.data, site.script.tag = DATA, '"v1"'
    download(site.url, to)
    assert to.read_bytes() == DATA


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (410, 1), (503, 3), (429, 3)])
def test_errors_that_last_are_not_asked_again(site: Site, to: Path, status: int, requests: int) -> None:
    site.script.status = status
    message = fails(site, to, sha256=SHA256)
    assert f"the server answers {status}" in message
    assert SHA256 in message
    assert len(site.script.asked) == requests
    assert list(to.parent.iterdir()) == []


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:text/plain,x", "gopher://x/"])
def test_redirects_lead_to_the_web_only(site: Site, to: Path, target: str) -> None:
    site.script.status, site.script.location = 302, target
    assert target.split(",")[0] in fails(site, to)


def test_a_redirect_on_the_web_is_followed_and_one_in_a_circle_is_not(site: Site, to: Path) -> None:
    def arrive(script: Script) -> None:
        script.status, script.location = 200, ""

    site.script.status, site.script.location, site.script.on_answer = 302, "/elsewhere", arrive
    download(site.url, to)
    assert to.read_bytes() == DATA
    to.unlink()
    site.script.status, site.script.location, site.script.on_answer = 302, "/elsewhere", lambda script: None
    assert "302" in fails(site, to)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "/etc/passwd"])
def test_only_web_addresses_are_fetched(url: str, to: Path) -> None:
    with pytest.raises(DownloadError, match="no http or https address"):
        download(url, to)


def test_no_network_says_what_to_do_by_hand(site: Site, to: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        site.url = f"http://127.0.0.1:{unused.getsockname()[1]}/archive.tar.gz"
        message = fails(site, to, sha256=SHA256, size=len(DATA))
    assert "cannot reach the server" in message
    for fact in ("refused", SHA256, "300,000 bytes", f"as archive.tar.gz into {to.parent}"):
        assert fact in message


def test_a_silent_server_does_not_hang_the_download(site: Site, to: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/archive.tar.gz"
        with pytest.raises(DownloadError, match="timed out"):
            download(url, to, timeout=0.1, attempts=2)


@pytest.mark.parametrize(
    "answer", [b"", b"\0" * 100, b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"SSH-2.0-x\r\n"]
)
def test_answers_that_are_not_http_are_clean_errors(site: Site, to: Path, answer: bytes) -> None:
    def serve(server: socket.socket) -> None:
        for _ in range(3):
            connection, _address = server.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        site.url = f"http://127.0.0.1:{server.getsockname()[1]}/archive.tar.gz"
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        fails(site, to)


def test_a_full_disk_keeps_what_has_come(site: Site, to: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # the kernel refuses what goes beyond
    try:
        message = fails(site, to, sha256=SHA256)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot write in" in message
    assert "what has come is kept" in message
    assert left(to) == {"archive.tar.gz.part": 100_000}
    download(site.url, to, sha256=SHA256)
    assert site.script.asked == ["", "bytes=100000-"]
    assert to.read_bytes() == DATA


@linux_only
def test_no_space_left_is_said(site: Site, to: Path) -> None:
    to.parent.mkdir()
    to.with_name("archive.tar.gz.part").symlink_to("/dev/full")
    assert "No space left on device" in fails(site, to)


def test_two_downloads_of_one_file_do_not_mix(site: Site, to: Path) -> None:
    messages: list[str] = []

    def again(done: int, total: int | None) -> None:
        if not messages:
            messages.append(fails(site, to))

    download(site.url, to, progress=again)
    assert "another process is downloading it" in messages[0]
    assert to.read_bytes() == DATA


def test_an_interrupted_download_is_continued(site: Site, to: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if done >= 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(site.url, to, progress=interrupt)
    kept = left(to)["archive.tar.gz.part"]
    assert kept >= 100_000
    download(site.url, to, sha256=SHA256)
    assert site.script.asked[-1] == f"bytes={kept}-" or kept == len(DATA)
