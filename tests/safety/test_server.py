"""The real server, spoken to as a foreign page, a forged link and a careless user would."""

from __future__ import annotations

import http.client
import os
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from browsing.audited_server import Served
from browsing.browser import visit
from browsing.stream_client import User, words
from hostile.bombs import write_bomb
from hostile.traces import FOLDERS
from made.runs import engine_events
from made.traces import run_of
from playwright.sync_api import Page

SECRET = "the-strategy-of-a-run-outside"


def ask(address: str, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """The server's answer to one request: status, headers in lower case, body."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=300)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def outside(strangers: Path) -> Path:
    """Runs beside the opened folder, and ways out of it."""
    secret = {"strategy": SECRET}
    run_of(strangers.parent / "outside", engine_events(), manifest=secret)
    run_of(strangers.parent / f"{strangers.name}-too", engine_events(), manifest=secret)
    (strangers / "link").symlink_to(strangers.parent / "outside")
    (strangers / "pipe").mkdir()
    os.mkfifo(strangers / "pipe" / "rank0.json")
    return strangers.parent / "outside"


def test_no_link_leads_out_of_the_folder(app: Served, strangers: Path, outside: Path) -> None:
    """`run` in the query string; and Compare reads only what the folder holds."""
    names = [
        "../outside",
        f"../{strangers.name}-too",
        str(outside),
        f"{FOLDERS['gpu']}/../../outside",
        "link",
        "pipe",
        "link\0",
        "\0",
        "%2e%2e/outside",
        "..\\outside",
        "file:///etc",
        "/uploaded 1",
        "s3://bucket/run",
        "x" * 10_000,
    ]
    with User(app.address) as user:
        for name in names:
            shown = user.show("zero3", f"run={quote(name, safe='')}")
            assert SECRET not in str(shown), name
            assert len(shown) > 3, name
        assert SECRET not in str(user.show("compare", f"run={quote(FOLDERS['broken'], safe='')}"))


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../../../etc/passwd",
        "/static/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/app/static/..%2f..%2fetc%2fpasswd",
        "/media/..%2f..%2fetc%2fpasswd",
        "/component/overlaplab/..%2f..%2f..%2fetc%2fpasswd",
        "/_stcore/bidi-components/overlaplab/..%2f..%2fmain.py",
        "//etc/passwd",
        "/%00",
        "/rank0.pt.trace.json.gz",
    ],
)
def test_no_path_is_read(app: Served, path: str) -> None:
    status, _, body = ask(app.address, "GET", path)
    page = ask(app.address, "GET", "/")[2]
    assert status >= 400 or body == page
    assert b"root:" not in body
    assert b"def main" not in body


def test_values_of_a_link_are_a_strangers(app: Served) -> None:
    """Any value of any parameter gives a page: no exception, and none of it is drawn."""
    with User(app.address) as user:
        for value in ("-1", "9" * 30, "٣", "<b>pwned</b>", "\0"):
            query = "&".join(
                f"{name}={quote(value, safe='')}" for name in ("rank", "ranks", "step", "from", "to", "event", "x")
            )
            for page in ("summary", "timeline"):
                shown = user.show(page, query)
                assert len(shown) > 3
                assert "pwned</b>" not in words(shown)


def test_what_was_sent_without_the_token_is_refused(page: Page, app: Served, strangers: Path) -> None:
    """An upload, which is the one thing that the server takes; from the app's page, a forged one, too large."""
    asked: list[Any] = []
    page.on("request", lambda request: asked.append(request) if request.method == "PUT" else None)
    visit(page, app.address)
    page.get_by_text("Open traces from this computer").click()
    trace = {"name": "rank0.json", "mimeType": "application/json", "buffer": b'{"traceEvents": []}'}
    with page.expect_response(lambda response: response.request.method == "PUT") as answered:
        page.locator("[data-testid=stFileUploader] input").set_input_files([trace])
    assert answered.value.status < 300
    path = urlsplit(asked[0].url).path
    cookies = "; ".join(f"{cookie['name']}={cookie['value']}" for cookie in page.context.cookies())
    token = asked[0].all_headers()["x-xsrftoken"]
    version, mask, secret, at = token.split("|")
    forged = f"{version}|{mask}|{secret[::-1]}|{at}"
    sent = {"Content_Type": "multipart/form-data; boundary=b", "Origin": app.address}
    assert ask(app.address, "PUT", path, **sent)[0] == 403
    assert ask(app.address, "PUT", path, Cookie=cookies, **sent)[0] == 403
    assert ask(app.address, "PUT", path, Cookie=cookies, X_Xsrftoken=forged, **sent)[0] == 403
    large = {"Cookie": cookies, "X_Xsrftoken": token, "Content_Length": str(300_000_000)}
    assert ask(app.address, "PUT", path, **{**sent, **large})[0] == 413
    assert ask(app.address, "PUT", "/_stcore/upload_file/0/0", Cookie=cookies, X_Xsrftoken=token, **sent)[0] == 400


def test_a_foreign_origin_may_read_nothing(app: Served) -> None:
    for path in ("/_stcore/health", "/_stcore/host-config", "/_stcore/metrics", "/"):
        headers = ask(app.address, "GET", path, Origin="http://evil.invalid")[1]
        assert headers.get("access-control-allow-origin") not in ("*", "http://evil.invalid")


@pytest.mark.parametrize("path", ["/_stcore/agent/interact", "/_stcore/agent/mcp"])
def test_nothing_but_a_browser_drives_the_app(app: Served, path: str) -> None:
    """Streamlit's interface for programs is off."""
    assert ask(app.address, "POST", path, Content_Type="application/json")[0] >= 400


def test_other_machines_cannot_reach_it(app: Served) -> None:
    port = urlsplit(app.address).port or 0
    others = {"127.0.0.2", *socket.gethostbyname_ex(socket.gethostname())[2]} - {"127.0.0.1"}
    for other in others:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((other, port), timeout=5)


def test_a_bomb_in_the_folder_costs_little_memory(app: Served, strangers: Path) -> None:
    """2 GB in 2 MB: one line instead of the page, and the server stays small."""
    (strangers / "bomb").mkdir()
    file = write_bomb(strangers / "bomb" / "rank0.json.gz", 2 << 30)
    assert file.stat().st_size < (2 << 30) / 900
    with User(app.address) as user:
        user.show("summary", f"run={quote(FOLDERS['broken'], safe='')}")
        before = app.most_memory()
        shown = user.show("summary", "run=bomb")
        assert "rank0.json.gz: unpacks to over 50 times its size" in words(shown)
        assert app.most_memory() - before < 320 << 20  # 64 MB are read, and cut into events, before it shows
    (strangers / "bomb" / "rank0.json.gz").unlink()
    (strangers / "bomb").rmdir()


def test_the_server_speaks_to_nobody(app: Served) -> None:
    """No telemetry, no look-up of its own address: all that it, and what it starts, connects to is this machine."""
    with User(app.address) as user:
        user.show("summary")
    seen = app.connections.read_text().splitlines()
    assert any(line.startswith("socket.bind ('127.0.0.1'") for line in seen)
    strange = [
        line for line in seen if not re.search(r"'(127\.0\.0\.1|localhost)'|^socket\.\w+ ('/|b'|/|'')|None", line)
    ]
    assert strange == []
