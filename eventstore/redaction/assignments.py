"""Secrets that a name announces: `API_KEY=…`, `--token …`, `"password": "…"`, `Authorization: Bearer …`.

One rule reads assignments in whatever notation they come: environment files, command lines, JSON (also escaped inside
other JSON), Python's repr of a dict, keyword arguments, headers, YAML, query strings. A name is found by the word it
ends with; `secret_names` decides. What stands there instead of a secret (None, `${VARIABLE}`, `<your key>`, a call, the
mask itself) is left alone. Every scan goes on behind what it took, so time is linear in the text. Pure.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from .names import CONTAINER_NAMES, is_secret_name, may_be_secret_name, name_words
from .shapes import is_mixed, is_random

Span = tuple[str, int, int]
"""Kind, start, end."""

_SEPARATOR = (
    r"(?P<close>\\{0,127}[\"'`]\]?)?"
    r"(?P<separator>"
    r"[ \t]{0,4}:[ \t]{0,4}(?:optional\[)?(?:str|secretstr|string)\]?(?:[ \t]?\|[ \t]?none)?[ \t]{0,4}=(?!=)[ \t]{0,4}"
    r"|[ \t]{0,8}(?::=|=>|=(?!=)|:(?!:))[ \t]{0,8}|[ \t]{1,8})"
)
_NAMES = tuple(
    (needle, re.compile(rf"{word}{_SEPARATOR}"))
    for needle, word in (
        ("key", "key(?: provided)?"),
        ("token", "token"),
        ("secret", "secret"),
        ("passw", "passw(?:or)?d"),
        ("passp", "passphrase"),
        ("pass", "pass"),
        ("pwd", "pwd"),
        ("authorization", "authorization"),
        ("cookie", "cookie"),
        ("credential", "credentials?(?:_json)?"),
        ("jwt", "jwt"),
        ("aksk", "aksk"),
        ("key_", "key_(?:data|hex|json|base64|pem)"),
        ("key-d", "key-data"),
        ("_pat", "_pat"),
        ("_auth", "_auth"),
        ("dsn", "dsn"),
        ("salt", "salt"),
        ("bearer", "bearer"),
    )
)

_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789_.-"
_LONGEST_NAME = 64

_OPENING = re.compile(r"(?:[bBfFrRuU]{1,2}(?=[\"']))?(\\{0,127})([\"'`])")
_ESCAPED_START = re.compile(r"[abefnrtv0](?=[A-Za-z_])|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[0-3][0-7]{2}")
_COLOUR_START = re.compile(r"[0-9]{0,3}[mKJH]")
_HEX_START = re.compile(r"(?:25)?[0-9a-fA-F]{2}")
_COLOURS = re.compile(r"(?:(?:\x1b|\\{1,64}(?:u001[bB]|x1[bB]|033|e))?\[[0-9;]{0,12}m){1,4}")
_QUOTED = {
    '"': re.compile(r'(?:[^"\\\n]|\\.)*+'),
    "'": re.compile(r"(?:[^'\\\n]|\\.)*+"),
    "`": re.compile(r"[^`\n]*+"),
}
_BARE = re.compile(r"[^\s\"'`,;&<>(){}\[\]\\]+")
_BARE_WIDE = re.compile(r"[^\s\"'`;\\]+")
_BARE_IN_URL = re.compile(r"[^\s\"'`,;&#<>(){}\[\]\\]+")
_REST_OF_LINE = re.compile(r"[^\r\n\"'<>\\]+")
_REFERENCE = re.compile(
    r"\$\{[^}\s]{0,80}\}|\$\(|\$[A-Z_][A-Z0-9_]*\b|<[^<>\s]{0,80}>|\{{1,3}[^{}\n]{0,80}\}|%\([^)\s]{0,80}\)s|%[sr]\b"
)
_SCHEME = re.compile(
    r"(?:bearer|basic|token|apikey|api-key|digest|negotiate|ntlm|jwt|aws4-hmac-sha256)[ \t]{1,4}", re.IGNORECASE
)

_PLACEHOLDER = re.compile(
    r"\*+|\.{3,}|…|-|x{3,}|\$\{[^}]*\}|\$[A-Z_][A-Z0-9_]*|<[^>]*>|\{+[^{}]*\}+|%\([^)]*\)s|%[sr]"
    r"|[\[<(]?(?:none|null|nil|undefined|true|false|yes|no|unset|redacted|masked|hidden|removed|omitted|empty|required"
    r"|optional|missing|str|string|bytes|int|bool|any|secretstr|optional\[str\])[\])>]?",
    re.IGNORECASE,
)
_PROSE = frozenset(
    """
        a an and are argument arguments at by can cannot could does expired failed flag flags for from has have
        header headers if in incorrect invalid is it length limit mismatch must not of on only option options or
        parameter parameters provided received rejected should that the this to unknown used value values was were
        with wrong
    """.split()
)
_CODE = re.compile(
    r"(?:self|cls|os|sys|config|cfg|conf|settings|args|opts|options|params|request|req|env|environ|ctx|context|kwargs"
    r"|client|model|secrets|credentials|process|tokenizer|data|resp|response|result)\.[A-Za-z_][\w.]*$|[A-Za-z_][\w.]*[(\[]"
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?")
_VAGUE = frozenset({"token", "secret", "cookie", "jwt", "credential", "credentials", "authorization"})
_PASSWORDS = ("password", "passwd", "passphrase", "pwd")


class _Name(NamedTuple):
    """A name as it stands in a text. `firm`: the notation leaves no doubt that it is an assignment."""

    words: list[str]
    quoted: bool
    flag: bool
    in_url: bool
    capitals: bool
    firm: bool
    maybe: bool = False
    """The name alone does not tell: the value must look like a secret."""


def is_placeholder(value: str) -> bool:
    """Is this what people and programs write in place of a secret: a mask, a reference, None, `<your key>`?"""
    return not value or (len(value) <= 100 and _PLACEHOLDER.fullmatch(value) is not None)


def assigned_secrets(text: str, lowered: str, known: str) -> Iterator[Span]:
    """Values that a name announces.

    `lowered` is `text` in lower case, with the same length; `known` has all its words, in lower case.
    """
    has_logprobs = "logprob" in known
    for needle, pattern in _NAMES:
        if needle not in known:
            continue
        position = 0
        while (found := pattern.search(lowered, position)) is not None:
            position = found.end("separator")
            name = _name_before(text, lowered, found)
            if name is None:
                continue
            if has_logprobs and name.words == ["token"]:
                name = name._replace(firm=False)  # a list of tokens that a model wrote, not of credentials
            span = _value_after(text, position, name)
            if span is not None:
                yield "named_secret", *span
                position = max(position, span[1])


def _name_before(text: str, lowered: str, found: re.Match[str]) -> _Name | None:
    """The whole name that ends with what was found, or None if it announces no secret."""
    start = found.start()
    end = found.start("close") if found["close"] else found.start("separator")
    head = lowered[max(0, start - _LONGEST_NAME) : start]
    begin = start - len(head) + len(head.rstrip(_NAME_CHARACTERS))
    begin = _behind_escape(text, begin, start)
    name, before = text[begin:end], text[begin - 1 : begin]
    separator = found["separator"]
    flag = name.startswith("--") or (name.startswith("-") and separator.isspace())
    if separator.isspace() and not flag:
        return None
    if before == " " and name[:3].lower() == "key":  # "Incorrect API key provided: …"
        name = "_".join([*lowered[max(0, begin - 9) : begin].split()[-1:], "key"])
    short, quoted = name.rsplit(".", 1)[-1] or name, bool(found["close"])
    maybe = not is_secret_name(short, flag=flag or quoted)
    if maybe and not may_be_secret_name(short):
        return None
    firm = bool(flag or quoted or name.isupper() or separator == "=")
    return _Name(name_words(name), quoted, flag, before in ("?", "&"), name.isupper(), firm, maybe)


def _behind_escape(text: str, begin: int, end: int) -> int:
    """Where a name really begins: not with the `n` of `\\n`, the `31m` of a colour or the `0A` of `%0A`."""
    before = text[begin - 1 : begin]
    pattern = {"\\": _ESCAPED_START, "[": _COLOUR_START, ";": _COLOUR_START, "%": _HEX_START}.get(before)
    found = pattern.match(text, begin, end + 1) if pattern else None
    return found.end() if found and found.end() <= end else begin


def _value_after(text: str, start: int, name: _Name) -> tuple[int, int] | None:
    """Where the secret stands that `name` announces, or None if there is none."""
    colours = _COLOURS.match(text, start)
    start = colours.end() if colours else start
    opening = _OPENING.match(text, start)
    if opening is None and (text[start : start + 1] in ("{", "[", "(") or _REFERENCE.match(text, start)):
        return None
    begin = opening.end() if opening else start
    scheme = _SCHEME.match(text, begin) if name.words[-1] == "authorization" else None
    begin = scheme.end() if scheme else begin
    end = _end_of_quoted(text, begin, opening) if opening else _end_of_bare(text, begin, name)
    value = text[begin : min(end, begin + 200)]
    if not value or is_placeholder(value.strip()):
        return None
    if name.maybe:
        follower = text[end : end + 1]
        is_secret = _may_be_secret(value, name) and (opening is not None or not _is_code(value, name, follower))
        return (begin, end) if is_secret else None
    if end - begin > 128 or scheme or _is_secret(value, name, quoted=opening is not None, follower=text[end : end + 1]):
        return begin, end
    return None


def _end_of_quoted(text: str, begin: int, opening: re.Match[str]) -> int:
    backslashes, quote = opening[1], opening[2]
    if not backslashes:
        found = _QUOTED[quote].match(text, begin)
        return found.end() if found else begin
    end = text.find(backslashes + quote, begin, begin + 65536)
    return end if end >= 0 else _end_of(_REST_OF_LINE, text, begin)


def _end_of_bare(text: str, begin: int, name: _Name) -> int:
    last = name.words[-1]
    if last == "cookie":
        end = _end_of(_REST_OF_LINE, text, begin)
        return end if "=" in text[begin : begin + 200] else begin
    if name.in_url:
        return _end_of(_BARE_IN_URL, text, begin)
    if name.capitals or name.flag or last.endswith(_PASSWORDS):
        end = _end_of(_BARE_WIDE, text, begin)
        return begin + len(text[begin:end].rstrip(",)]}>"))
    return _end_of(_BARE, text, begin)


def _end_of(pattern: re.Pattern[str], text: str, begin: int) -> int:
    found = pattern.match(text, begin)
    return found.end() if found else begin


def _is_secret(value: str, name: _Name, *, quoted: bool, follower: str) -> bool:
    if name.words[-1] == "pwd" and value[0] in "/~.":
        return False  # a working directory
    if not quoted and _is_code(value, name, follower):
        return False
    if name.flag and (value.startswith("-") or value.lower() in _PROSE):
        return False
    if not quoted and name.quoted and _NUMBER.fullmatch(value):
        return name.words[-1].endswith(_PASSWORDS)  # {"token": 1234} counts or numbers tokens
    if name.firm:
        return True
    if len(name.words) == 1 and name.words[0] in _VAGUE:
        return len(value) >= 20 or (len(value) >= 8 and is_mixed(value))
    return quoted or value.rstrip(".,:!").lower() not in _PROSE


_ACCOUNTS = frozenset(
    """
        admin db database elastic ftp http imap keystore kibana ldap login mail mongo mongodb mysql npm pg postgres
        postgresql proxy rabbitmq redis registry root smtp sql ssh su sudo truststore user vnc wifi
    """.split()
)


def _may_be_secret(value: str, name: _Name) -> bool:
    """Does the value of `DB_PASS`, `GITHUB_PAT`, `_auth`, `SENTRY_DSN`, `salt` look like a secret?"""
    last, before = name.words[-1], name.words[-2] if len(name.words) > 1 else ""
    if len(value) < 4 or _NUMBER.fullmatch(value) or value.lower() in _PROSE or " " in value.strip():
        return False
    if last == "dsn":
        return "@" in value or "passw" in value.lower()
    if last == "pat":
        return len(value) >= 16 and is_mixed(value)
    if before in _ACCOUNTS and last in ("pass", "auth") and name.firm:
        return value.lower() not in _METHODS
    return looks_secret(value)


def announces(name: str, value: str) -> bool:
    """Whether an object's member of this name and value holds a secret, where the name alone does not tell."""
    words = name_words(name)
    return not is_placeholder(value.strip()) and _may_be_secret(
        value, _Name(words, True, False, False, False, True, True)
    )


