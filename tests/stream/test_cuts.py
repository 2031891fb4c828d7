"""One stream cut at many places, through every command that reads: the same count everywhere, the right verdict."""

import random
from collections.abc import Callable
from pathlib import Path

from tests.tools.commands import Command

RunCopy = Callable[[str], Path]


def cut_points(content: bytes, samples: int, seed: int) -> list[int]:
    """Seeded places, and all line ends ± 1."""
    ends = [at + 1 for at, byte in enumerate(content) if byte == 10]
    cuts = {end + step for end in ends for step in (-1, 0, 1) if end + step <= len(content)}
    return sorted(cuts | set(random.Random(seed).sample(range(len(content)), samples)))


def test_replay_show_runs_and_verify_of_every_cut(run_dir: RunCopy, command: Command) -> None:
    """r_ok's stream cut at 200 seeded places and at all line ends ± 1: right counts, right verdict, no traceback."""
    run = run_dir("r_ok")
    content = (run / "progress.jsonl").read_bytes()
    for cut in cut_points(content, 200, 3):
        (run / "progress.jsonl").write_bytes(content[:cut])
        whole, torn = content.count(b"\n", 0, cut), cut - (content.rfind(b"\n", 0, cut) + 1)
        assert command("replay", run, "--dry-run", "--json") in (0, 1)
        document = command.document
        assert document["events"] == whole
        assert document["verdicts"].get("torn_tail", 0) == (1 if torn else 0)
        assert not document["verdicts"].keys() - {"torn_tail", "unsealed"}
        assert command("show", run, "--json") == 0
        assert command.document["events"] == whole
        assert command("runs", run.parent, "--json") == 0
        assert command.document["runs"][0]["events"] == whole
        assert command("verify", run, "--json") in (0, 1)
        document = command.document
        assert document["checked"]["events"] == whole
        assert ("torn_tail" in {finding["code"] for finding in document["findings"]}) == bool(torn)


def test_sql_counts_what_replay_counts_at_every_cut(run_dir: RunCopy, command: Command) -> None:
    """No row for a torn or damaged line, the same number of events as replay folds."""
    run = run_dir("r_ok")
    content = (run / "progress.jsonl").read_bytes()
    for cut in random.Random(9).sample(cut_points(content, 20, 4), 12):
        (run / "progress.jsonl").write_bytes(content[:cut])
        assert command("query", "select count(*) n, count(run_id) r from events", run, "--json") == 0
        assert command.document == [{"n": content.count(b"\n", 0, cut), "r": content.count(b"\n", 0, cut)}]
