"""Secrets that their place announces: arguments of known programs, files of passwords, tags, a line below its name.

Every rule has a word that must stand in the text, is bounded where it skips characters, and goes on behind what it
took: time is linear in the text. Pure.
"""

import binascii
import re
from collections.abc import Callable, Iterator

from .assignments import Span, is_placeholder, looks_secret
from .names import is_secret_name

_GAP = r"(?:[ \t]|\\{1,64}[nrt]|[\r\n]){1,8}"
_VALUE = r"[^\s\"'\\,;|&<>()]{3,200}"
_ARGUMENT = rf"\\{{0,64}}[\"']?({_VALUE})"
_SKIPPED = r"[^\r\n\\|;&]{0,200}?"
_WORD = r"(?<![A-Za-z0-9_./-])"


def _rule(word: str, pattern: str) -> tuple[str, re.Pattern[str]]:
    return word, re.compile(pattern)


def _argument(sign: str, word: str, pattern: str) -> tuple[str, str, re.Pattern[str]]:
    return sign, word, re.compile(pattern)


_PROGRAMS = (
    _argument(" -p", "mysql", rf"mysql(?:admin|dump|import|show|check|pump|sh)?[ \t]{_SKIPPED}(?<=[ \t])-p{_ARGUMENT}"),
    _argument(" -p", "mariadb", rf"mariadb(?:-admin|-dump)?[ \t]{_SKIPPED}(?<=[ \t])-p{_ARGUMENT}"),
    _argument(" -p", "sshpass", rf"sshpass[ \t]{{1,4}}(?:-v[ \t]{{1,4}})?-p[ \t]{{0,4}}{_ARGUMENT}"),
    _argument(
        " -p",
        "login",
        r"(?:docker|podman|nerdctl|buildah|skopeo|helm registry|oras|az)[ \t]login[ \t]"
        rf"{_SKIPPED}(?<=[ \t])-p[ \t=]{{1,4}}{_ARGUMENT}",
    ),
    _argument(
        "login", "wandb", r"wandb[ \t]login[ \t]{1,4}(?:--[a-z]{3,20}[ \t]{1,4}){0,4}[\"']?([A-Za-z0-9_-]{20,200})"
    ),
    _argument(" -a", "redis-cli", rf"redis-cli[ \t]{_SKIPPED}(?<=[ \t])-a[ \t]{{1,4}}{_ARGUMENT}"),
    _argument(" -w", "ldap", rf"ldap(?:search|modify|add|whoami)[ \t]{_SKIPPED}(?<=[ \t])-w[ \t]{{1,4}}{_ARGUMENT}"),
    _argument(" -P", "unzip", rf"unzip[ \t]{_SKIPPED}(?<=[ \t])-P[ \t]{{1,4}}{_ARGUMENT}"),
    _argument(
        " -pass", "openssl", rf"openssl[ \t]{_SKIPPED}[ \t]-pass(?:in|out)?[ \t]{{1,4}}\\{{0,64}}[\"']?pass:({_VALUE})"
    ),
    _argument(
        " set",
        "configure",
        rf"configure set[ \t]{{1,4}}[a-z_.]{{0,40}}(?:secret_access_key|session_token)[ \t]{{1,4}}{_ARGUMENT}",
    ),
    _argument(
        "chpasswd",
        "chpasswd",
        r"echo[ \t]{1,4}\\{0,64}[\"']?[a-z_][a-z0-9_-]{0,31}:"
        rf"({_VALUE})\\{{0,64}}[\"']?[ \t]{{0,4}}\|[ \t]{{0,4}}(?:sudo[ \t])?chpasswd",
    ),
    _argument(" -U", "smbclient", rf"smbclient[ \t]{_SKIPPED}-U[ \t]{{0,4}}\\{{0,64}}[\"']?[\w.-]{{1,64}}%({_VALUE})"),
)
_FILES = (
    _rule("machine", rf"machine{_GAP}[\w.:-]{{1,255}}{_GAP}login{_GAP}[^\s\\]{{1,128}}{_GAP}"
        rf"(?:account{_GAP}[^\s\\]{{1,128}}{_GAP})?password{_GAP}([^\s\\\"']{{1,200}})"),
    _rule("5432", r"(?<![\w.*/:-])[\w.*-]{1,255}:5432:[\w.*-]{1,128}:[\w.*@-]{1,128}:([^\s:\\\"']{3,200})"),

)  # fmt: skip


_ANY_DATABASE = re.compile(r"(?<![\w.*/:-])[\w.*-]{1,255}:(?:[0-9]{2,5}|\*):\*:[\w.*@-]{1,128}:([^\s:\\\"']{3,200})")


def placed_secrets(text: str, lowered: str, known: str) -> Iterator[Span]:
    """Values that stand where a program, or a file of passwords, expects a secret.

    `lowered` is `text` in lower case, with the same length; `known` has all its words, in lower case.
    """
    yield from argument_secrets(text, known)
    for word, pattern in _FILES:
        if word in known:
            yield from _found(pattern, text, "named_secret")
    if "auth" in known:
        yield from _found(_DOCKER_AUTH, text, "basic_credentials", is_user_and_password)
    if ":*:" in text:
        yield from _found(_ANY_DATABASE, text, "named_secret")
    if "</" in text:
        yield from _tags(text)
    if "value=" in text:
        yield from _attributes(text)
    if "domain" in known or "httponly" in known:
        yield from _cookies(text)
    if ":\n" in text or ":\r" in text or ":\\n" in text or ":\\\\" in text:
        yield from _values_below(text, lowered)
    if "kind" in known and "secret" in known and "data" in known:
        yield from _cluster_secrets(text)


