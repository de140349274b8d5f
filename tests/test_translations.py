"""The Chinese pages say what the English ones say: section by section the same structure, commands, links, pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from overlaplab.causes import Cause

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted(f"docs/tutorials/{file.name}" for file in (ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = (
    "README",
    "docs/exposed",
    "docs/actions",
    "docs/watching",
    "docs/dashboard",
    *(name.removesuffix(".md") for name in TUTORIALS if ".zh-CN" not in name),
)


def page(name: str) -> str:
    return (ROOT / name).read_text()


def without_comments(code: str) -> str:
    return re.sub(r"(^|\s+)#.*$", "", code, flags=re.MULTILINE)


def told(token: Token) -> list[tuple[str, str]]:
    """What a token holds that is not translated: code, and where links and pictures lead, whatever the language."""
    target = str(token.attrGet("href") or token.attrGet("src") or "").replace(".zh-CN", "")
    code = token.content if token.type in ("fence", "code_inline") else ""
    own = (token.type + token.info, target + without_comments(code))
    return [own, *(pair for child in token.children or () for pair in told(child))]


def sections(text: str) -> list[dict[str, Sequence[object]]]:
    """Per section: its blocks in order, down to list items and table cells; its code, links and pictures, sorted, as
    words change places between languages, and code named twice may be named once."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    heads = [place for place, token in enumerate(tokens) if token.type == "heading_open"]
    return [
        {
            "blocks": [(token.type, token.tag) for token in part],
            "code blocks": [told(token) for token in part if token.type == "fence"],
            "code": sorted({pair for token in part for pair in told(token) if pair[0] == "code_inline"}),
            "targets": sorted(pair for token in part for pair in told(token) if pair[0] in ("link_open", "image")),
        }
        for part in (tokens[start:end] for start, end in pairwise([*heads, len(tokens)]))
    ]


def differences(english: str, chinese: str) -> list[str]:
    """The first difference of each kind in each section, numbered from 1; empty where the pages are equal."""
    ours, theirs = sections(english), sections(chinese)
    found = [] if len(ours) == len(theirs) else [f"{len(ours)} sections, translated {len(theirs)}"]
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False), 1):
        for what in our:
            pairs = zip_longest(our[what], their[what])
            found += [f"section {number}, {what}: {a}, translated {b}" for a, b in pairs if a != b][:1]
    return found


@pytest.mark.parametrize("name", PAGES)
def test_the_translation_has_what_the_english_page_has(name: str) -> None:
    found = differences(page(f"{name}.md"), page(f"{name}.zh-CN.md"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n## Which setting\n", "\n## Another section\n\nWords.\n\n## Which setting\n"),
        ("\n## Which setting\n", "\n### Which setting\n"),
        ("overlaplab predict runs/mine ", "overlaplab predict runs/mine --json "),
        ("`pip install overlaplab` (208 MB) has", "`pip install overlaplab` (208 MB) or `pip download overlaplab` has"),
        ("(docs/ci.md)", "(docs/gpus.md)"),
        ("(docs/summary.png)", "(docs/compare.png)"),
        ("\n- a **verdict**", "\n- Another thing.\n- a **verdict**"),
        ("and experiment trackers.\n", "and experiment trackers.\n\nAnother paragraph.\n"),
    ],
)
def test_what_readme_gains_alone_is_a_difference(old: str, new: str) -> None:
    english = page("README.md")
    assert english.count(old) == 1
    assert differences(english.replace(old, new), page("README.zh-CN.md"))


def test_a_table_that_gains_a_row_or_a_column_is_a_difference() -> None:
    table = "# T\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert differences(table, table.replace("a", "甲")) == []
    assert differences(table, table + "| 3 | 4 |\n")
    assert differences(table, "# T\n\n| a | b | c |\n|---|---|---|\n| 1 | 2 | 3 |\n")


def test_comments_may_be_translated() -> None:
    assert differences("# T\n\n```sh\nls  # here\n```\n", "# 题\n\n```sh\nls    # 这里\n```\n") == []


@pytest.mark.parametrize("name", PAGES)
def test_links_and_pictures_exist_and_markup_is_whole(name: str) -> None:
    file = ROOT / f"{name}.zh-CN.md"
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", file.read_text()):
        assert (file.parent / target).exists(), target
    for token in MarkdownIt("commonmark").enable("table").parse(file.read_text()):
        # Full-width punctuation beside an asterisk can keep CommonMark from reading it as emphasis.
        assert not [child for child in token.children or () if child.type == "text" and "*" in child.content]


def test_the_glossary_explains_every_cause_as_the_screen_names_it() -> None:
    glossary = page("docs/glossary.zh-CN.md")
    assert not [cause.label for cause in Cause if f"| {cause.label} |" not in glossary]


@pytest.mark.parametrize("language", ["", ".zh-CN"])
def test_the_guide_explains_words_that_are_on_the_screen(language: str) -> None:
    """Each of the guide's tables has the English words in its first column, several of them with slashes between."""
    rows = re.findall(r"^\| ([^|]*[a-z]{2}[^|]*) \|", page(f"docs/dashboard{language}.md"), re.MULTILINE)
    words = [word for row in rows for word in row.split(" / ")]
    assert len(words) > 60
    sources = [file for suffix in ("py", "js", "html") for file in (ROOT / "overlaplab").rglob(f"*.{suffix}")]
    screen = re.sub(r"\s+", " ", re.sub(r'"\s*f?"', "", "\n".join(file.read_text() for file in sources)))
    assert [word for word in words if word not in screen] == []
