"""Secrets out of everything that is written: by the names of keys, by the form of values, by literal values.

- `redact_keys`: the rule of AgentCompass 1.0.1 alone, for what must equal its records.
- `redact_text`, `redact_values`: credentials inside texts, whatever the key.
- `redact`: both, for payloads, errors and logs that we write.
- `find_secrets`: where a text holds credentials, for `verify`; the values are not part of the answer.

`redact` gives back the very object it was given when nothing in it is a secret, doing it twice equals doing it once,
and the same input gives the same output. It keeps numbers under `metrics`, and it never sees an envelope: callers pass
payloads, so `request_key` and `task_id` stay what they are. What is masked, what is not, and the limits are in
docs/redaction.md. Pure: environment variables come in as an argument.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from enum import Enum
from functools import lru_cache
from operator import is_ as _is
from typing import Any

from msgspec import UNSET, Struct, structs

from eventstore.format.codec import plain_form

from .assignments import announces, is_placeholder, looks_secret
from .names import (
    MASK,
    compact_parameters,
    is_container_key,
    is_secret_name,
    is_sensitive_key,
    key_text,
    mask_leaves,
    mask_value,
    may_be_secret_name,
    name_words,
    normal_name,
    redact_keys,
)
from .places import argument_secrets
from .text import Match, find_secrets, redact_text

__all__ = [
    "MASK",
    "Match",
    "Redactor",
    "compact_parameters",
    "find_secrets",
    "find_secrets_in",
    "redact",
    "redact_keys",
    "redact_text",
    "redact_values",
    "secret_environment_values",
]


def redact(value: Any, secrets: Sequence[str] = ()) -> Any:
    """Return `value` with every secret masked: key rules, text rules, and the literal `secrets` (see `Redactor`)."""
    return _redactor(tuple(secrets), True).redact(value)


def redact_values(value: Any, secrets: Sequence[str] = ()) -> Any:
    """Return `value` with credentials inside its strings masked; the names of keys play no part."""
    return _redactor(tuple(secrets), False).redact(value)


@lru_cache(maxsize=8)
def _redactor(secrets: tuple[str, ...], by_key: bool) -> "Redactor":
    return Redactor(secrets, by_key=by_key)


_ORDINARY, _SECRET, _CONTAINER, _SECRET_TEXT, _METRICS, _NAMED_VALUE, _MAYBE, _OWN_HEADERS, _COOKIES = range(9)
_UNTOUCHED = frozenset({int, float, bool, type(None), type(UNSET)})
_HEADERS = frozenset({"authorization", "proxy_authorization", "cookie", "set_cookie", "x_api_key", "api_key"})
_HEADERS_OF_OWN = frozenset(
    """
        extra_headers default_headers custom_headers additional_headers http_headers request_headers api_headers
    """.split()
)
_ORDINARY_HEADERS = frozenset(
    """
        accept accept_charset accept_encoding accept_language cache_control connection content_encoding content_length
        content_type date host http_referer if_none_match origin pragma referer traceparent transfer_encoding user_agent
        via x_correlation_id x_forwarded_for x_request_id x_title
    """.split()
)
_USER_OPTIONS = frozenset({"-u", "--user", "--proxy-user"})


class Redactor:
    """Redaction with one set of literal secrets, remembering which short strings and keys are harmless.

    `secrets`: values that are masked wherever they stand (shorter than four characters: ignored). `by_key=False`
    leaves the names of keys out of account. May be shared by threads: what it remembers only saves time.
    """

    __slots__ = ("_by_key", "_clean", "_kinds", "_secrets")

    def __init__(self, secrets: Sequence[str] = (), *, by_key: bool = True) -> None:
        # The longest first, so that a secret that contains another goes as a whole.
        self._secrets = tuple(sorted(set(secrets), key=lambda secret: (-len(secret), secret)))
        self._by_key = by_key
        self._kinds: dict[Any, int] = {}
        self._clean: set[str] = set()

    def redact(self, value: Any) -> Any:
        """Return `value` itself if it holds no secret, else a copy with masks (it shares what is unchanged).

        Objects, lists, tuples, sets, strings, msgspec structs, dataclasses and pydantic models are looked into; of
        anything else (a path, bytes) the text that would be written of it is. Raises ValueError where the nesting is
        too deep (or endless).
        """
        if not value:
            return value
        try:
            return self._any(value)
        except RecursionError:
            raise ValueError("the value is nested too deeply to be redacted") from None

    def text(self, text: str) -> str:
        """Return a string without secrets: as `redact_text`, which remembers which short strings were harmless."""
        if len(text) < 4 or text in self._clean:
            return text
        redacted = redact_text(text, self._secrets)
        if redacted != text:
            return redacted
        if len(text) <= 256:
            if len(self._clean) >= 8192:
                self._clean.clear()
            self._clean.add(text)
        return text

    def _any(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind is dict:
            return self._mapping(value)
        if kind in _UNTOUCHED:
            return value
        if kind is list or kind is tuple:
            return self._sequence(value)
        return self._other(value)

    def _mapping(self, value: Mapping[Any, Any], *, facts: bool = False) -> Any:
        """Return `facts`: the members are metrics, whose numbers are no secrets whatever their names."""
        kinds, clean = self._kinds, self._clean
        changes: dict[Any, Any] = {}
        renamed = False
        for key, item in value.items():
            kind = kinds.get(key)
            if kind is None:
                kind = self._kind(key)
                renamed = renamed or self._key(key) is not key
            of_item = type(item)
            if of_item in _UNTOUCHED and (kind == _ORDINARY or facts):
                continue
            if facts and of_item is dict:
                redacted = self._mapping(item, facts=True)
            elif kind == _ORDINARY:
                if of_item is str and item in clean:
                    continue
                redacted = self._any(item)
            else:
                redacted = self._special(kind, item, value, key)
            if redacted is not item:
                changes[key] = redacted
        if renamed:
            return self._renamed({**value, **changes})
        return {**value, **changes} if changes else value

    def _special(self, kind: int, item: Any, owner: Mapping[Any, Any], key: Any) -> Any:
        if kind == _CONTAINER:
            masked = self._any(mask_leaves(item))  # keys inside may hold secrets, too
            return item if masked == item else masked
        if kind == _SECRET:
            return mask_value(item)
        if kind == _SECRET_TEXT:
            return self._any(_masked_texts(item))
        if kind == _METRICS:
            return self._mapping(item, facts=True) if isinstance(item, dict) else self._any(item)
        if kind == _MAYBE:
            known = isinstance(item, str) and (announces(key_text(key), item) or _has_user(owner, key, item))
            return MASK if known else self._any(item)
        if kind == _OWN_HEADERS:
            return self._any(_masked_headers(item))
        if kind == _COOKIES:
            return self._any(_masked_cookies(item))
        if isinstance(item, str) and not _COOKIE_MEMBERS.isdisjoint(owner) and looks_secret(item):
            return MASK  # a cookie, as a browser stores it
        name = owner.get("name", owner.get("key"))  # {"name": "API_KEY", "value": …}
        if isinstance(name, str) and (is_sensitive_key(name) or is_secret_name(name)):
            return mask_value(item)
        return self._any(item)

    def _kind(self, key: Any) -> int:
        """Return what the name of a key says (without the secrets in it); remembered for short ones that hold none."""
        name = self._key(key)
        kind = _kind_of(key_text(name)) if self._by_key else _ORDINARY
        if isinstance(key, str) and len(key) <= 64 and name is key:
            if len(self._kinds) >= 4096:
                self._kinds.clear()
            self._kinds[key] = kind
        return kind

    def _key(self, key: Any) -> Any:
        return self.text(key) if isinstance(key, str) else key

    def _renamed(self, value: dict[Any, Any]) -> dict[Any, Any]:
        """The same with clean keys. Where two become alike, both values stay: the second gets a number for a name."""
        result: dict[Any, Any] = {}
        for key, item in value.items():
            name = self._key(key)
            number = 1
            while name in result or (name is not key and name in value):
                number += 1
                name = f"{MASK} ({number})"
            result[name] = item
        return result

    def _sequence(self, value: Sequence[Any]) -> Any:
        """Items one by one, and what one item says of the next: options of a command line, a header and its value."""
        items = [self._any(item) for item in value]
        if self._by_key and len(items) > 1:
            _mask_announced(items)
            _mask_arguments(items)
            _mask_key_block(items)
        return value if all(map(_is, items, value)) else items

    def _other(self, value: Any) -> Any:
        if isinstance(value, Struct):
            members = {name: getattr(value, name) for name in value.__struct_fields__}
            redacted = self._mapping(members)
            return value if redacted is members else structs.replace(value, **redacted)
        if isinstance(value, str):
            text = str.__str__(value)  # the characters that an encoder writes, whatever the class says of itself
            redacted = self.text(text)
            return value if redacted is text else redacted
        if isinstance(value, Enum):
            redacted = self._any(value.value)
            return value if redacted is value.value else redacted
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return self._sequence(value)
        if isinstance(value, set | frozenset):
            items = {item: self._any(item) for item in value}
            return value if all(map(_is, items.values(), items)) else sorted(items.values(), key=repr)
        if isinstance(value, int | float | date | timedelta):
            return value
        return self._foreign(value)

    def _foreign(self, value: Any) -> Any:
        """An object of a class of its own: what is written of it is looked into, member by member or as a text."""
        try:
            written = _written(value)
        except RecursionError:
            raise
        except Exception:  # what can't say what it is can't be written either
            return value
        redacted = self._any(written)
        return value if redacted is written else redacted


def _written(value: Any) -> Any:
    """Return what is written of an object: its members, or the text that it gives."""
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__ if hasattr(value, name)}
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    try:
        return plain_form(value)
    except TypeError:
        return str(value)


def _kind_of(name: str) -> int:
    if is_container_key(name):
        return _CONTAINER
    if is_sensitive_key(name):
        return _SECRET
    if is_secret_name(name):
        return _SECRET_TEXT
    if normal_name(name) in _HEADERS_OF_OWN:
        return _OWN_HEADERS
    if name == "cookies":
        return _COOKIES
    if may_be_secret_name(name):
        return _MAYBE
    return _METRICS if name == "metrics" else _NAMED_VALUE if name == "value" else _ORDINARY


def _masked_texts(value: Any) -> Any:
    """Every string in `value` masked, numbers and switches kept: our own names are guesses, unlike AgentCompass's."""
    if isinstance(value, str):
        return value if is_placeholder(value.strip()) else MASK
    if isinstance(value, dict):
        members = {key: _masked_texts(item) for key, item in value.items()}
        return value if all(map(_is, members.values(), value.values())) else members
    if isinstance(value, list | tuple):
        items = [_masked_texts(item) for item in value]
        return value if all(map(_is, items, value)) else items
    return value