def argument_secrets(text: str, known: str) -> Iterator[Span]:
    """Secrets among the arguments of known programs: `mysql -p…`, `docker login -p …`."""
    for sign, word, pattern in _PROGRAMS:
        if word in known and sign in text:
            yield from _found(pattern, text, "named_secret")


def _found(
    pattern: re.Pattern[str], text: str, kind: str, accept: Callable[[str], bool] | None = None
) -> Iterator[Span]:
    for found in pattern.finditer(text):
        if not _is_reference(found[1]) and (accept is None or accept(found[1])):
            yield kind, *found.span(1)


def _is_reference(value: str) -> bool:
    return value[0] in "$<{%-" or is_placeholder(value)


_DOCKER_AUTH = re.compile(
    r"\"auth\\{0,127}\"[ \t]{0,4}:[ \t]{0,4}\\{0,127}\""
    r"([A-Za-z0-9+/]{6,4096}={0,2})(?=\\{0,127}\")"
)


def is_user_and_password(encoded: str) -> bool:
    """Return whether base64 holds `user:password`."""
    try:
        decoded = binascii.a2b_base64(encoded + "=" * (-len(encoded) % 4))
    except binascii.Error:
        return False
    return b":" in decoded and decoded.isascii() and decoded.decode("ascii").isprintable()


_TAG = re.compile(r"<([A-Za-z_][\w.:-]{2,60})>([^<>\s\\][^<>\r\n\\]{0,500})</\1>")


def _tags(text: str) -> Iterator[Span]:
    for found in _TAG.finditer(text):
        name, value = found[1].rsplit(":", 1)[-1], found[2]
        if not is_secret_name(name, flag=True) or is_placeholder(value.strip()) or " " in value.strip():
            continue
        if "passw" in name.lower() or looks_secret(value):
            yield "named_secret", *found.span(2)


_ATTRIBUTES = re.compile(r"(?:key|name)=(?:\\{0,64}[\"'])([\w.-]{3,60})"
    r"\\{0,64}[\"']\s{1,8}value=(?:\\{0,64}[\"'])([^\"'\r\n\\]{4,200})", re.IGNORECASE)  # fmt: skip


def _attributes(text: str) -> Iterator[Span]:
    for found in _ATTRIBUTES.finditer(text):
        name, value = found[1], found[2]
        if (
            is_secret_name(name, flag=True)
            and not is_placeholder(value)
            and ("passw" in name.lower() or looks_secret(value))
        ):
            yield "named_secret", *found.span(2)


_OBJECT = re.compile(r"\{[^{}]{10,4000}\}")
_COOKIE_VALUE = re.compile(r"\"value\\{0,127}\"[ \t]{0,4}:[ \t]{0,4}\\{0,127}\"([^\"\\]{4,4096})")
_COOKIE_MEMBER = re.compile(r"\"(?:domain|httpOnly|sameSite)\\{0,127}\"")


def _cookies(text: str) -> Iterator[Span]:
    """Values of cookies as a browser stores them, known by the members around."""
    for found in _OBJECT.finditer(text):
        if _COOKIE_MEMBER.search(found[0]) is None or '"name' not in found[0]:
            continue
        value = _COOKIE_VALUE.search(found[0])
        if value is not None and not is_placeholder(value[1]) and looks_secret(value[1]):
            yield "named_secret", found.start() + value.start(1), found.start() + value.end(1)


_BELOW = re.compile(
    r"(?:passw(?:or)?d|passphrase|api[_ -]?key|secret|token)[\"']?:[ \t]{0,4}"
    r"(?:\r?\n|\\{1,64}n)(?:[ \t]{0,16}|(?:\\{1,64}t){0,4})([^\s\"'\\]{6,200})"
    r"(?=[ \t]{0,4}(?:[\r\n\"']|\\{1,64}[nr\"]|$))"
)


def _values_below(text: str, lowered: str) -> Iterator[Span]:
    for found in _BELOW.finditer(lowered):
        value = text[found.start(1) : found.end(1)]
        if value[-1] not in ":,{[(;" and value[0] not in "-#/<{$[" and looks_secret(value):
            yield "named_secret", *found.span(1)


_CLUSTER_SECRET = re.compile(r"kind\"?:[ \t]{0,4}\"?Secret\"?\b")
_BREAK = r"(?:\s|\\{1,64}[nrt]){0,16}"
_CLUSTER_DATA = re.compile(rf"(?:stringData|data)\"?:{_BREAK}\{{?")
_CLUSTER_MEMBER = re.compile(
    rf"{_BREAK},?{_BREAK}\"?[\w.-]{{1,80}}\"?:[ \t]{{0,4}}(?:[|>]-?{_BREAK})?"
    r"\"?([^\s\"\\{}]{4,8192})\"?(?=\s|,|\}|\"|\\|$)"
)


def _cluster_secrets(text: str) -> Iterator[Span]:
    """Members of `data` in a Kubernetes secret, in YAML or JSON."""
    end = 0
    for found in _CLUSTER_SECRET.finditer(text):
        data = _CLUSTER_DATA.search(text, max(end, found.start() - 2000), found.end() + 4000)
        end = data.end() if data else end
        while data is not None and (member := _CLUSTER_MEMBER.match(text, end)) is not None:
            yield "named_secret", *member.span(1)
            end = member.end()
