"""Traces of a stranger who means ill: every string that a trace, a manifest or a file name can hold is an attack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from browsing.browser import PWNED
from made.traces import MANIFEST, event, launched, op, step, write
from playwright.sync_api import Page

EVIL = "evil.invalid"
"""The host that payloads point at."""

PAYLOADS = {
    "script": f"</script><script>{PWNED}</script>",
    "image": f'<img src="http://{EVIL}/i.png" onerror="{PWNED}"><svg onload="{PWNED}">',
    "attribute": f'" autofocus onfocus="{PWNED}" x="\' onmouseover=\'{PWNED}',
    "frame": f'</textarea></style></title>--><iframe srcdoc="<script>parent.{PWNED}</script>">',
    "markdown": f"![md](http://{EVIL}/md.png) [x](javascript:{PWNED})",
    "autolink": f"<http://{EVIL}/auto> http://{EVIL}/plain `code` **bold** # h",
    "directive": ":red[hot] :material/bug_report: $e^{x}$ :streamlit: :blue-badge[b] :smile:",
    "clear": "\x1b[2J\x1b[31mcleared\x1b]0;title\x07\x9b2J\x08\x08\x7f",
    "osc8": f"\x1b]8;;http://{EVIL}/osc\x1b\\link\x1b]8;;\x1b\\ \x90q\x9c",
    "long": "long" + "k" * 10_000 + "end",
    "reversed": "left\u202egnp.right\u202c\u2066\u2069 \u200f\u061c \ufeffmark",
    "hebrew": "\u05d0\u05d1\u05d2 kernel",
    "control": "nul\x00nul\r\nnew\u2028line\ttab",
    "surrogate": "half\ud83d half",
    "vega": "datum['part'].x[0]\\\"'` ${1} {{x}} %s {0}",
    "formula": "=cmd|' /C calc'!A0",
    "rich": f"[red]hot[/red] [link=http://{EVIL}/rich]x[/link] [/] [bold",
    "entity": "&lt;b&gt; &amp; <b>bold</b> <a href=//evil.invalid>a</a>",
}
"""By what it tries: script, markup, Markdown, terminal orders, length, direction, expressions, formulas."""

TEXTS = list(PAYLOADS.values())
FILE_NAMES = [
    f"<img src=x onerror={PWNED}> rank0.json",
    f"![md](http:{EVIL}) \x1b[31m\x1b]0;title\x07 rank1.json",
]
"""What the traces are called: as hostile as a file system allows, which takes no slash and no NUL."""
FOLDERS = {
    "engine": f"<img src=x onerror={PWNED}> [red]hot[-red] engine",
    "gpu": f"![md](http:{EVIL}) :red[hot] \x1b[31m\u202e gpu",
    "broken": f"</script><script>{PWNED}< broken \x1b]0;title\x07",
}
"""Names of the runs."""


def markup_of(page: Page) -> list[str]:
    """Whatever in the page's document came of a payload: handlers, links, pictures, script, formulas, icons, coloured
    words.
    """
    found: list[str] = page.evaluate(_MARKUP, EVIL)
    return found


_MARKUP = """(evil) => {
  const found = [];
  const all = (root) => [...root.querySelectorAll('*')].flatMap((node) =>
    node.shadowRoot ? [node, ...all(node.shadowRoot)] : [node]);
  for (const node of all(document)) {
    for (const {name, value} of node.attributes ?? []) {
      if (/^on/.test(name)) found.push(`${node.tagName} ${name}=${value}`);
      if (name === 'srcdoc' && value.includes('pwned')) found.push(`${node.tagName} ${name}=${value}`);
      if (['src', 'href', 'srcset', 'action', 'data', 'xlink:href'].includes(name)
        && (value.includes(evil) || /^\\s*javascript:/i.test(value))) found.push(`${node.tagName} ${name}=${value}`);
    }
    const style = node.getAttribute('style') ?? '';
    if (style.includes(evil)) found.push(`${node.tagName} style=${style}`);
    if (node.tagName === 'SCRIPT' && node.textContent.startsWith('window.pwned')) found.push('SCRIPT');
    if (node.matches('.katex, .MathJax')) found.push(`math ${node.textContent}`);
    if (node.matches('[data-testid=stIconMaterial]') && node.textContent.includes('bug_report')) found.push('icon');
    const plain = node.children.length === 0 && ['hot', 'bold', 'b'].includes(node.textContent.trim());
    if (plain && node.tagName !== 'TSPAN') found.push(`${node.tagName} of markup: ${node.outerHTML.slice(0, 80)}`);
  }
  return found;
}"""


def hostile_runs(folder: Path) -> Path:
    """Put an engine's run, a foreign GPU run and one that cannot be read there, each of two ranks."""
    for kind in FOLDERS:
        (folder / FOLDERS[kind]).mkdir(parents=True)
    for rank, file in enumerate(FILE_NAMES):
        engine_like, gpu_like = _engine_events(rank), _gpu_events(rank)
        write(folder / FOLDERS["engine"] / file, engine_like, distributedInfo=_info(rank, "gloo"))
        write(folder / FOLDERS["gpu"] / file, gpu_like, distributedInfo=_info(rank, "nccl"))
        (folder / FOLDERS["broken"] / file).write_bytes(b"\x1f\x8b no gzip")
    (folder / FOLDERS["engine"] / "run.json").write_text(json.dumps(_manifest()))
    return folder


