"""Which names announce a secret, and what AgentCompass 1.0.1 masks because of a name.

Two questions are asked here, with two answers on purpose:

- `is_sensitive_key`, `is_container_key`: the rule that AgentCompass 1.0.1 applies to the keys of stored objects
  ("redacted according to sensitive-key rules" in the specification). `redact_keys` reproduces its result exactly.
- `is_secret_name`: our own, for places where a name is only seen in passing (text, command lines, environment
  variables) and for spellings that the first rule misses (`apiKey`, `clientSecret`, a bare `secret`). It must not take
  `sort_key`, `eos_token` or `max_tokens` for secrets.

Pure: values in, values out.
"""

import re
from enum import Enum
from typing import Any

MASK = "********"
"""What stands in place of a secret, in AgentCompass's records and in ours."""

SENSITIVE_NAMES = frozenset(
    """
        aksk authorization cookie jwt password proxy_authorization set_cookie token token_id
    """.split()
)
SENSITIVE_ENDINGS = ("_key", "_secret", "_token", "_jwt", "_password")
OPEN_NAMES = frozenset({"wrap_api_key"})
"""Names that end like a secret and hold none: `wrap_api_key` is a switch."""

CONTAINER_NAMES = frozenset(
    """
        auth authentication credentials headers env env_variables run_env_variables evaluation_env_variables
        evaluation_environment_env_variables
    """.split()
)
"""Everything inside these is masked, whatever its own name: values of headers and of environment variables."""

_ALPHANUMERIC = re.compile(r"[a-z0-9]+")
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def normal_name(name: str) -> str:
    """Return lower case, every run of other characters one underscore: `X-Api-Key` is `x_api_key`."""
    return "_".join(_ALPHANUMERIC.findall(name.lower()))


def is_sensitive_key(name: str) -> bool:
    """Does AgentCompass 1.0.1 mask the value of an object's member of this name?"""
    normal = normal_name(name)
    return normal not in OPEN_NAMES and (normal in SENSITIVE_NAMES or normal.endswith(SENSITIVE_ENDINGS))


def is_container_key(name: str) -> bool:
    """Does AgentCompass 1.0.1 mask every value inside a member of this name?"""
    return normal_name(name) in CONTAINER_NAMES


def mask_value(value: Any) -> Any:
    """Return the mask, except for what holds no secret: None, the empty string, and a lone `${VARIABLE}` reference."""
    if value in (None, ""):
        return value
    if isinstance(value, str) and (value == MASK or _REFERENCE.fullmatch(value.strip())):
        return value
    return MASK


def key_text(key: Any) -> str:
    """Return the key as a JSON encoder writes it: a string's own characters, an enumeration member's value."""
    if isinstance(key, str):
        return str.__str__(key)
    return str(key.value) if isinstance(key, Enum) else str(key)


def redact_keys(value: Any, *, parameters: bool = False) -> Any:
    """Return what AgentCompass 1.0.1 stores of `value`: masked by the names of keys, nothing else changed.

    Plans in `run_info.json` (`resolved_execution_plans`) are stored so, nulls and empty members kept. With
    `parameters=True` the value is treated as the `request` of `run_info.json` is: `compact_parameters` comes first.
    Tuples become lists, keys strings, paths strings. The argument is not changed; the result shares no container with
    it. Raises ValueError where the nesting is too deep (or endless).
    """
    try:
        return _redact_keys(_compact(value) if parameters else value)
    except RecursionError:
        raise ValueError("the value is nested too deeply to be redacted") from None


