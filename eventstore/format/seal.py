"""The proof that a sealed line carries: `log`, always the last member (docs/format.md, "A line").

    ,"log":{"seq":17,"prev":"<16 digits>","xxh3":"<16 digits>"}}

`xxh3` is XXH3-64 (seed 0) of the line's bytes from its first up to and including the quote that opens the digest. The
ending has a fixed shape, so checks work on bytes. XXH3 finds accidents; it is no defence against someone who rewrites
the file.
"""

import re

from msgspec import Struct
from xxhash import xxh3_64_hexdigest

NO_PREDECESSOR = "0" * 16
CLOSING = b'"}}\n'
UNHASHED_BYTES = 16 + len(CLOSING)
"""The digest itself and what closes the line after it: everything before is hashed."""

_PROOF = re.compile(rb'"seq":(\d{1,19}),"prev":"([0-9a-f]{16})","xxh3":"([0-9a-f]{16})"\}\}$')


class Proof(Struct, frozen=True):
    """What a sealed line says of itself: its number, its predecessor's digest, its own digest."""

    seq: int
    prev: str
    xxh3: str


def seal(line: bytes, seq: int, prev: str, session: bytes = b"") -> tuple[bytes, str]:
    """Return the sealed line (newline included) of a compact `line` without one, and its digest.

    `session` holds the members that open a writer's session, as JSON text with a comma at the end, or nothing.
    """
    body = b'%b,"log":{%b"seq":%d,"prev":"%b","xxh3":"' % (line[:-1], session, seq, prev.encode())
    digest = xxh3_64_hexdigest(body)
    return body + digest.encode() + CLOSING, digest


def read_proof(line: bytes) -> Proof | None:
    """Return the proof at the end of a line, not yet checked, or None where the fixed shape isn't there."""
    found = _PROOF.search(line.rstrip(b"\r\n"), max(0, len(line) - 100))
    return None if found is None else Proof(int(found[1]), found[2].decode(), found[3].decode())


def proves_itself(line: bytes, proof: Proof) -> bool:
    """Return whether the digest at the end of a line is the digest of the line."""
    return xxh3_64_hexdigest(line.rstrip(b"\r\n")[: -UNHASHED_BYTES + 1]) == proof.xxh3


def check_chain(lines: list[bytes], seq: int, prev: str) -> str | None:
    """The last digest of `lines` if all prove themselves and follow `seq - 1` and `prev` without a gap, else None.

    One pass over bytes: nothing is decoded, and the whole expected endings are compared at once.
    """
    digests = [xxh3_64_hexdigest(line[:-UNHASHED_BYTES]) for line in lines]
    expected = [
        f',"log":{{"seq":{number},"prev":"{before}","xxh3":"{digest}"}}}}\n'
        for number, before, digest in zip(range(seq, seq + len(lines)), [prev, *digests], digests, strict=False)
    ]
    # A session's first line has `writer` before `seq`, so its ending differs and the caller looks closer.
    found = [line[-len(ending) :] for line, ending in zip(lines, expected, strict=True)]
    return digests[-1] if "".join(expected).encode() == b"".join(found) else None