def _info(rank: int, backend: str) -> dict[str, Any]:
    groups = [
        {"pg_name": f"{place} {text}", "pg_desc": text, "backend_config": text, "pg_size": 2, "ranks": [0, 1]}
        for place, text in enumerate(TEXTS)
    ]
    return {"rank": rank, "world_size": 2, "backend": backend, "pg_config": groups}


def _names() -> list[dict[str, Any]]:
    """Names of threads and processes."""
    return [
        {"ph": "M", "name": name, "pid": 9, "tid": tid, "ts": 0, "args": {key: TEXTS[tid % len(TEXTS)]}}
        for name, key in (("thread_name", "name"), ("process_name", "name"), ("process_labels", "labels"))
        for tid in (1, 7, 20)
    ]


def _label(text: str, start: float, end: float, tid: object = 1) -> dict[str, Any]:
    return event(f"engine::{text}", start, end, cat="user_annotation", tid=tid)


def _engine_events(rank: int) -> list[dict[str, Any]]:
    """A step of buckets and gathers, one of each per payload, in the engine's labels; threads are payloads, too."""
    count = len(TEXTS)
    width = 100 * count
    found = [
        *_names(),
        step(0, 0, 3 * width),
        _label("forward microbatch=0", 0, width),
        _label("backward microbatch=0 sync=1", width, 2 * width),
        op("mm", 0, width),
        op("mm", width + 10, 2 * width, tid=2),
    ]
    for place, text in enumerate(TEXTS):
        name, start = quote(text, safe="", errors="surrogatepass"), width + 100 * place + 10 * rank
        found += [
            event(f"aten::{text}", 2 * width + 20 * place, 2 * width + 20 * place + 15, tid=2),
            event(text, 2 * width + 20 * place, 2 * width + 20 * place + 15, cat="user_annotation", tid=f"{text}"),
            _label(f"gradient_ready parameter={name}", start, start + 1, tid=2),
            _label(f"bucket_ready bucket={place} bytes=4000 parameters={name}", start + 2, start + 3, tid=2),
            _label(f"bucket_launch bucket={place}", start + 4, start + 8, tid=2),
            _label(f"launch seq={2 * place}", start + 5, start + 6, tid=2),
            _label(
                f"comm seq={2 * place} kind=all_reduce dtype={name} bytes=4000 group={name}", start + 10, start + 60, 7
            ),
            _label(f"bucket_done bucket={place}", 2 * width + place, 2 * width + place + 1),
        ]
        where, at = f"unit=layers.{name}.{place} phase=forward microbatch=0", 100 * place
        found += [
            _label(f"gather_launch {where} bytes=4000", at + 1, at + 5),
            _label(f"launch seq={2 * place + 1}", at + 2, at + 3),
            _label(
                f"comm seq={2 * place + 1} kind=all_gather dtype=float32 bytes=4000 group={name}",
                at + 6,
                at + 40,
                f"comm {text}",
            ),
            _label(f"gather_wait {where}", at + 10, at + 40),
            _label(f"first_use {where}", at + 41, at + 42),
            _label(f"last_use {where}", at + 80, at + 81),
            _label(f"free {where} bytes=4000", at + 90, at + 91),
        ]
    return found


def _gpu_events(rank: int) -> list[dict[str, Any]]:
    """A step of kernels and collectives of a foreign trainer, one of each per payload."""
    count = len(TEXTS)
    found = [*_names(), step(3, 0, 400 * count)]
    for place, text in enumerate(TEXTS):
        start = 300 * place + 20 * rank
        told = {
            "Collective name": f"allreduce {text}" if place % 2 else "allreduce",
            "Process Group Name": f"{place} {text}",
            "Process Group Description": text,
            "dtype": text,
            "Group size": 2,
            "In msg nelems": 1000,
            "Out msg nelems": 1000,
        }
        kernel = launched(
            f"ncclDevKernel_AllReduce{text}", start + 3, start + 80, start + 200, stream=20, correlation=2 * place + 1
        )
        kernel[1]["args"] |= told
        found += [
            *launched(f"sgemm{text}", start, start + 10, start + 100, correlation=2 * place),
            *kernel,
            event(f"c10d::{text}", start + 2, start + 6),
            event(text, start, start + 40, cat="user_annotation"),
        ]
    return found


def _manifest() -> dict[str, Any]:
    """run.json with a payload wherever it holds a text."""
    whole = {
        name: text for name, text in PAYLOADS.items() if name != "surrogate"
    }  # half of one is no JSON for run.json
    mixed = " ".join(text for text in whole.values() if len(text) < 1000)
    return MANIFEST | {
        "strategy": PAYLOADS["markdown"] + PAYLOADS["clear"] + PAYLOADS["script"],
        "device": PAYLOADS["image"],
        "backend": mixed,
        "world_size": 2,
        "command": mixed,
        "started_at": PAYLOADS["script"],
        "versions": whole,
        "hardware": {text: text for text in whole.values()},
        "model": {"layers": 2, "dtype": PAYLOADS["script"], "parameters": 18_000},
        "link": {"emulated": True, "bandwidth_gbps": 1.0, "latency_us": 200.0, "world_size": 2, "name": mixed},
        "parameters": [
            {"name": text, "shape": [1000], "dtype": text, "bytes": 4000, "unit": f"layers.{text}.{place}"}
            for place, text in enumerate(whole.values())
        ],
        "buckets": [{"index": place, "bytes": 4000, "parameters": [text]} for place, text in enumerate(whole.values())],
        "units": [
            {"name": f"layers.{text}.{place}", "bytes": 4000, "parameters": [text]}
            for place, text in enumerate(whole.values())
        ],
    }