def _redact_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {(name := key_text(key)): _redact_member(name, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_keys(item) for item in value]
    return _plain(value)


def _redact_member(name: str, value: Any) -> Any:
    if is_container_key(name):
        return mask_leaves(value)
    return mask_value(value) if is_sensitive_key(name) else _redact_keys(value)


def mask_leaves(value: Any) -> Any:
    """Return `value` with every leaf masked (see `mask_value`) and its shape kept; tuples become lists."""
    if isinstance(value, dict):
        return {key_text(key): mask_leaves(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_leaves(item) for item in value]
    return mask_value(value)


def compact_parameters(value: Any) -> Any:
    """A parameter object as AgentCompass 1.0.1 stores it in `params.json`, and in `request` before the key rules.

    Members that start with an underscore go (runtime-internal), sensitive ones are masked and always stay, None and
    empty objects and lists go (an empty string stays), keys are strings and sorted. Raises ValueError where the nesting
    is too deep (or endless).
    """
    try:
        return _compact(value)
    except RecursionError:
        raise ValueError("the value is nested too deeply to be redacted") from None


def _compact(value: Any) -> Any:
    if isinstance(value, dict):
        named = sorted(((key_text(key), item) for key, item in value.items()), key=lambda member: member[0])
        kept = ((key, _compact_member(key, item)) for key, item in named if not key.startswith("_"))
        return {key: item for key, item in kept if is_sensitive_key(key) or not _is_void(item)}
    if isinstance(value, list | tuple):
        return [item for item in map(_compact, value) if not _is_void(item)]
    return _plain(value)


def _compact_member(name: str, value: Any) -> Any:
    return mask_value(value) if is_sensitive_key(name) else _compact(value)


def _is_void(value: Any) -> bool:
    return value in ({}, [], None)


def _plain(value: Any) -> Any:
    # A path, without importing pathlib: this module is pure, its callers' values need not be.
    return str(value) if hasattr(value, "__fspath__") else value


# --- names seen in passing ---

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_SECRET_WORDS = frozenset(
    """
        password passwords passwd passphrase passcode pwd secret secrets jwt aksk authorization cookie credential
        credentials apikey apikeys authkey secretkey accesskey privatekey accountkey sharedkey authtoken accesstoken
        refreshtoken clientsecret pgpass dbpass
    """.split()
)
_SECRET_WORD_ENDINGS = tuple(
    """
    password passwd passphrase apikey secretkey accesskey privatekey accountkey accesstoken authtoken refreshtoken
    clientsecret
""".split()
)
_SECRET_KEYS = frozenset(
    """
        access account admin api app auth client consumer deploy encryption license master private root secret
        service shared signing ssh storage subscription
    """.split()
)
_ORDINARY_KEYS = frozenset(
    """
        answer any bucket cache candidate case column composite config data dataset dedup dict esc feature field
        file foreign gpg group hash idempotency image index input item join json label lookup map metric name
        natural object order output param partition path press primary public registry request routing row run
        sample score section shard sort state task text trace unique
    """.split()
)
_ORDINARY_TOKENS = frozenset(
    """
        a audio avg bad bos cls completion control current each end eof eos every expected first generated image
        input invalid last mask max min new next no num one output pad per predicted previous prompt same sep
        special start stop target text this token total unexpected unk unknown vision word
    """.split()
)


_SECRET_TAILS = (
    ("key", "data"),
    ("key", "hex"),
    ("key", "base", "64"),
    ("key", "json"),
    ("credentials", "json"),
    ("key", "pem"),
)
_MAYBE_WORDS = frozenset({"pass", "pat", "auth", "dsn", "salt", "bearer"})
_ORDINARY_BEFORE_MAYBE = frozenset(
    """
        all any by did dry first final forward full is last max min multi n needs no num number one only per second
        single skip test tests third to two use with
    """.split()
)


def name_words(name: str) -> list[str]:
    """The words of a name, lower case: `OPENAI_API_KEY`, `openai-api-key` and `openaiApiKey` have the same three."""
    return [word.lower() for word in _WORDS.findall(name)]


def is_secret_name(name: str, *, flag: bool = False) -> bool:
    """Does a name seen in passing say that what follows is a secret?

    `flag`: the name is a command-line option or a quoted key. These, and names in capitals (environment variables), are
    taken for secrets when they end in "key" unless the word before says otherwise; elsewhere only known kinds of keys
    are.
    """
    words = name_words(name)
    if not words or "_".join(words) in OPEN_NAMES:
        return any(tuple(words[-len(tail) :]) == tail for tail in _SECRET_TAILS)
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _SECRET_WORDS or last.endswith(_SECRET_WORD_ENDINGS):
        return True
    if last == "token":
        return before not in _ORDINARY_TOKENS
    if last in ("key", "keys") and before:
        return before in _SECRET_KEYS or ((flag or name.isupper()) and before not in _ORDINARY_KEYS and last == "key")
    return any(tuple(words[-len(tail) :]) == tail for tail in _SECRET_TAILS)


def may_be_secret_name(name: str) -> bool:
    """Whether a name seen in passing may announce a secret: `DB_PASS`, `GITHUB_PAT`, `_auth`; the value decides."""
    words = name_words(name)
    if not words or words[-1] not in _MAYBE_WORDS:
        return False
    return len(words) < 2 or words[-2] not in _ORDINARY_BEFORE_MAYBE
