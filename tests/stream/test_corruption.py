"""Corruption campaigns: every byte, every line, splices, two writers, several faults at once; and what they found.

The whole campaign, with the counts that docs/faults.md gives: `python -m tests.tools.crash.corruption`.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventstore.format.records import VERDICTS
from eventstore.stream.scan import STREAM_NAME, scan
from tests.tools.crash import corruption as c

SEED = 20260301


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where the system has one."""
    import os
    import tempfile

    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        yield Path(folder)


def read(folder: Path, content: bytes) -> tuple[list[bytes], dict[str, int]]:
    (folder / STREAM_NAME).write_bytes(content)
    found = scan(folder)
    texts = [line.rstrip(b"\n") for block in found.blocks() for line in block.lines]
    return texts, {name: count for name, count in found.verdicts.items() if VERDICTS[name] == "error"}


def test_no_corruption_of_a_sealed_stream_goes_unseen(memory: Path) -> None:
    """False negatives: none, and lines add up; what is no finding changed nothing that is read, or took something from
    the very end. With a single fault every whole line is read, and the first error is at the first changed line."""
    campaign = c.sealed_campaign(memory, SEED, 1500, lines=4)
    assert not campaign.failures, campaign.failures[0]
    assert campaign.total("tried") > 15_000 and campaign.total("missed") == 0 == campaign.total("wrong")
    assert campaign.total("harmless") + campaign.total("tail") < 60


def test_with_a_witness_no_missing_end_goes_unseen(memory: Path) -> None:
    """Every cut and every tail of zeros of a stream that is known to have been on stable storage."""
    campaign = c.witnessed_campaign(memory, SEED)
    assert not campaign.failures, campaign.failures[0]
    assert campaign.total("seen") == campaign.total("tried") > 2000


def test_without_proof_what_is_no_event_is_seen_and_the_rest_is_not(memory: Path) -> None:
    """Lines of AgentCompass: a changed letter inside a string can't be seen; lines add up all the same."""
    campaign = c.plain_campaign(memory, SEED, 300, lines=2)
    assert campaign.total("wrong") == 0
    assert 0.5 < campaign.total("seen") / campaign.total("tried") < 0.95
    assert campaign.counts["newline"]["missed"] == campaign.counts["zero"]["missed"] == 0


def test_the_campaign_would_notice() -> None:
    """A corruption that is seen, one that changes nothing, a lost end, and one that is missed: told apart."""
    rng = random.Random(1)
    lines = c.sealed_stream(rng, 3)
    campaign = c.Campaign(Path("unused"))
    texts = [line.rstrip(b"\n") for line in lines]
    whole = b"".join(lines)
    assert campaign._outcome(lines, whole, texts, True, 0) == "seen"
    assert campaign._outcome(lines, whole + b"\n", texts, False, 0) == "harmless"
    assert campaign._outcome(lines, whole, texts[:2], False, 0) == "tail"
    assert campaign._outcome(lines, whole, texts[1:], False, 0) == "missed" and campaign.failures


# -- what the campaigns found, each by itself


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "plain"])
def test_a_changed_run_id_in_the_first_line_takes_no_other_line_away(tmp_path: Path, sealed: bool) -> None:
    """One flipped bit in the first line's run_id made every other line one of another run, and none was read."""
    rng = random.Random(2)
    lines = c.sealed_stream(rng, 5) if sealed else [line + b"\n" for line in c.plain_stream(rng, 5)]
    broken = lines[0].replace(b'"run_id":"r"', b'"run_id":"s"')
    texts, errors = read(tmp_path, b"".join([broken, *lines[1:]]))
    assert texts == [line.rstrip(b"\n") for line in lines[1:]]
    assert errors == ({"digest_mismatch": 1} if sealed else {"foreign_run": 1})


def test_a_proof_under_another_name_is_damage(tmp_path: Path) -> None:
    """A flipped bit in the word "log" made a sealed line one of those without proof, read where it stood alone."""
    line = c.sealed_stream(random.Random(3), 1)[0]
    texts, errors = read(tmp_path, line.replace(b',"log":{', b',"lof":{'))
    assert not texts and errors == {"digest_mismatch": 1}


def test_a_sealed_line_of_another_run_takes_no_place(tmp_path: Path) -> None:
    """Judged in the chain before its run was looked at, it took a true line's number, which was then repeated."""
    lines, other = c.sealed_stream(random.Random(4), 4), c.sealed_stream(random.Random(5), 4, "other")
    texts, errors = read(tmp_path, b"".join([*lines[:2], other[2], *lines[2:]]))
    assert texts == [line.rstrip(b"\n") for line in lines] and errors == {"foreign_run": 1}


def test_a_sealed_line_that_lost_its_middle_is_no_record(tmp_path: Path) -> None:
    """Cut from "log" to within its writer, a changed line ended as a whole record before its proof, and was used."""
    lines = c.sealed_stream(random.Random(6), 3)
    broken = lines[0].replace(b'"log":{"writer":{"id":"w","host":"h","pid":1,"boot":"b","opened_at"', b'"l"')
    assert broken != lines[0] and broken.replace(b"t0", b"t9") != broken
    texts, errors = read(tmp_path, b"".join([broken.replace(b"t0", b"t9"), *lines[1:]]))
    assert texts == [line.rstrip(b"\n") for line in lines[1:]] and errors == {"corrupt_line": 1}
