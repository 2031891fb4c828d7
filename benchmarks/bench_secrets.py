"""How many credentials are found, how many harmless texts are taken for some, and how fast? Ours beside detect-secrets.

    python -m benchmarks.bench_secrets [--rounds 3]

The corpus is the tests' (tests/data/secrets): credentials in their places and contexts, harmless texts of evaluations.
Speed is measured over the streams and snapshots of recorded runs. detect-secrets joins in where it is installed
(`pip install '.[bench]'`); it reads line by line and reports, ours also replaces.
"""

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from eventstore.redaction.redactor import find_secrets, redact_text
from tests.tools.credentials import corpus, harmless

ROOT = Path(__file__).parents[1]


def ours(text: str) -> bool:
    """Whether our finder sees a credential in the text."""
    return bool(find_secrets(text))


def detect_secrets() -> Callable[[str], bool]:
    """Return the same question asked of detect-secrets, with all its plugins and filters; it reads files."""
    from detect_secrets import SecretsCollection
    from detect_secrets.settings import default_settings

    def found(text: str) -> bool:
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file, default_settings():
            file.write(text)
            file.flush()
            secrets = SecretsCollection()
            secrets.scan_file(file.name)
            return any(True for _ in secrets)

    return found


def lines_of_runs() -> list[str]:
    """Return the lines of all recorded streams and snapshots."""
    paths = sorted((ROOT / "tests/data/runs").rglob("*.json*"))
    return [line for path in paths for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]


def rate(work: Callable[[], object], characters: int, rounds: int) -> float:
    """Return millions of characters a second of CPU time, the best of some rounds."""
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return characters / min(seconds) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    credentials, calm, lines = [one.text for _, one in corpus()], [text for _, text in harmless()], lines_of_runs()
    text = "\n".join(lines)
    finders: dict[str, Callable[[str], bool]] = {"compass-es": ours}
    if importlib.util.find_spec("detect_secrets") is not None:
        finders["detect-secrets"] = detect_secrets()
    else:
        print("detect-secrets is not installed", file=sys.stderr)
    print(f"{len(credentials)} credentials, {len(calm)} harmless texts, {len(text) / 1e6:.1f} MB of recorded runs")
    print(f"{'finder':16}{'found':>8}{'false alarms':>14}{'MB/s':>8}")
    for name, finds in finders.items():
        share = sum(map(finds, credentials)) / len(credentials)
        alarms = sum(map(finds, calm))
        sample = text if name == "compass-es" else text[:200_000]  # the other takes minutes for all
        speed = rate(lambda finds=finds, sample=sample: finds(sample), len(sample), rounds)  # type: ignore[misc]
        print(f"{name:16}{share:>8.1%}{alarms:>14}{speed:>8.2f}")
    replaced = rate(lambda: redact_text(text), len(text), rounds)
    single = rate(lambda: [redact_text(line) for line in lines], len(text), rounds)
    print(f"replacing: {replaced:.1f} MB/s in one text, {single:.1f} MB/s line by line")


if __name__ == "__main__":
    main()