_METHODS = frozenset(
    "basic bearer digest gssapi kerberos ldap negotiate ntlm oauth oauth2 plain scram token trust".split()
)


def looks_secret(value: str) -> bool:
    """Whether a value is of the kind that people choose or programs make for secrets, and no word, path or number."""
    if len(value) < 6 or any(map(str.isspace, value)) or "/" in value[:2] or "://" in value:
        return False
    return (is_mixed(value) and (len(value) >= 8 or not value.isalnum())) or (len(value) >= 20 and is_random(value))


def _is_code(value: str, name: _Name, follower: str) -> bool:
    """Is a value without quotes an expression of a program: `self.api_key`, `get_token(`, `api_key=api_key`?"""
    words = name_words(value)
    if words == name.words[-len(words) :] or words[-len(name.words) :] == name.words:
        return True
    if name.capitals and not name.quoted:
        return False
    return (
        follower in ("(", "[")
        or _CODE.match(value) is not None
        or (name.quoted and _IDENTIFIER.fullmatch(value) is not None and not is_mixed(value))
    )


# --- whole objects: "headers": {…}, "env": {…} ---

_CONTAINERS = tuple(
    (ending, re.compile(rf"{ending}(\\{{0,127}}[\"'])[ \t]{{0,8}}:\s{{0,8}}(?=[{{\[])"))
    for ending in ("headers", "env", "auth", "authentication", "credentials", "variables")
)
"""How the names of `CONTAINER_NAMES` end; a literal is found faster than one of many."""
_PIECE = re.compile(
    r"[{}\[\]]|:|\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+'|\\{1,127}[\"'][^\"']*+[\"']|[^\s{}\[\],:\"'\\]+", re.DOTALL
)


