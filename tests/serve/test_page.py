"""The page of `specedge serve`: its size, and that it needs nothing but its own server."""

from __future__ import annotations

import re

import httpx

from support.serving import Served
from support.tree import ROOT

PAGE = ROOT / "serve" / "page"
# The name of the format of SVG, which no browser fetches.
NAMESPACE = "http://www.w3.org/2000/svg"


def test_no_file_of_the_page_names_another_origin() -> None:
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace(NAMESPACE, "")
        assert not re.search(r"\bhttps?:|\bwss?:|url\(|[\"'(=]//", text), path.name


def test_every_text_is_in_both_languages() -> None:
    words = (PAGE / "words.js").read_text(encoding="utf-8")
    entries = re.findall(r"^\t(\w+): \[(.*?)\],$", words, re.MULTILINE | re.DOTALL)
    assert len(entries) > 50
    for name, texts in entries:
        assert len(re.findall(r'"[^"]+"', texts)) == 2, name


def test_every_text_that_the_page_asks_for_exists() -> None:
    words = (PAGE / "words.js").read_text(encoding="utf-8")
    known = set(re.findall(r"^\t(\w+): \[", words, re.MULTILINE))
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    asked = set(re.findall(r'data-t(?:-label|-hint)?="(\w+)"', html))
    for path in PAGE.glob("*.js"):
        asked |= set(re.findall(r'\b(?:say|tile)\("(\w+)"', path.read_text(encoding="utf-8")))
    assert asked and asked <= known, asked - known


def test_the_page_is_served_under_a_strict_policy(server: Served) -> None:
    for path in ("/", *(f"/{path.name}" for path in PAGE.iterdir())):
        answer = httpx.get(server.url + path)
        assert answer.status_code == 200 and "default-src 'self'" in answer.headers["content-security-policy"], path
        assert "unsafe" not in answer.headers["content-security-policy"], path
    assert httpx.get(f"{server.url}/page.js").headers["content-type"].startswith("text/javascript")
    assert httpx.get(f"{server.url}/../app.py").status_code == 404
