"""Token maps that are cut, flipped, foreign, newer, or well sealed and lying: one `MapError` line each, or no harm."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import MapError
from specedge.maps.build import BuildOptions
from specedge.maps.token_map import TokenMap
from support.token_maps import FINGERPRINT, N_TEXT, answers, make_map, sealed, sections_of

SENTENCES = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 4], [7, 2, 3], [1, 2, 8, 8, 8, 8]] * 2
CONTEXTS = [list(c) for n in range(4) for c in itertools.product([1, 2, 3, 7, 8], repeat=n)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("maps") / "x.tmap"
    return make_map(path, SENTENCES, BuildOptions(n_orders=5)).read_bytes()


def _opened(folder: Path, data: bytes) -> TokenMap:
    path = folder / "hostile.tmap"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return TokenMap.open(path)


def _refusal(folder: Path, data: bytes) -> str:
    with pytest.raises(MapError) as caught:
        _opened(folder, data)
    message = str(caught.value)
    assert message.startswith(str(folder / "hostile.tmap")) and "\n" not in message
    assert caught.value.exit_code == 4
    return message


def test_a_sound_map_is_small_and_comes_back_through_the_helpers(sound: bytes) -> None:
    assert len(sound) <= 5000
    assert sealed(sections_of(sound)) == sound


def test_every_flip_of_a_byte_is_refused(sound: bytes, tmp_path: Path) -> None:
    """Three values for each byte: the lowest bit, all bits, zero or one."""
    path = tmp_path / "hostile.tmap"
    path.write_bytes(sound)
    with open(path, "r+b", buffering=0) as file:
        for at, right in enumerate(sound):
            for wrong in {right ^ 1, right ^ 0xFF, 0 if right else 1} - {right}:
                file.seek(at)
                file.write(bytes([wrong]))
                with pytest.raises(MapError):
                    TokenMap.open(path)
            file.seek(at)
            file.write(bytes([right]))
    TokenMap.open(path).close()


def test_every_truncation_is_refused(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "hostile.tmap"
    path.write_bytes(sound)
    with open(path, "r+b") as file:
        for size in reversed(range(len(sound))):
            file.truncate(size)
            with pytest.raises(MapError):
                TokenMap.open(path)


def _edited(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: b"", "the file is empty"),
        (lambda d: d[:40], "no token map of version 1 or 3, or it is cut short"),
        (lambda d: _edited(d, 0, b"GGUF"), "this is no token map"),
        (lambda d: d.replace(b"\r\n", b"\n", 1), "this is no token map"),
        (lambda d: _edited(d, 5, b"2"), "version 1 or 3, or it is cut short; build it again with `specedge map build`"),
        (lambda d: _edited(d, 5, b"3"), "entries cannot be"),
        (lambda d: _edited(d, 12, struct.pack("<I", 25)), "a section table of 25 entries"),
        (lambda d: _edited(d, 8, d[8:12][::-1]), "the header is damaged"),
        (lambda d: d + b"\0", "the file is cut short or changed"),
        (lambda d: _edited(d, 32, b"\xff"), "the header is damaged"),
        (
            lambda d: sealed(sections_of(d), n_text=0),
            "the header is damaged: its checksum does not match, or its numbers",
        ),
        (lambda d: _edited(d, len(d) - 1, b"\xee"), "damaged: the checksum of section 'pool'"),
    ],
)
def test_each_error_of_the_file(sound: bytes, tmp_path: Path, edit, message: str) -> None:  # type: ignore[no-untyped-def]
    assert message in _refusal(tmp_path, edit(sound))


def _u(width: int, *values: int) -> bytes:
    return np.array(values, dtype=f"<u{width}").tobytes()


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("meta", lambda b: b"[1]", "no JSON object"),
        ("meta", lambda b: b'{"a":"\xff"}', "no JSON"),
        ("meta", lambda b: b"[" * 60000, "no JSON"),
        ("meta", lambda b: b" " * 70000, "impossible length"),
        ("keys1", lambda b: b + b"\0", "impossible length"),
        ("keys2", lambda b: b[8:16] + b[:8] + b[16:], "'keys2' is wrong: its keys do not rise"),
        ("keys1", lambda b: b[:-8] + _u(8, 1 << 40), "its keys do not rise or are none"),
        ("old5", lambda b: b[:-2], "'old5' is wrong: an impossible length"),
        ("csr1", lambda b: b"", "impossible length"),
        ("csr1", lambda b: b[:-4] + _u(4, 2**32 - 1), "'csr1' is wrong: it does not fit"),
        ("csr2", lambda b: b[:4] + b[8:12] + b[8:], "'csr2' is wrong: it does not fit"),
        ("csr4", lambda b: b[:-8] + b[-4:] * (N_TEXT + 2), "impossible length|does not fit"),
        ("first1", lambda b: b[4:] + b[:4], "'first1' is wrong"),
        ("first5", lambda b: b[:-4] + _u(4, 2**32 - 1), "4294967295 candidates, expected"),
        ("len", lambda b: b"\0" + b[1:], "length is not 1 to 64"),
        ("ref", lambda b: b[:-4] + b"\xff" * 4, "a candidate ends beyond the pool"),
        ("count", lambda b: b[1:], "impossible length"),
        ("confat", lambda b: b"\1" + b[1:], "does not add up"),
        ("conf", lambda b: b[1:], "confidences for"),
        ("pool", lambda b: b[:-2] + _u(2, N_TEXT), "a token id is not below 40"),
    ],
)
def test_each_lie_of_a_well_sealed_map(  # type: ignore[no-untyped-def]
    sound: bytes, tmp_path: Path, section: str, change, message: str
) -> None:
    contents = sections_of(sound)
    contents[section] = change(contents[section])
    found = _refusal(tmp_path, sealed(contents))
    assert any(part in found for part in message.split("|")), found


def test_sections_out_of_order_or_with_bytes_between_are_refused(sound: bytes, tmp_path: Path) -> None:
    contents = sections_of(sound)
    swapped = contents | {"len": contents["count"]}
    reordered = {name: swapped[name] for name in sorted(swapped)}
    assert "section 0 is not 'meta'" in _refusal(tmp_path, sealed(reordered))
    plain = contents | {"meta": b"{}"}
    data = sealed(plain)
    at = data.index(b"{}") + 2
    assert "section 1 is not 'keys1', right behind" in _refusal(tmp_path, _edited(data, at, b"!"))


def test_files_that_are_no_files(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.tmap", tmp_path):
        with pytest.raises(MapError, match="cannot read the token map"):
            TokenMap.open(path)


_SECTIONS = [f"{kind}{n}" for n in range(1, 6) for kind in ("keys", "csr", "first")]
_NAMES = [*_SECTIONS, "old5", "ref", "len", "count", "confat", "conf", "pool", "meta"]
_edits = st.tuples(
    st.sampled_from(_NAMES),
    st.integers(0, 400),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2, 5, 0xFF, 0xFFFF, 2**31, 2**32 - 1, 2**63]),
    st.sampled_from(["set", "set", "set", "insert", "delete"]),
)


@settings(max_examples=150)
@given(edits=st.lists(_edits, min_size=1, max_size=3), n_text=st.sampled_from([N_TEXT, 3, 65534]))
def test_well_sealed_lies_only_ever_give_map_errors(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, int, int, int, str]], n_text: int
) -> None:
    contents = sections_of(sound)
    for name, at, width, value, kind in edits:
        old = contents[name]
        at = min(at * width, len(old) // width * width)
        new = (value % 256**width).to_bytes(width, "little")
        rest = old[at:] if kind == "insert" else old[at + width :]
        contents[name] = old[:at] + (b"" if kind == "delete" else new) + rest
    data = sealed(contents, n_text=n_text)
    path = tmp_path_factory.getbasetemp() / "lie.tmap"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with TokenMap.open(path, fingerprint=FINGERPRINT) as opened:
            for _, found in answers(opened, CONTEXTS[:60]):
                for candidate in found:
                    assert len(candidate.confidences) == len(candidate.tokens) + candidate.ends <= 64
                    assert all(0 <= id_ < n_text for id_ in candidate.tokens)
            opened.info()
    except MapError as error:
        assert "\n" not in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= 2 * len(data) + (1 << 20)