def _mask_announced(items: list[Any]) -> None:
    """Mask, in place, the value after `--api-key`, after curl's `-u`, and the second of a header and its value."""
    for index in range(len(items) - 1):
        option, value = items[index], items[index + 1]
        if type(option) is not str or type(value) is not str or is_placeholder(value):
            continue
        if option[:1] != "-":
            if len(items) == 2 and len(option) < 24 and normal_name(option) in _HEADERS:
                items[1] = mask_value(value)
        elif value[:1] != "-" and "=" not in option:
            is_user = option in _USER_OPTIONS and ":" in value and str(items[0]).endswith("curl")
            if is_user or is_secret_name(option, flag=True):
                items[index + 1] = mask_value(value)


def _mask_arguments(items: list[Any]) -> None:
    """Mask, in place, what a known program takes for a password: `["mysql", "-pPW"]`, `["docker", "login", …]`."""
    if not (isinstance(items[0], str) and len(items) <= 200 and all(type(item) is str for item in items)):
        return
    line = " ".join(items)
    for _, start, end in argument_secrets(line, line.lower()):
        secret = line[start:end]
        for index, item in enumerate(items[1:], 1):
            if item == secret or (item[:1] == "-" and item.endswith(secret)):
                items[index] = item[: -len(secret)] + MASK


