"""JSON from strangers: one parser that refuses what other parsers let pass, and a reader that names the key at fault.

Refused: bytes that are not UTF-8, duplicate keys, NaN and Infinity, numbers beyond 64 bits, lone surrogates, nesting or
counts beyond the limits below. Every refusal is one `BundleError` line: file, key, what was found, what was expected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from specedge.errors import BundleError

MAX_DEPTH = 24
MAX_VALUES = 200_000  # a 32-layer decoder's signature is about 5,000
MAX_SHOWN = 60
REMEDY = "the bundle is damaged or was not written by specedge, export it again"


def shown(value: object) -> str:
    """A short ASCII picture of `value` for a message: control characters escaped, long values cut."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return f"an object of {len(value)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        return ascii(value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "...")
    return repr(value) if isinstance(value, float) else f"a {type(value).__name__}"


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`; `where` names the file in messages. Raises BundleError.

    Exact counts, depth and number ranges are left to `check_values`, so that a version number can be looked at first.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise BundleError(f"{where}: the key {shown(twice)} appears twice; {REMEDY}")
        return members

    def refuse(constant: str) -> NoReturn:
        raise BundleError(f"{where}: {constant} is no JSON number; {REMEDY}")

    if data.count(b",") > MAX_VALUES:  # before a small file becomes hundreds of megabytes of objects
        raise BundleError(f"{where}: more than {MAX_VALUES} values; {REMEDY}")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise BundleError(f"{where}: byte {error.start} is not UTF-8; {REMEDY}") from None
    except json.JSONDecodeError as error:
        raise BundleError(f"{where}: no JSON at line {error.lineno} ({error.msg}); {REMEDY}") from None
    except RecursionError:
        raise BundleError(f"{where}: nested deeper than {MAX_DEPTH} levels; {REMEDY}") from None
    except ValueError:  # Python refuses to convert integers of more than 4300 digits
        raise BundleError(f"{where}: a number has too many digits; {REMEDY}") from None
    if not isinstance(value, dict):
        raise BundleError(f"{where}: found {shown(value)}, expected a JSON object; {REMEDY}")
    return value


def check_values(value: object, where: str) -> None:
    """Refuse what strict JSON cannot hold, whatever its key: the free-form parts are checked by this alone.

    Raises BundleError: too deep, too many values, a number that is not finite or beyond 64 bits, a string that is not
    Unicode text, or an object of Python that is no JSON value.
    """
    n_values = 0
    pending: list[tuple[object, int]] = [(value, 1)]
    while pending:
        node, depth = pending.pop()
        n_values += 1
        if depth > MAX_DEPTH:
            raise BundleError(f"{where}: nested deeper than {MAX_DEPTH} levels; {REMEDY}")
        children: Sequence[object] = ()
        if isinstance(node, dict):
            children = [*node, *node.values()]
            if not all(isinstance(key, str) for key in node):
                raise BundleError(f"{where}: an object has a key that is no string; {REMEDY}")
        elif isinstance(node, (list, tuple)):
            children = node
        elif isinstance(node, str):
            if not node.isascii() and any("\ud800" <= c <= "\udfff" for c in node):
                raise BundleError(f"{where}: {shown(node)} is not Unicode text; {REMEDY}")
        elif isinstance(node, float):
            if not math.isfinite(node):
                raise BundleError(f"{where}: a number is not finite; {REMEDY}")
        elif isinstance(node, int):
            if not -(2**63) <= node < 2**63:
                raise BundleError(f"{where}: found {shown(node)}, expected numbers of 64 bits at most; {REMEDY}")
        elif node is not None:
            raise BundleError(f"{where}: {shown(node)} is no JSON value; {REMEDY}")
        if n_values + len(pending) + len(children) > MAX_VALUES:
            raise BundleError(f"{where}: more than {MAX_VALUES} values; {REMEDY}")
        pending.extend([(child, depth + 1) for child in children])


def plain(value: Any) -> Any:
    """A deep copy of a checked JSON value with sorted keys and lists for tuples, so equal values give equal bytes."""
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


class Field:
    """A JSON value together with its file and dotted key; each reader method returns a checked Python value.

    Each raises BundleError where the value has another type or is out of range.
    """

    def __init__(self, value: object, where: str, key: str = "") -> None:
        self.value = value
        self.where = where
        self.key = key

    @property
    def place(self) -> str:
        return f"{self.where}: {self.key}" if self.key else self.where

    def error(self, expected: str) -> BundleError:
        """The error that says what was found here and what was expected."""
        return BundleError(f"{self.place}: found {shown(self.value)}, expected {expected}; {REMEDY}")

    def _child(self, name: str, value: object) -> Field:
        label = name if name.isidentifier() and len(name) <= MAX_SHOWN else shown(name)
        return Field(value, self.where, f"{self.key}.{label}" if self.key else label)

    def mapping(self, max_items: int) -> dict[str, Field]:
        if not isinstance(self.value, dict):
            raise self.error("an object")
        if len(self.value) > max_items:
            raise self.error(f"at most {max_items} members")
        return {name: self._child(name, value) for name, value in self.value.items()}

    def members(self, *names: str, optional: tuple[str, ...] = ()) -> dict[str, Field]:
        """An object with exactly the keys `names`, and any of `optional`."""
        fields = self.mapping(MAX_VALUES)
        for name in names:
            if name not in fields:
                raise BundleError(f"{self.place}: the key {name!r} is missing; {REMEDY}")
        for name in fields:
            if name not in names and name not in optional:
                raise BundleError(f"{self.place}: the key {shown(name)} is unknown in this format version; {REMEDY}")
        return fields

    def items(self, max_items: int) -> list[Field]:
        if not isinstance(self.value, list):
            raise self.error("a list")
        if len(self.value) > max_items:
            raise self.error(f"at most {max_items} items")
        return [Field(item, self.where, f"{self.key}[{i}]") for i, item in enumerate(self.value)]

    def integer(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included; true and 1.0 are none."""
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.error(f"an integer from {low} to {high}")
        return self.value

    def number(self, low: float, high: float) -> float:
        """A finite number from `low` to `high`, both included."""
        if type(self.value) not in (int, float) or not low <= self.value <= high:  # type: ignore[operator]
            raise self.error(f"a number from {low:g} to {high:g}")
        return float(self.value)  # type: ignore[arg-type]

    def text(self, max_length: int = 200) -> str:
        """One line of 1 to `max_length` printable characters."""
        if not isinstance(self.value, str) or not 1 <= len(self.value) <= max_length or not self.value.isprintable():
            raise self.error(f"1 to {max_length} printable characters")
        return self.value

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.error("true or false")
        return self.value

    def choice(self, options: Sequence[str]) -> str:
        if not isinstance(self.value, str) or self.value not in options:
            raise self.error("one of " + ", ".join(options))
        return self.value

    def sha256(self) -> str:
        if not isinstance(self.value, str) or len(self.value) != 64 or not set(self.value) <= set("0123456789abcdef"):
            raise self.error("64 lower-case hexadecimal digits (sha256)")
        return self.value
