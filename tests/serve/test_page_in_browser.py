"""The page in Chromium: a sample is spoken into a fake microphone, files are dropped, and keys do what a mouse does."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.serving import MAINTENANCE, NOTES, SAID, Served, served

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium")
NOTED = "Ask Maria about the letter and the wheel."
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    flags = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with playwright.sync_playwright() as driver:
        speech = f"--use-file-for-fake-audio-capture={MAINTENANCE}%noloop"
        running = driver.chromium.launch(executable_path=CHROMIUM, args=[*flags, speech])
        yield running
        running.close()


@pytest.fixture(params=["desktop"])
def size(request: pytest.FixtureRequest) -> Any:
    return SIZES[request.param]


@pytest.fixture(params=["light"])
def scheme(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def page(browser: Any, server: Served, size: Any, scheme: str) -> Iterator[Any]:
    """The page, ready; it may ask its own server alone, and says no error."""
    options = {"viewport": size, "color_scheme": scheme, "locale": "en-US", "permissions": ["microphone"]}
    context = browser.new_context(**options)
    opened = context.new_page()
    asked: list[str] = []
    errors: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.goto(server.url)
    opened.wait_for_selector("#drafter option", state="attached")
    yield opened
    context.close()
    assert not errors
    own = (server.url, f"blob:{server.url}")
    assert asked and not [url for url in asked if not url.startswith(own)]


def drop(page: Any, *paths: Path) -> None:
    """Files, dropped on the page as a mouse does."""
    page.set_input_files("#files", [])
    data = [[path.name, list(path.read_bytes())] for path in paths]
    page.evaluate(
        """(data) => {
          const carried = new DataTransfer();
          for (const [name, bytes] of data) carried.items.add(new File([new Uint8Array(bytes)], name));
          document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: carried, bubbles: true }));
        }""",
        data,
    )
    page.wait_for_selector(f"li:nth-child({len(paths)}) .done", timeout=60_000)


def text_of(page: Any) -> str:
    return " ".join(" ".join(page.locator("#text li > span").all_text_contents()).split())


def test_what_is_spoken_stands_in_the_page(page: Any) -> None:
    page.click("#record")
    page.wait_for_selector(f"#text:has-text({SAID.split()[2]!r})", timeout=60_000)
    page.wait_for_timeout(2_000)
    page.click("#record")
    page.wait_for_selector(".done", timeout=60_000)
    assert text_of(page) == SAID
    page.click("#again")
    page.wait_for_selector("#about:has-text('faster')", timeout=60_000)
    assert text_of(page) == SAID


# As in Firefox, which refuses to take a microphone at another rate than the device's.
_ONE_RATE = """window.AudioContext = class extends AudioContext {
  constructor(options) {
    super(options);
    this.isRefused = Boolean(options?.sampleRate);
  }
  createMediaStreamSource(stream) {
    if (this.isRefused) throw new DOMException("other rate", "NotSupportedError");
    return super.createMediaStreamSource(stream);
  }
};"""


def test_a_browser_with_one_rate_hears_the_same(page: Any) -> None:
    page.add_init_script(_ONE_RATE)
    page.reload()
    page.wait_for_selector("#drafter option", state="attached")
    page.click("#record")
    page.wait_for_timeout(5_000)
    page.click("#record")
    page.wait_for_selector(".done", timeout=60_000)
    assert text_of(page) == SAID


def test_a_server_with_a_key_is_asked_with_it(browser: Any) -> None:
    with served("-m", "demo", environment={"SPECEDGE_SERVE_API_KEY": "secret"}) as closed:
        context = browser.new_context(permissions=["microphone"], locale="en-US")
        page = context.new_page()
        page.goto(closed.url)
        page.wait_for_selector("#advice:has-text('API key')")
        page.click("#settings summary")
        page.fill("#key", "secret")
        page.press("#key", "Tab")
        page.wait_for_selector("#drafter option", state="attached")
        drop(page, NOTES)
        assert text_of(page) == NOTED
        page.click("#record")
        page.wait_for_timeout(4_000)
        page.click("#record")
        page.wait_for_selector("li:nth-child(2) .done", timeout=60_000)
        assert text_of(page) == SAID
        context.close()


def test_dropped_files_are_transcribed_in_turn(page: Any) -> None:
    drop(page, NOTES, MAINTENANCE)
    assert text_of(page) == NOTED and "English" in page.text_content("#about") and "demo" in page.text_content("#about")
    page.click("li:nth-child(2) .item")
    assert text_of(page) == SAID


def test_a_queue_goes_on_behind_what_is_cancelled(page: Any) -> None:
    page.route("**/transcriptions", lambda route: None, times=1)
    page.set_input_files("#files", [NOTES, MAINTENANCE])
    page.wait_for_selector("li:nth-child(1) .working")
    assert page.locator("li:nth-child(2) .waiting").count() == 1 and page.is_visible("progress")
    page.click("#stop")
    page.wait_for_selector("li:nth-child(2) .done", timeout=60_000)
    assert page.locator("li:nth-child(1) .stopped").count() == 1 and page.is_hidden("#said")
    page.click("#again")
    page.wait_for_selector("#about:has-text('faster')", timeout=60_000)
    assert text_of(page) == NOTED


def test_history_outlives_a_reload_until_it_is_cleared(page: Any) -> None:
    drop(page, NOTES)
    page.reload()
    page.click("#history .item")
    assert text_of(page) == NOTED
    page.click("#text li")
    page.wait_for_selector("#text li[aria-current]")
    page.wait_for_timeout(700)
    assert page.evaluate("player.currentTime") > 0.2
    page.fill("#find", "THE")
    assert page.locator("mark").all_text_contents() == ["the", "the"] and page.text_content("#found") == "1 of 2"
    page.press("#find", "Enter")
    assert page.text_content("#found") == "2 of 2"
    page.click("#clear")
    assert page.is_hidden("#before") and page.is_visible("#welcome")
    page.reload()
    page.wait_for_selector("#drafter option", state="attached")
    assert page.locator(".item").count() == 0


def test_a_sentence_is_played_by_key(page: Any) -> None:
    editor(page)
    page.fill("textarea >> nth=0", "Ask Maria. Please, about.")
    page.press("textarea >> nth=0", "Tab")
    page.wait_for_selector("#text li:nth-child(2)")
    page.focus("#text button")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    begin = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert begin.startswith("Play from 0:0")
    page.wait_for_selector("#text li:last-child[aria-current]")


def test_no_microphone_gets_advice(page: Any) -> None:
    refusal = "Promise.reject(new DOMException('', 'NotFoundError'))"
    page.evaluate(f"() => {{ navigator.mediaDevices.getUserMedia = () => {refusal}; }}")
    page.click("#record")
    page.wait_for_selector("#advice:has-text('plug one in')")
    assert page.locator(".item").count() == 0 and page.is_visible("#welcome")


def downloaded(page: Any, format: str) -> str:
    with page.expect_download() as waiting:
        page.click(f"[data-format={format}]")
    assert waiting.value.suggested_filename == f"notes.{format}"
    return Path(waiting.value.path()).read_text(encoding="utf-8")


def test_downloads_parse(page: Any) -> None:
    drop(page, NOTES)
    time = r"(\d\d):(\d\d):(\d\d){}(\d\d\d)"
    for format, mark in (("srt", ","), ("vtt", r"\.")):
        text = downloaded(page, format)
        cue = rf"(?:\d+\n)?{time.format(mark)} --> {time.format(mark)}\n(.+)\n\n"
        found = re.fullmatch(rf"(?:WEBVTT\n\n)?{cue}", text)
        assert found, text
        assert found[9] == NOTED and found.group(1, 2, 3, 4) < found.group(5, 6, 7, 8)
    assert downloaded(page, "txt") == f"{NOTED}\n"
    value = json.loads(downloaded(page, "json"))
    assert value["text"] == value["segments"][0]["text"] == NOTED
    tokens = value["drafts"][0]["tokens"]
    assert "".join(token["text"] for token in tokens).strip() == NOTED
    page.click("#guesses summary")
    page.wait_for_selector("#tokens .token")
    n_guessed = sum(token["by"] is not None for token in tokens)
    assert page.locator("#tokens .token:not(.by-own)").count() == n_guessed
    assert page.text_content("#figures").startswith(f"{n_guessed} of {len(tokens)} tokens")
    assert value["figures"]["tokens_per_pass"] >= 1


def test_an_error_of_the_server_is_told(page: Any, tmp_path: Path) -> None:
    page.set_input_files("#files", [{"name": "x.wav", "mimeType": "audio/wav", "buffer": b"nonsense"}])
    page.wait_for_selector(".failed", timeout=60_000)
    assert "ffmpeg" in page.text_content("#error") or "audio" in page.text_content("#error")
    assert page.is_hidden("#said") and page.text_content("#about") == ""


REACHABLE = "button:not(:disabled), canvas, select, input, textarea, summary, [tabindex='0']"


def test_keys_reach_everything(page: Any) -> None:
    drop(page, NOTES)
    page.click("#subtitles summary")
    page.evaluate("document.querySelector('#settings').open = true; document.activeElement.blur()")
    wanted = page.evaluate(
        f"""[...document.querySelectorAll("{REACHABLE}")].filter((one) => one.checkVisibility() && one.tabIndex >= 0)
        .map((one, i) => one.dataset.mark = String(i))"""
    )
    reached = set()
    for _ in range(2 * len(wanted)):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.mark"))
    assert len(wanted) > 25 and not set(wanted) - reached
    page.focus("#settings summary")
    page.keyboard.press("Enter")
    assert not page.evaluate("document.querySelector('#settings').open")


# The contrast of each text with the ground behind it, as WCAG 2 counts it.
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const channel = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const colour = rgba(getComputedStyle(one).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const hasText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("body *")]
    .filter((one) => one.checkVisibility() && hasText(one) && !one.closest(":disabled, noscript"))
    .map((one) => {
      const [high, low] = [light(rgba(getComputedStyle(one).color)), light(ground(one))].sort((a, b) => b - a);
      return [one.outerHTML.slice(0, 90), (high + 0.05) / (low + 0.05)];
    });
}"""