def _mask_key_block(items: list[Any]) -> None:
    """Mask, in place, the lines of a private key that are items of their own."""
    inside = False
    for index, item in enumerate(items):
        if type(item) is not str:
            inside = False
        elif "PRIVATE KEY" in item and "-----BEGIN " in item and "-----END " not in item:
            inside = True
        elif inside and item.startswith("-----END "):
            inside = False
        elif inside and item.strip() and " " not in item.strip():
            items[index] = MASK


def _has_user(owner: Mapping[Any, Any], key: Any, item: str) -> bool:
    """Return whether `pass` stands beside a user: then it is a password, whatever its look."""
    return key == "pass" and len(item) >= 4 and not _USER_MEMBERS.isdisjoint(owner) and not is_placeholder(item)


_USER_MEMBERS = frozenset({"user", "username", "login", "email"})
_COOKIE_MEMBERS = frozenset({"domain", "httpOnly", "sameSite", "hostOnly"})


def _masked_headers(value: Any) -> Any:
    """Return values of headers that a program adds of its own, but for those that everybody sends."""
    if not isinstance(value, dict):
        return value
    members = {
        name: item
        if normal_name(key_text(name)) in _ORDINARY_HEADERS or not isinstance(item, str)
        else mask_value(item)
        for name, item in value.items()
    }
    return value if all(map(_is, members.values(), value.values())) else members


