"""Where credentials stand in a text, and the same text without them.

The rules are our own. The well-kept rule sets are a Go program's configuration (gitleaks) and a scanner for source
trees that brings an HTTP client and YAML (detect-secrets); both find leaks in code, line by line, and leave the
replacing to others. Needed here: a small thing without dependencies, fast enough for the recording path, that
*replaces*, and that leaves alone what evaluations are full of: hashes, task ids, token counts, special tokens.

Literal needles are looked for first, so that a text without any costs next to nothing. Every rule is linear in the
text. Pure: no environment, no clock, nothing remembered.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .assignments import Span, assigned_secrets, contained_secrets, is_placeholder
from .names import MASK
from .places import is_user_and_password, placed_secrets
from .shapes import SHAPES, Shape, is_mixed


class Match(NamedTuple):
    """A credential in a text: its kind, and the characters [start, end) that must not be shown."""

    kind: str
    start: int
    end: int


SHORTEST_LITERAL = 4
"""Shorter literal secrets are ignored: replacing every "ab" would destroy the text and protect nothing."""


def find_secrets(text: str) -> list[Match]:
    """Return all credentials in `text`, in order and without overlaps. Masks and references (`${VAR}`) are none."""
    return _merged(_spans(text, ()), text)


def redact_text(text: str, secrets: Sequence[str] = ()) -> str:
    """Return `text` with a mask in place of each credential and each of the literal `secrets`; itself if it has none.

    The one function for a text on its way out, to a file or to a person; `redact_values` does the same for the strings
    inside an object. What `find_secrets` reports is what is masked here.
    Redacting the result again changes nothing.
    """
    # A mask can bring a rule to see what it did not see before, in theory. Each round leaves fewer characters that
    # aren't `*`, so this ends; in practice the second round finds nothing.
    while matches := _merged(_spans(text, secrets), text):
        pieces: list[str] = []
        position = 0
        for match in matches:
            pieces += (text[position : match.start], _mask(text, match))
            position = match.end
        text = "".join(pieces) + text[position:]
    return text


_QUOTED_KEY = re.compile(r"(\\{0,127}[\"'])[ \t]{0,8}:[ \t]{0,8}$")


def _mask(text: str, match: Match) -> str:
    """The mask; in quotes where the secret stood without any behind a quoted key, so that JSON stays JSON."""
    key = _QUOTED_KEY.search(text, max(0, match.start - 20), match.start) if match.kind == "named_secret" else None
    return f"{key[1]}{MASK}{key[1]}" if key else MASK


def _merged(spans: list[Span], text: str) -> list[Match]:
    matches: list[Match] = []
    for kind, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):
        if not text[start:end].strip("*"):
            continue
        if matches and start < matches[-1].end:
            last = matches[-1]
            matches[-1] = Match(last.kind, last.start, max(last.end, end))
        else:
            matches.append(Match(kind, start, end))
    return matches


def _spans(text: str, secrets: Sequence[str]) -> list[Span]:
    spans: list[Span] = []
    known = text if len(text) < _MANY else _vocabulary(text)
    for secret in secrets:
        if secret in text and len(secret) >= SHORTEST_LITERAL:
            spans += (("literal", found.start(), found.end()) for found in re.finditer(re.escape(secret), text))
    if _LONG_WORD.search(text) is not None or "-----BEGIN" in text:
        spans += _shaped(text, known)
    if (
        ":" in text
        or "=" in text
        or "--" in text
        or "earer" in text
        or "EARER" in text
        or "asic" in text
        or "ASIC" in text
        or " -" in text
        or "login" in text
        or "configure" in text
        or "</" in text
    ):
        spans += _in_context(text, known)
    return spans


_LONG_WORD = re.compile("[A-Za-z0-9_-]{14}")
"""No shape but a private key does without such a run of characters."""


_WORD_CHARACTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_TO_WORDS = bytes(byte if byte in _WORD_CHARACTERS or byte > 127 else 32 for byte in range(256))


def _is_word(shape: Shape) -> bool:
    """Whether all of a match stands in one word, so that the words of a text can rule the shape out."""
    return bool(shape.body) and "/" not in shape.body and set(shape.needle.encode()) <= _WORD_CHARACTERS


def _any_of(literals: Iterable[str]) -> str:
    """A pattern for any of the literals that tries no beginning twice."""
    branches: dict[str, list[str]] = {}
    for literal in literals:
        branches.setdefault(literal[:1], []).append(literal[1:])
    if "" in branches:
        return ""  # one ends here: the longer ones need not be told apart
    return "(?:" + "|".join(re.escape(first) + _any_of(rest) for first, rest in branches.items()) + ")"


_NUMBERED = tuple(enumerate(SHAPES))
_PREFIXED = tuple((number, shape.needle, shape) for number, shape in _NUMBERED if _is_word(shape) and shape.needle)
_PREFIXLESS = tuple((number, shape) for number, shape in _NUMBERED if not shape.needle)
_ACROSS = tuple((number, shape.needle, shape) for number, shape in _NUMBERED if not _is_word(shape))
_ANY_PREFIX = re.compile(_any_of(needle for _, needle, _ in _PREFIXED))
_ANY_PREFIXLESS = re.compile("|".join(shape.body for _, shape in _PREFIXLESS))
_SPELLED = tuple(row for row in _ACROSS if set(row[1].encode()) <= _WORD_CHARACTERS)
_UNSPELLED = tuple(row for row in _ACROSS if row not in _SPELLED)
"""Shapes that stand across words: those whose needle is in one word, and the others."""
_MANY = 1_000
"""From here on a search for each prefix is faster than one for any, and the words of a text than the text."""


def _vocabulary(text: str) -> str:
    """The different words of a text, one a line. Records repeat themselves: it is shorter, and rules out as much."""
    words = set(text.encode("utf-8", "replace").translate(_TO_WORDS).split())
    return b"\n".join(words).decode("utf-8", "replace")


def _shaped(text: str, known: str) -> Iterator[Span]:
    found = [(number, shape) for number, needle, shape in _SPELLED if needle in known]
    found += [(number, shape) for number, needle, shape in _UNSPELLED if needle in text]
    split = _LONG_WORDS.findall(known)
    words = "\n".join(split)
    if words:
        if len(words) > _MANY or _ANY_PREFIX.search(words) is not None:
            found += [
                (number, shape)
                for number, needle, shape in _PREFIXED
                if needle in words and shape.word.search(words) is not None
            ]
        if max(map(len, split)) >= _SHORTEST_PREFIXLESS and _ANY_PREFIXLESS.search(words) is not None:
            found += _PREFIXLESS
    for _, shape in sorted(found, key=lambda pair: pair[0]):  # of two for the same characters the first counts
        yield from _matches(shape, text)


_SHORTEST_WORD = 14
_SHORTEST_PREFIXLESS = 26
_LONG_WORDS = re.compile(rf"[A-Za-z0-9_.-]{{{_SHORTEST_WORD},}}")


def _matches(shape: Shape, text: str) -> Iterator[Span]:
    pattern, accept = shape.pattern, shape.accept
    for found in pattern.finditer(text):
        start, end = found.span(pattern.groups)
        if accept is None or accept(text[start:end]):
            yield shape.kind, start, end


def _in_context(text: str, known: str) -> Iterator[Span]:
    lowered = _lowered(text)
    known = lowered if known is text else known.lower()
    yield from assigned_secrets(text, lowered, known)
    if "{" in text or "[" in text:
        yield from contained_secrets(text, lowered, known)
    if "@" in text and ("://" in text or "\\/" in text):
        yield from _url_credentials(text)
    if ("?" in text or "&" in text) and any(name in lowered for name in _PARAMETER_ENDS):
        yield from _url_parameters(lowered)
    if "bearer" in known:
        yield from _bearer(lowered)
    if "basic" in known:
        yield from _basic(text, lowered)
    if "curl" in known:
        yield from _curl_user(text)
    yield from placed_secrets(text, lowered, known)


def _lowered(text: str) -> str:
    """In lower case, character for character."""
    lowered = text.lower()
    # U+0130 is the one character whose lower case is two.
    return lowered if len(lowered) == len(text) else text.replace("\u0130", "I").lower()


_USER_INFO = re.compile(r":(?:\\{0,31}/){2}([^\s/?#\"'`<>\\]*)@")


def _url_credentials(text: str) -> Iterator[Span]:
    """`user:password` of an address, and a user that alone is a key."""
    for found in _USER_INFO.finditer(text):
        user, colon, password = found[1].partition(":")
        if not password:
            is_secret = len(user) >= (12 if colon else 20) and is_mixed(user)
        else:
            is_secret = not is_placeholder(password)
        if is_secret:
            yield "url_credentials", *found.span(1)


_PARAMETER_ENDS = ("key=", "sig=", "signature=", "code=", "auth=", "token=", "credential=")
_URL_PARAMETER = re.compile(
    r"[?&](?:key|sig|signature|code|auth|x-amz-(?:signature|security-token|credential)|x-goog-(?:signature|credential))"
    r"=([a-z0-9%._~+/=-]{16,})"
)


def _url_parameters(lowered: str) -> Iterator[Span]:
    for found in _URL_PARAMETER.finditer(lowered):
        if found[0][1:5] in ("code", "auth") and not is_mixed(found[1]):
            continue
        yield "url_parameter", *found.span(1)


_BEARER = re.compile(r"bearer(?:[ \t]{1,4}|%20|\+)[\"']?([a-z0-9._~+/=|-]{8,})")
_BASIC = re.compile(r"basic(?:[ \t]{1,4}|%20)([a-z0-9+/]{6,4096}={0,2})(?![a-z0-9+/=])")


def _bearer(lowered: str) -> Iterator[Span]:
    for found in _BEARER.finditer(lowered):
        if len(found[1]) >= 20 or is_mixed(found[1]):  # not the "bearer certificate" of a sentence
            yield "bearer_token", *found.span(1)


def _basic(text: str, lowered: str) -> Iterator[Span]:
    for found in _BASIC.finditer(lowered):
        start, end = found.span(1)
        if is_user_and_password(text[start:end]):
            yield "basic_credentials", start, end


_CURL_USER = re.compile(r"(?:-u|--user|--proxy-user)[ =]{1,4}[\"']?([^\s\"':]{1,64}:[^\s\"']+)")


def _curl_user(text: str) -> Iterator[Span]:
    for found in _CURL_USER.finditer(text):
        if not is_placeholder(found[1].partition(":")[2]):
            yield "url_credentials", *found.span(1)