def contained_secrets(text: str, lowered: str, known: str) -> Iterator[Span]:
    """Every value inside an object that is the value of a quoted `headers`, `env`, … key, in JSON or a dict's repr.

    An object that is cut off before its end is left to the other rules, which need no structure.
    """
    for ending, pattern in _CONTAINERS:
        position = 0
        while ending in known and (found := pattern.search(lowered, position)) is not None:
            head = lowered[max(0, found.start() - _LONGEST_NAME) : found.end() - len(found[0]) + len(ending)]
            name = head[len(head.rstrip("abcdefghijklmnopqrstuvwxyz_")) :]
            quoted = name in CONTAINER_NAMES and head[-len(name) - 1 : -len(name)] == found[1][-1]
            spans, position = _leaves(text, found.end()) if quoted else ([], found.end())
            yield from spans


def _leaves(text: str, start: int) -> tuple[list[Span], int]:
    """Spans of the leaves of the object that begins at `start`, and where to go on; none if it has no end."""
    spans: list[Span] = []
    pending: Span | None = None
    depth, end = 0, start
    for piece in _PIECE.finditer(text, start):
        end = piece.end()
        token = piece[0]
        if token == ":":
            pending = None  # what came before was a key
            continue
        if pending is not None:
            spans.append(pending)
            pending = None
        if token in ("{", "["):
            depth += 1
        elif token in ("}", "]"):
            depth -= 1
            if depth == 0:
                return spans, end
        else:
            pending = _leaf(token, piece.start())
    return [], end


def _leaf(token: str, start: int) -> Span | None:
    value = token.strip("\\\"'")
    if token[-1] not in "\"'" or is_placeholder(value):
        return None  # numbers and literals, or the expressions of a program
    begin = start + token.index(value)
    return "named_secret", begin, begin + len(value)
