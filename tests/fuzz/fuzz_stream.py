"""Coverage-guided fuzzing of reading: any bytes are a stream that is scanned, typed, written again, and laid out.

    make fuzz                                       # a minute
    python -m tests.fuzz.fuzz_stream --seconds 3600       # longer; needs atheris

What breaks is left by atheris as `crash-<digest>`; each becomes a test under its own name.
"""

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

from eventstore.errors import CompassError
from eventstore.format import codec
from eventstore.format.records import VERDICTS
from eventstore.stream.scan import STREAM_NAME, Scan
from projections import replay
from projections.repair_plan import lay_out


def check_stream(path: Path, content: bytes) -> None:
    """What holds of any bytes whatever. Raises AssertionError, or whatever escaped."""
    path.write_bytes(content)
    found = Scan(path, max_findings=None)
    salvaged: list[tuple[int, int]] = []
    count = 0
    for record in found:
        count += 1
        assert content[record.offset : record.offset + record.length] == record.line
        if not record.line.endswith(b"\n"):
            salvaged.append((record.offset, record.offset + record.length))
        check_event(record.line)
    lines = found.lines
    assert lines.read == content.count(b"\n") == lines.kept + lines.damaged + lines.blank
    assert count == found.records == lines.kept + lines.salvaged
    assert found.tail.torn_bytes == len(content) - (content.rfind(b"\n") + 1)
    assert sum(found.verdicts.values()) == len(found.findings) and found.verdicts.keys() <= VERDICTS.keys()
    check_layout(found, salvaged, content)
    rendered = replay(Scan(path)).rendered_progress
    assert rendered == replay(Scan(path)).rendered_progress


def check_event(line: bytes) -> None:
    """An event that was read is written so that it reads the same again."""
    try:
        event = codec.decode(line)
    except CompassError:
        return
    text = codec.encode(event)
    assert b"\n" not in text
    again = codec.encode(codec.decode(text))
    assert again == text, (text, again)


def check_layout(found: Scan, salvaged: list[tuple[int, int]], content: bytes) -> None:
    """Repair's plan keeps or sets aside every byte but newlines, none of them twice."""
    layout = lay_out(found.findings, salvaged, len(content))
    spans = sorted([(piece.start, piece.end) for piece in layout.pieces] + layout.aside)
    end = 0
    for first, last in spans:
        assert end <= first < last <= len(content), spans
        assert not content[end:first].strip(b"\r\n"), spans
        end = last
    assert not content[end:].strip(b"\r\n"), spans


def seeds() -> list[bytes]:
    """Streams to begin with: sealed and not, damaged and sound, and values that JSON writers in the wild produce."""
    from tests.tools.crash.corruption import at_random, every_splice, plain_stream, sealed_stream

    rng = random.Random(1)
    sealed = sealed_stream(rng, 3, sessions=2)
    plain = [line + b"\n" for line in plain_stream(rng, 3)]
    odd = [
        plain[0].replace(b"1000.5", value)
        for value in (b"NaN", b"1e999", b"-Infinity", b"1" * 30, b'"1"', b"true", b"1E2", b"-0")
    ]
    odd += [
        plain[1].replace(b'"payload":{', b'"payload":{' + text)
        for text in (
            b'"a":"\\ud835",',
            b'"a":1,"a":2,',
            b'"a":' + b"[" * 50 + b"]" * 50 + b",",
            b'"\\u0000":"\xc2\x85",',
        )
    ]
    found = [b"".join(sealed), b"".join(plain), *sealed, *odd, b"\xef\xbb\xbf" + plain[0], plain[0][:-1] + b"\r\n", b""]
    found += [content for _, content in at_random(sealed, rng, 30)]
    found += [content for _, content in rng.sample(list(every_splice(sealed)), 30)]
    return found


def main() -> int:
    """Fuzz for a fixed time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, default=None, help="a folder that keeps what was found; else it is lost")
    options = parser.parse_args()
    try:
        import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        print("atheris is not installed here, and has no wheel for every Python: pip install atheris", file=sys.stderr)
        return 2
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        corpus = options.corpus or Path(folder) / "corpus"
        corpus.mkdir(exist_ok=True)
        for number, content in enumerate(seeds()):
            (corpus / f"seed-{number}").write_bytes(content)
        path = Path(folder) / STREAM_NAME
        atheris.instrument_all()
        arguments = [sys.argv[0], f"-max_total_time={options.seconds}", "-max_len=8192", "-timeout=20", str(corpus)]
        atheris.Setup(arguments, lambda content: check_stream(path, content))
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
