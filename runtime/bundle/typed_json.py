"""JSON from strangers: a parser that refuses what others let pass, and a reader by the annotations of dataclasses.

Refused: bytes that are not UTF-8, duplicate keys, NaN and Infinity, lone surrogates, too many values. Every refusal is
one `BundleError` line: file, key, what was found, what was expected.
"""

from __future__ import annotations

import collections
import functools
import json
import reprlib
import types
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from specedge.errors import BundleError

MAX_VALUES = 200_000  # a 32-layer decoder's signature is about 5,000
MAX_SHOWN = 60
MAX_TEXT = 1000
T = TypeVar("T")
REMEDY = "the bundle is damaged or was not written by specedge, export it again"


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 1
_SHORT.maxstring = _SHORT.maxother = MAX_SHOWN


def shown(value: object) -> str:
    """A short picture of `value` for a message: control characters escaped, long values cut."""
    return _SHORT.repr(value)


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`; `where` names the file in messages. Raises BundleError.

    The values are left to `check_values`, so that a version number can be looked at first.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            twice = collections.Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise BundleError(f"{where}: the key {shown(twice)} appears twice; {REMEDY}")
        return members

    if data.count(b",") > MAX_VALUES:  # before a small file becomes hundreds of megabytes of objects
        raise BundleError(f"{where}: more than {MAX_VALUES} values; {REMEDY}")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except RecursionError:
        raise BundleError(f"{where}: nested too deeply; {REMEDY}") from None
    except ValueError as error:  # no UTF-8, no JSON, or a number of more digits than Python converts
        raise BundleError(f"{where}: no JSON ({str(error)[:100]}); {REMEDY}") from None
    if not isinstance(value, dict):
        raise BundleError(f"{where}: found {shown(value)}, expected a JSON object; {REMEDY}")
    return value


def check_values(value: object, where: str) -> None:
    """Refuse what strict JSON cannot hold, whatever its key: the free-form parts are checked by this alone.

    Raises BundleError for a value that is no Unicode text, finite number, true, false or null.
    """
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except RecursionError:
        raise BundleError(f"{where}: nested too deeply; {REMEDY}") from None
    except (TypeError, ValueError) as error:
        expected = "Unicode text, finite numbers, true, false or null"
        raise BundleError(f"{where}: {str(error)[:100]}, expected {expected}; {REMEDY}") from None


def refusal(value: object, where: str, key: str, expected: str) -> BundleError:
    """The error that says what was found at `key` of the file `where` and what was expected."""
    place = f"{where}: {key}" if key else where
    return BundleError(f"{place}: found {shown(value)}, expected {expected}; {REMEDY}")


def inner(key: str, name: str) -> str:
    """The dotted key of the member `name` of the object at `key`."""
    label = name if name.isidentifier() and len(name) <= MAX_SHOWN else shown(name)
    return f"{key}.{label}" if key else label


def members(value: object, where: str, key: str) -> dict[str, Any]:
    """`value`, an object. Raises BundleError."""
    if not isinstance(value, dict):
        raise refusal(value, where, key, "an object")
    return value


def read_object(kind: type[T], value: object, where: str, key: str = "", **others: Any) -> T:
    """A dataclass from an object with exactly its fields. Raises BundleError.

    others: annotations of fields that replace those of the class. A `problem` of the class says of one that was made
    which field is wrong and what was expected, None if none is.
    """
    found = members(value, where, key)
    owner: Any = kind
    hints = {**_hints(owner), **others}
    if found.keys() != hints.keys():
        check_keys(found, hints, where, key)
    made = kind(**{name: read(hint, found[name], where, inner(key, name)) for name, hint in hints.items()})
    problem = getattr(made, "problem", None)
    wrong = problem() if problem is not None else None
    if wrong is not None:
        name, expected = wrong
        raise refusal(found[name], where, inner(key, name), expected)
    return made


def check_keys(found: Mapping[str, Any], wanted: Mapping[str, Any], where: str, key: str = "") -> None:
    """Raise BundleError for a key that is missing or unknown."""
    place = f"{where}: {key}" if key else where
    for name in wanted:
        if name not in found:
            raise BundleError(f"{place}: the key {name!r} is missing; {REMEDY}")
    for name in found:
        if name not in wanted:
            raise BundleError(f"{place}: the key {shown(name)} is unknown in this format version; {REMEDY}")


def read(hint: Any, value: Any, where: str, key: str) -> Any:
    """`value` as the annotation says, or BundleError.

    bool; int, of 64 bits or `Annotated[int, low, high]`; float; str, one printable line; dataclasses (or what has a
    `read_json` of its own); `tuple[X, ...]`, `tuple[X, X]`, `Mapping[str, X]`, `X | Y` of scalars and None; Any.
    """
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any or hint is str and isinstance(value, str) and 1 <= len(value) <= MAX_TEXT and value.isprintable():
        return value
    if hint in (int, bool) and type(value) is hint:
        return value
    if hint is float and type(value) in (int, float):
        return float(value)
    if origin is Annotated:
        _, low, high = inside
        if type(value) is int and low <= value <= high:
            return value
        raise refusal(value, where, key, f"an integer from {low} to {high}")
    if origin is types.UnionType:
        one = next((one for one in inside if type(value) is (get_args(one) or (one,))[0]), inside[0])
        return None if one is types.NoneType else read(one, value, where, key)
    if origin is tuple:
        return _read_items(inside, value, where, key)
    if origin is not None and issubclass(origin, Mapping):
        found = members(value, where, key)
        return {name: read(inside[1], item, where, inner(key, name)) for name, item in found.items()}
    if hasattr(hint, "read_json"):
        return hint.read_json(value, where, key)
    if hint in _EXPECTED:
        raise refusal(value, where, key, _EXPECTED[hint])
    return read_object(hint, value, where, key)


_EXPECTED = {bool: "true or false", int: "an integer", float: "a number", str: f"1 to {MAX_TEXT} printable characters"}


def _read_items(inside: tuple[Any, ...], value: object, where: str, key: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise refusal(value, where, key, "a list")
    if inside[-1] is not Ellipsis and len(inside) != len(value):
        raise refusal(value, where, key, f"a list of {len(inside)}")
    if inside[0] is int and set(map(type, value)) <= {int}:
        return tuple(value)
    return tuple([read(inside[0], item, where, f"{key}[{i}]") for i, item in enumerate(value)])


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind, include_extras=True).items() if not name.startswith("_")}
