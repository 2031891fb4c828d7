"""Credentials made up from templates, the contexts they stand in, and harmless texts beside them.

The templates are data (`tests/data/secrets`): no file of the repository holds anything that a scanner takes for a leak.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parents[1] / "data/secrets"
_LOWER, _UPPER, _DIGITS, _HEX = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789",
    "0123456789abcdef",
)
_ALPHABETS = {
    "h": _HEX,
    "a": _LOWER + _UPPER + _DIGITS,
    "w": _LOWER + _UPPER + _DIGITS + "_-",
    "u": _UPPER + _DIGITS,
    "k": _UPPER + "234567",
    "l": _LOWER + _DIGITS,
    "d": _DIGITS,
    "b": _LOWER + _UPPER + _DIGITS + "+/",
    "c": _LOWER + _DIGITS,
    "p": _LOWER + _UPPER + _DIGITS + "!?%+*@",
    "r": _LOWER + _UPPER + _DIGITS,
}
_SLOT = re.compile(r"<([hawukldbcpr])([0-9]{1,3})>")


class Credential(NamedTuple):
    """One credential: its kind or place, who names it, the text it stands in, and the part nobody may see."""

    kind: str
    source: str
    text: str
    secret: str


def _filled(template: str, dice: random.Random) -> str:
    def fill(found: re.Match[str]) -> str:
        letters = dice.choices(_ALPHABETS[found[1]], k=int(found[2]))
        if found[1] in "aw":  # neither begins nor ends with a mark, which would belong to the text around
            letters[0], letters[-1] = dice.choice(_LOWER), dice.choice(_DIGITS)
        if found[1] in "rcp":
            letters[:3] = dice.choice(_LOWER), dice.choice(_DIGITS), dice.choice(_UPPER if found[1] != "c" else _LOWER)
        return "".join(letters)

    return _SLOT.sub(fill, template)


def _rows(name: str) -> Iterator[list[str]]:
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line.split(" | ", 2)


def tokens(seed: int = 1) -> list[Credential]:
    """Return one credential for each shape of `shapes.txt`, alone."""
    dice = random.Random(seed)
    made = [(kind, source, _filled(template, dice)) for kind, source, template in _rows("shapes.txt")]
    made.append(("private_key", "gitleaks", private_key(dice)))
    return [Credential(kind, source, token, token) for kind, source, token in made]


def private_key(dice: random.Random) -> str:
    """Return a private key block of nonsense."""
    lines = "\n".join(_filled("<b64>", dice) for _ in range(6))
    return f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----"


def named(seed: int = 1) -> list[Credential]:
    """Return one credential for each notation of `names.txt`, in its notation."""
    dice = random.Random(seed)
    made = []
    for place, source, template in _rows("names.txt"):
        before, secret, after = re.split("[«»]", _filled(template, dice).replace(r"\n", "\n"))
        made.append(Credential(place, source, before + secret + after, secret))
    return made


CONTEXTS: dict[str, Callable[[str], str]] = {
    "alone": lambda token: token,
    "in a sentence": lambda token: f"failed with {token}, retrying",
    "behind a line break": lambda token: f"$ cat .env\n{token}\nok",
    "behind a tab": lambda token: f"a\t{token}",
    "behind a carriage return": lambda token: f"12 %\r{token}",
    "coloured": lambda token: f"\x1b[31m{token}\x1b[0m",
    "coloured with many numbers": lambda token: f"\x1b[1;38;5;208m{token}\x1b[0m",
    "behind a colour without its escape": lambda token: f"[32m{token}[0m",
    "in quotes": lambda token: f'x="{token}"',
    "in brackets": lambda token: f"({token})",
    "percent-encoded": lambda token: f"https://host/log?text=done%0A{token}",
    "behind a spelled escape": lambda token: rf"b'done\n{token}\n'",
    "behind a hexadecimal escape": lambda token: rf"done\x0a{token}",
    "behind a code point": lambda token: rf"\u001b[0m\u2192{token}",
}
"""Where a token stands in what programs print."""


def nested(text: str, depth: int) -> str:
    """Return the text inside JSON inside JSON, `depth` times."""
    for level in range(depth):
        text = json.dumps({"output": text} if level % 2 else ["log", text])
    return text


def corpus() -> list[tuple[str, Credential]]:
    """Return credentials in their contexts, with the names of these: a shape in two, a notation plain and nested."""
    names = list(CONTEXTS)
    found = []
    for number, token in enumerate(tokens(7)):
        for step in (0, 5):
            context = names[(number + step) % len(names)]
            text = nested(CONTEXTS[context](token.text), (number + step) % 3)
            found.append((context, token._replace(text=text)))
    for number, credential in enumerate(named(7)):
        depth = 1 + number % 3
        found.append((credential.kind, credential))
        found.append((f"{credential.kind}, nested", credential._replace(text=nested(credential.text, depth))))
    return found


def harmless() -> list[tuple[str, str]]:
    """Return harmless texts, with their sources: each template three times, with ids of its own."""
    dice = random.Random(5)
    rows = [*_pairs("harmless.txt")] * 3
    return [(source, _filled(text, dice).replace(r"\n", "\n")) for source, text in rows]


def _pairs(name: str) -> Iterator[tuple[str, str]]:
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            source, _, text = line.partition(" | ")
            yield source, text