def _masked_cookies(value: Any) -> Any:
    """Cookies as an object of names and values, or as the text of a header."""
    if isinstance(value, str):
        return MASK if "=" in value else value
    if not isinstance(value, dict):
        return value
    members = {name: MASK if isinstance(item, str) and looks_secret(item) else item for name, item in value.items()}
    return value if all(map(_is, members.values(), value.values())) else members


def find_secrets_in(value: Any, secrets: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return where `redact` would mask something in an object: pairs of a path (`payload.argv[2]`) and a kind.

    For whoever reports what writing masks: also what only an object shows, such as the argument after `--api-key`.
    """
    found: list[tuple[str, str]] = []
    _differences("", value, redact(value, secrets), found)
    return found


def _differences(path: str, value: Any, masked: Any, found: list[tuple[str, str]]) -> None:
    if value is masked:
        return
    if isinstance(value, Mapping) and isinstance(masked, Mapping) and len(value) == len(masked):
        for (name, item), (clean, other) in zip(value.items(), masked.items(), strict=True):
            place = f"{path}.{clean}" if path else key_text(clean)
            if key_text(name) != key_text(clean):
                found.append((place, _kind_in(name)))
            _differences(place, item, other, found)
    elif isinstance(value, list | tuple) and isinstance(masked, list | tuple) and len(value) == len(masked):
        for index, (item, other) in enumerate(zip(value, masked, strict=True)):
            _differences(f"{path}[{index}]", item, other, found)
    elif value != masked:
        found.append((path, _kind_in(value)))


def _kind_in(value: Any) -> str:
    matches = find_secrets(value) if isinstance(value, str) else []
    return matches[0].kind if matches else "named_secret"


# --- environment variables ---

_SECRET_VARIABLE = re.compile("API_?KEY|TOKEN|SECRET|PASSW(?:OR)?D|CREDENTIAL")
_ORDINARY_VARIABLE_ENDS = frozenset(
    """
        algorithm budget class count dir directory enabled endpoint expires expiry file filename helper home host id
        length limit mode name parallelism path port prefix provider region size socket sock store timeout tokens
        ttl type uri url user username version
    """.split()
)
_PLACE = re.compile(r"(?:~|/(?:app|data|dev|etc|home|mnt|opt|root|run|srv|tmp|usr|var|workspace|Users))/.*")
_PASSWORD_IN_URL = re.compile(r"://[^\s/?#@]*?:([^\s/?#]+)@")


def secret_environment_values(environ: Mapping[str, str], minimum_length: int = 8) -> tuple[str, ...]:
    """Return the values of variables whose names say that they are secret, for `secrets` of the others.

    Also the password in any variable that holds an address (`DATABASE_URL`). Left out: values shorter than
    `minimum_length` (they would be found everywhere), switches and references, paths of files, and what a name says to
    be something else (`HF_TOKEN_PATH`, `MAX_TOKENS`). The longest first; the same variables give the same tuple.
    """
    found: set[str] = set()
    for name, value in environ.items():
        if "://" in value:
            found.update(_PASSWORD_IN_URL.findall(value))
        elif _names_a_secret(name):
            found.update((value.strip(), *value.split(",")) if name.endswith("S") else (value.strip(),))
    long_enough = (value for value in found if len(value) >= minimum_length)
    kept = [value for value in long_enough if not is_placeholder(value) and not _PLACE.match(value)]
    return tuple(sorted(kept, key=lambda value: (-len(value), value)))


def _names_a_secret(name: str) -> bool:
    words = name_words(name)
    if not words or words[-1] in _ORDINARY_VARIABLE_ENDS or words[-1] == "pwd":
        return False
    return is_secret_name(name) or _SECRET_VARIABLE.search(name.upper()) is not None