@pytest.mark.parametrize(("size", "scheme"), [*itertools.product(SIZES, ("light", "dark"))], indirect=True)
def test_everything_can_be_read_and_nothing_is_beside_the_screen(page: Any, scheme: str) -> None:
    def check() -> None:
        contrasts = page.evaluate(CONTRASTS)
        assert contrasts and not [(text, contrast) for text, contrast in contrasts if contrast < 4.5]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    check()
    page.evaluate("document.querySelector('#settings').open = true")
    drop(page, NOTES)
    page.fill("#find", "the")
    page.click("#guesses summary")
    page.wait_for_selector("#tokens .token")
    for colour in ("green", "yellow", "cyan", "magenta", "blue", "red"):
        page.evaluate(f"document.querySelector('#tokens .token').className = 'token by-{colour}'")
        check()
    page.click("#subtitles summary")
    page.select_option("#tongue", "de")
    assert page.text_content("#record-text") == "Aufnehmen"
    check()
    is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor").startswith("rgb(15,")
    assert is_dark == (scheme == "dark")


def editor(page: Any) -> Any:
    """The open editor of subtitles, of a file in two cues."""
    drop(page, NOTES)
    page.click("#subtitles summary")
    page.focus("textarea")
    page.evaluate("document.querySelector('textarea').setSelectionRange(16, 16)")
    page.keyboard.press("Control+Enter")
    return page.locator("#subtitles")


def texts(page: Any) -> list[str]:
    return [field.input_value() for field in page.locator("textarea").all()]


def times(page: Any) -> list[str]:
    return [field.input_value() for field in page.locator("td input").all()]


def test_cues_are_split_joined_and_undone_with_keys(page: Any) -> None:
    editor(page)
    assert texts(page) == ["Ask Maria about", "the letter and the wheel."]
    start, middle, same, end = times(page)
    assert start < middle == same < end
    page.keyboard.press("Alt+j")
    assert texts(page) == [NOTED] and times(page) == [start, end]
    page.keyboard.press("Control+z")
    page.keyboard.press("Alt+ArrowDown")
    page.keyboard.type(" Then")
    page.keyboard.press("Alt+ArrowUp")
    assert len(texts(page)) == 2 and " Then" in texts(page)[1]
    assert " Then" in downloaded(page, "srt")
    page.click("[data-do=undo]")
    page.click("[data-do=undo]")
    assert texts(page) == [NOTED]
    page.click("[data-do=redo]")
    assert len(texts(page)) == 2


def test_times_follow_the_pointer_and_the_fields(page: Any) -> None:
    canvas = editor(page).locator("canvas")
    page.wait_for_timeout(500)
    before = times(page)
    box = canvas.bounding_box()
    hours, minutes, seconds = before[1].split(":")
    x = box["x"] + float(seconds) / 12 * box["width"]
    page.mouse.move(x, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(x - 12, box["y"] + 20, steps=4)
    page.mouse.up()
    assert before[0] < times(page)[1] < before[1] and times(page)[2:] == before[2:]
    page.fill("td input >> nth=0", "0.5")
    page.press("td input >> nth=0", "Tab")
    assert times(page)[0] == "00:00:00.500"
    page.fill("td input >> nth=0", "99")
    page.press("td input >> nth=0", "Tab")
    assert "00:00:00.500" < times(page)[0] < times(page)[1]
    page.fill("td input >> nth=0", "soon")
    page.press("td input >> nth=0", "Tab")
    assert times(page)[0].startswith("00:00:0")


def test_long_lines_are_told_and_made_to_fit(page: Any) -> None:
    editor(page)
    page.fill("textarea >> nth=0", " ".join(["generator"] * 20))
    assert page.locator(".too-long").count() == 1 and page.text_content(".verdict").startswith("1 ")
    page.click("[data-do=fit]")
    assert page.locator(".too-long").count() == 0 and len(texts(page)) > 3
    for text in texts(page):
        assert all(len(line) <= 42 for line in text.split("\n")) and text.count("\n") < 2
    page.fill(".find", "generator")
    page.fill(".instead", "valve")
    page.click("[data-do=replace]")
    assert " ".join(texts(page)[:-1]).split() == ["valve"] * 20


def test_the_sound_is_played_with_its_caption(page: Any) -> None:
    editor(page)
    page.focus("#subtitles canvas")
    page.keyboard.press(" ")
    page.wait_for_timeout(700)
    assert page.evaluate("document.querySelector('video').currentTime") > 0.2
    page.keyboard.press(" ")
    assert page.text_content(".caption") == "Ask Maria about"
    page.keyboard.press("]")
    assert times(page)[1] < "00:00:01.500"


def test_words_give_the_times_of_a_split(page: Any) -> None:
    page.evaluate("document.querySelector('#words').checked = true")
    editor(page)
    _, middle, later, _ = times(page)
    assert middle <= later and texts(page)[0] == "Ask Maria about"
