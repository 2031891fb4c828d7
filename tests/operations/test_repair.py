"""`repair`: a plan first; then whole records kept, damage set aside, the damaged stream kept, a record of it all."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore.errors import LockedError, OutputError, RefusedError
from eventstore.format.events import PhaseChanged
from eventstore.format.records import VERDICTS, Finding
from eventstore.format.seal import read_proof
from eventstore.operations.repair.repair import TEMPORARY_NAME, Repaired, repair_run
from eventstore.stream.filesystem import FileSystem
from eventstore.stream.lock import RunLock
from eventstore.stream.lock_file import LOCK_NAME, Mark, read_witness, render_slot, render_writer, slot_offset
from eventstore.stream.log import EventLog
from eventstore.stream.scan import Scan, scan
from projections.repair_plan import ACTIONS, Piece, Row, in_order, lay_out
from tests.tools.commands import Command
from tests.tools.streams import plain_line, sealed_lines, sealed_stream

RUN = "20260301_120000"


def make(tmp_path: Path, content: bytes, *, mark: Mark | None = None) -> Path:
    run = tmp_path / RUN
    run.mkdir(exist_ok=True, parents=True)
    (run / "progress.jsonl").write_bytes(content)
    if mark is not None:
        slot = render_slot(mark)
        writer = render_writer({"id": "w", "host": "elsewhere", "pid": 1})
        (run / LOCK_NAME).write_bytes(writer.ljust(slot_offset(0)) + slot)
    return run


def mark_of(lines: list[bytes]) -> Mark:
    proof = read_proof(lines[-1])
    assert proof is not None
    return Mark(proof.seq, sum(map(len, lines)), proof.xxh3)


def read(run: Path) -> tuple[list[str | None], Scan]:
    found = scan(run, max_findings=None)
    return [record.event.task_id for record in found], found


def errors(found: Scan) -> dict[str, int]:
    return {name: count for name, count in found.verdicts.items() if VERDICTS[name] == "error"}


def apply(run: Path, *, accept_loss: bool = False) -> Repaired:
    repaired = repair_run(run, apply=True, accept_loss=accept_loss)
    assert repaired.applied and not errors(read(run)[1]), repaired
    return repaired


def repair_record(run: Path) -> dict[str, Any]:
    record = json.loads((run / "progress.jsonl").read_bytes().splitlines()[-1])
    assert record["event"] == "stream_repaired"
    payload: dict[str, Any] = record["payload"]
    return payload


# -- the plan


def test_every_verdict_has_an_action() -> None:
    """Whatever scan can say is answered, but for the remark that lines carry no proof."""
    assert ACTIONS.keys() == VERDICTS.keys() - {"unsealed"}


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    """Without --apply not a byte, not a name, not a time of the run changes, even on a folder that can't be written."""
    run = make(tmp_path, b"".join(sealed_stream(3)) + b"garbage\n")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir()}
    run.chmod(0o500)
    repaired = repair_run(run)
    run.chmod(0o700)
    assert [step.action for step in repaired.steps] == ["set_aside"] and not repaired.applied
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir()} == before


def test_a_sound_stream_needs_nothing(tmp_path: Path) -> None:
    """No plan, no backup, no record, with or without --apply."""
    content = b"".join(sealed_stream(3))
    run = make(tmp_path, content)
    assert not repair_run(run).steps and not repair_run(run, apply=True).applied
    assert sorted(os.listdir(run)) == ["progress.jsonl"] and (run / "progress.jsonl").read_bytes() == content


def test_a_torn_tail_alone_needs_no_repair(tmp_path: Path) -> None:
    """The next writer sets it aside (anthropics/claude-code#52387, verifiers#803: a stub before the next append)."""
    run = make(tmp_path, b"".join(sealed_stream(3)) + b'{"run_id":')
    assert not repair_run(run).steps
    with EventLog.open(run) as log:
        log.append(PhaseChanged(task_id="next"))
    assert read(run)[0] == ["t0", "t1", "t2", "next"] and not errors(read(run)[1])


def test_layout_accounts_for_every_byte() -> None:
    """Kept pieces and ranges set aside never overlap, and together cover all but newlines of glued lines."""
    rng = random.Random(5)
    for _ in range(300):
        findings, salvaged, position = [], [], 0
        for _ in range(rng.randint(0, 6)):
            start = position + rng.choice((0, 0, rng.randint(1, 50)))
            length = rng.randint(20, 60)
            code = rng.choice(("corrupt_line", "glued_line", "gap", "repeated", "digest_mismatch"))
            findings.append(Finding(code=code, severity="error", message="m", offset=start, length=length))
            if code == "glued_line":
                salvaged.append((start + rng.randint(0, 9), start + length - rng.randint(1, 9)))
            position = start + length
        size = position + rng.randint(0, 30)
        layout = lay_out(findings, salvaged, size)
        spans = sorted([(piece.start, piece.end) for piece in layout.pieces] + layout.aside)
        covered, end = 0, 0
        for first, last in spans:
            assert end <= first < last
            covered, end = covered + last - first, last
        assert size - covered <= sum(finding.code == "glued_line" for finding in findings) and end <= size


def test_displaced_lines_go_back_and_take_along_what_follows_them() -> None:
    """Sealed lines by number; a line without a number stays behind its neighbour."""
    rows = [Row(0, 10, 0, False), Row(10, 20, 2, False), Row(20, 30, None, False), Row(30, 40, 1, False)]
    assert in_order(rows) == [Piece(0, 10), Piece(30, 40), Piece(10, 30)]


# -- carried out


def test_halves_are_set_aside_and_whole_records_inside_glued_lines_kept(tmp_path: Path) -> None:
    """A stub and a whole line on one line (github/copilot-cli#4098, elizaOS/eliza#30878, can1357/oh-my-pi#8596)."""
    lines = sealed_stream(4)
    run = make(tmp_path, lines[0] + lines[1] + lines[2][:90] + lines[2] + lines[3])
    repaired = apply(run)
    tasks, _ = read(run)
    assert tasks == ["t0", "t1", "t2", "t3", None]
    assert (run / "progress.jsonl").read_bytes().startswith(b"".join(lines))
    assert (run / str(repaired.set_aside)).read_bytes() == lines[2][:90] + b"\n"
    assert (repaired.events.certain, repaired.events.inferred, repaired.events.lost) == (4, 0, 0)


def test_two_records_on_one_line_are_two_again(tmp_path: Path) -> None:
    """Nothing but a newline was missing: nothing is set aside (EuroEval/EuroEval#1951)."""
    lines = sealed_stream(3)
    run = make(tmp_path, lines[0].rstrip() + lines[1] + lines[2])
    repaired = apply(run)
    assert read(run)[0] == ["t0", "t1", "t2", None] and repaired.set_aside is None


def test_nul_block_in_the_middle_loses_nothing_after_it(tmp_path: Path) -> None:
    """Zeros between whole lines (anthropics/claude-code#49876, etcd-io/etcd#4012)."""
    lines = sealed_stream(5)
    run = make(tmp_path, b"".join([*lines[:2], b"\0" * 4096, *lines[2:]]))
    apply(run)
    assert read(run)[0] == ["t0", "t1", "t2", "t3", "t4", None]


def test_the_damaged_stream_is_kept_and_the_record_names_it(tmp_path: Path) -> None:
    """Backup byte for byte, under a unique name; the record has its size and digest, and what was removed."""
    lines = sealed_stream(5)
    damaged = lines[0] + lines[1] + b"rubbish\n" + lines[3] + lines[4]
    run = make(tmp_path, damaged)
    (run / "progress.jsonl.unrepaired-1").write_bytes(b"something else")
    repaired = apply(run)
    assert repaired.backup == "progress.jsonl.unrepaired-2"
    assert (run / repaired.backup).read_bytes() == damaged
    payload = repair_record(run)
    assert payload["backup"]["bytes"] == len(damaged) and payload["backup"]["file"] == repaired.backup
    proofs = [read_proof(line) for line in lines]
    assert proofs[1] and proofs[2]
    assert payload["removed"] == [
        {
            "first_seq": 2,
            "last_seq": 2,
            "follows": proofs[1].xxh3,
            "resumes_seq": 3,
            "resumes_prev": proofs[2].xxh3,
        }
    ]
    assert repaired.events.lost == 1 and (run / str(repaired.set_aside)).read_bytes() == b"rubbish\n"


def test_lines_in_another_order_go_back_to_their_places(tmp_path: Path) -> None:
    """Two blocks out of order: numbers tell where they belong (etcd-io/etcd#6378: appends reordered)."""
    lines = sealed_stream(8)
    run = make(tmp_path, b"".join([*lines[:2], *lines[5:7], *lines[2:5], lines[7]]))
    repaired = apply(run)
    assert (run / "progress.jsonl").read_bytes().startswith(b"".join(lines))
    assert "removed" in repair_record(run) and not repair_record(run)["removed"]
    assert repaired.events.lost == 0 and "move" in {step.action for step in repaired.steps}


def test_repeated_lines_count_once(tmp_path: Path) -> None:
    """A doubled line is set aside (PrimeIntellect-ai/prime#856: a fork's buffer written twice)."""
    lines = sealed_stream(3)
    run = make(tmp_path, b"".join([*lines, lines[1], lines[2]]))
    apply(run)
    assert read(run)[0] == ["t0", "t1", "t2", None]


def test_lines_of_another_run_are_set_aside(tmp_path: Path) -> None:
    """Whichever run has the name in run_info.json stays (akka/akka-core#17598: two writers on one id)."""
    lines, other = sealed_stream(3), sealed_stream(2, run_id="other")
    run = make(tmp_path, b"".join([lines[0], other[0], *lines[1:], other[1]]))
    apply(run)
    assert read(run)[0] == ["t0", "t1", "t2", None]
    run = make(tmp_path / "b", b"".join([other[0], *lines]))
    (run / "run_info.json").write_text('{"run_id": "r"}')
    apply(run)
    assert read(run)[0] == ["t0", "t1", "t2", None]


def test_lines_without_proof_are_kept_and_vouched_for_until_they_change(tmp_path: Path) -> None:
    """Somebody else wrote between sealed lines: kept, counted as inferred, no error any more; a later change is one."""
    lines = sealed_stream(4)
    run = make(tmp_path, b"".join([*lines[:2], plain_line(7) + b"\n", *lines[2:]]))
    repaired = apply(run)
    assert read(run)[0] == ["t0", "t1", "t7", "t2", "t3", None]
    assert (repaired.events.certain, repaired.events.inferred) == (4, 1)
    path = run / "progress.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"t7"', b'"t8"'))
    assert errors(read(run)[1]) == {"unsealed_line": 1}


def test_a_stream_of_agentcompass_is_repaired_and_adopted(run_dir: Callable[[str], Path]) -> None:
    """Damage in an unsealed stream: the repair's own line vouches for all that is left, and the log goes on from it."""
    run = run_dir("r_ok")
    path = run / "progress.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:10], b"\0" * 300 + b"\n", lines[10][:50] + lines[10], *lines[11:]]))
    apply(run)
    _, found = read(run)
    assert found.records == len(lines) + 1 and found.chain.last is not None and found.chain.last.seq == len(lines)
    with EventLog.open(run) as log:
        assert log.append(PhaseChanged(task_id="more")) == len(lines) + 1
    path.write_bytes(path.read_bytes().replace(b"tasks_loaded", b"tasks_loadet", 1))
    assert errors(read(run)[1]) == {"chain_break": 1}


def test_an_adopted_beginning_that_was_damaged_is_vouched_for_anew(tmp_path: Path) -> None:
    """Lines that a session had adopted are damaged: repaired, and damage that comes later is seen."""
    run = make(tmp_path, b"".join(plain_line(number) + b"\n" for number in range(4)))
    with EventLog.open(run, durability="os") as log:
        log.append(PhaseChanged(task_id="sealed"))
    path = run / "progress.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"event":"phase_changed","timestamp":1001.5', b'"x":1', 1))
    repaired = apply(run)
    assert read(run)[0] == ["t0", "t2", "t3", "sealed", None] and repaired.events.lost == 1
    path.write_bytes(path.read_bytes().replace(b'"t3"', b'"t4"'))
    assert errors(read(run)[1]) == {"chain_break": 1}


def test_a_second_repair_after_new_damage(tmp_path: Path) -> None:
    """Repairs add up: the second accounts for what the first one did not, or no longer can."""
    lines = sealed_stream(9)
    run = make(tmp_path, b"".join([*lines[:3], b"x\n", *lines[4:]]))
    apply(run)
    path = run / "progress.jsonl"
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([content[0], *content[2:]]))
    apply(run, accept_loss=True)
    content = path.read_bytes().splitlines(keepends=True)
    without_first_record = [line for line in content if b"stream_repaired" not in line or line is content[-1]]
    path.write_bytes(b"".join(without_first_record))
    apply(run, accept_loss=True)
    assert read(run)[0].count(None) == 2 and len(list(run.glob("*.unrepaired-*"))) == 3


# -- what was promised


def test_below_the_mark_repair_needs_consent(tmp_path: Path) -> None:
    """Events that were on stable storage are gone: refused, nothing changed, until --accept-loss."""
    lines = sealed_stream(5)
    run = make(tmp_path, lines[0] + lines[1] + b"rubbish\n" + lines[3] + lines[4], mark=mark_of(lines))
    assert repair_run(run).promised == ["seq 2 is missing"]
    before = sorted(os.listdir(run))
    with pytest.raises(RefusedError, match="seq 2 is missing"):
        repair_run(run, apply=True)
    assert sorted(os.listdir(run)) == before
    repaired = apply(run, accept_loss=True)
    assert repaired.promised == ["seq 2 is missing"]
    with EventLog.open(run) as log:
        log.append(PhaseChanged(task_id="next"))
    assert not errors(read(run)[1])


def test_damage_that_takes_nothing_promised_needs_no_consent(tmp_path: Path) -> None:
    """Rubbish in between and lines in another order move the mark, but every promised line is there."""
    lines = sealed_stream(5)
    run = make(tmp_path, b"".join([b"rubbish\n", lines[1], lines[0], *lines[2:]]), mark=mark_of(lines))
    assert errors(read(run)[1])["lost_acknowledged"] == 1
    assert not repair_run(run).promised
    apply(run)
    mark = read_witness(run).mark
    assert mark is not None and mark.seq == 5 and mark.bytes == (run / "progress.jsonl").stat().st_size


def test_a_stream_cut_short_of_its_mark(tmp_path: Path) -> None:
    """Whole lines gone from the end: only the witness knows (nats-io/nats-server#7564, etcd-io/etcd#14143)."""
    lines = sealed_stream(5)
    run = make(tmp_path, b"".join(lines[:3]), mark=mark_of(lines))
    with pytest.raises(RefusedError, match="seq 4 was on stable storage, and seq 2 is the last"):
        repair_run(run, apply=True)
    repaired = apply(run, accept_loss=True)
    assert repaired.events.lost == 2 and read(run)[0] == ["t0", "t1", "t2", None]


def test_a_stream_that_is_gone(tmp_path: Path) -> None:
    """Only the lock file is left of it: an empty stream begins, with consent."""
    run = make(tmp_path, b"", mark=mark_of(sealed_stream(2)))
    (run / "progress.jsonl").unlink()
    (run / "run_info.json").write_text('{"run_id": "r"}')
    with pytest.raises(RefusedError):
        repair_run(run, apply=True)
    repaired = apply(run, accept_loss=True)
    assert repaired.backup is None and read(run)[0] == [None]


# -- safety


def test_a_stream_whose_writer_lives_is_not_touched(tmp_path: Path, run_dir: Callable[[str], Path]) -> None:
    """The lock is held; or, without a lock file, stream and last event are young."""
    run = make(tmp_path, b"".join(sealed_stream(2)) + b"x\n")
    with RunLock(run), pytest.raises((RefusedError, LockedError), match=r"lives|at work|writing"):
        repair_run(run, apply=True)
    other = run_dir("r_kill_mid")
    path = other / "progress.jsonl"
    path.write_bytes(b"x\n" + path.read_bytes())
    last = json.loads(path.read_bytes().splitlines()[-1])["timestamp"]
    os.utime(path, (last, last))
    with pytest.raises(RefusedError, match="writer lives"):
        repair_run(other, apply=True, clock=lambda: last + 5)


class Breaking(FileSystem):
    """Stops, as by a signal, at the nth call that changes something."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def write(self, fd: int, content: bytes | memoryview) -> int:
        self._count()
        return os.write(fd, content)

    def replace(self, source: object, target: object) -> None:
        self._count()
        super().replace(source, target)  # type: ignore[arg-type]

    def link(self, source: object, target: object) -> None:
        self._count()
        super().link(source, target)  # type: ignore[arg-type]

    def fsync(self, fd: int) -> None:
        self._count()

    def pwrite(self, fd: int, content: bytes, offset: int) -> int:
        self._count()
        return super().pwrite(fd, content, offset)


def test_interrupted_anywhere_and_called_again(tmp_path: Path) -> None:
    """Stopped before any call: the stream is whole, old or new; a second call ends it; one backup, one record."""
    lines = sealed_stream(5)
    damaged = b"".join([*lines[:2], b"rubbish\n", lines[2][:40] + lines[2], *lines[3:], lines[1]]) + b"torn"
    for calls in range(200):
        run = make(tmp_path / str(calls), damaged)
        try:
            repair_run(run, apply=True, files=Breaking(calls))
            stopped = False
        except KeyboardInterrupt:
            stopped = True
        content = (run / "progress.jsonl").read_bytes()
        assert content == damaged or not errors(read(run)[1])
        repair_run(run, apply=True)
        assert read(run)[0] == ["t0", "t1", "t2", "t3", "t4", None] and not errors(read(run)[1])
        assert [path.read_bytes() for path in run.glob("*.unrepaired-*")] == [damaged]
        assert len(list(run.glob("*.set-aside-*"))) == 1 and not (run / TEMPORARY_NAME).exists()
        if not stopped:
            break
    else:
        pytest.fail("it never came to its end")
    assert calls > 10


def test_no_room_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """A full disk while the new stream is written: a clear error, nothing left behind."""

    class Full(FileSystem):
        def write(self, fd: int, content: bytes | memoryview) -> int:
            raise OSError(28, "No space left on device")

    damaged = b"".join(sealed_stream(2)) + b"x\n"
    run = make(tmp_path, damaged)
    with pytest.raises(OutputError, match="No space left"):
        repair_run(run, apply=True, files=Full())
    assert (run / "progress.jsonl").read_bytes() == damaged
    assert not [name for name in os.listdir(run) if name.startswith((".tmp", "progress.jsonl."))]


def test_a_link_is_not_repaired(tmp_path: Path) -> None:
    """What a link points to belongs elsewhere."""
    run = make(tmp_path, b"".join(sealed_stream(2)) + b"x\n")
    shutil.move(run / "progress.jsonl", tmp_path / "elsewhere")
    (run / "progress.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="symbolic link"):
        repair_run(run, apply=True)


def test_a_record_that_claims_too_much_is_not_believed(tmp_path: Path) -> None:
    """An unsealed `stream_repaired`, or members of the wrong kind, explain nothing and break nothing."""
    lines = sealed_stream(6)
    proof = read_proof(lines[-1])
    assert proof is not None
    odd = {"removed": [7, {"resumes_seq": [1]}], "vouched": {"offset": -1, "bytes": "x"}, "mark": {"seq": []}}
    payloads: list[dict[str, object]] = [odd, {"removed": 3}, {"vouched": 3, "mark": 3}]
    for payload in payloads:
        record = plain_line(0, event="stream_repaired", payload=payload)
        sealed = sealed_lines([record], seq=6, prev=proof.xxh3, session=b'"writer":{},')
        run = make(tmp_path, b"".join([*lines[:2], *lines[4:], *sealed]))
        assert errors(read(run)[1]) == {"gap": 1}


def test_every_corruption_is_repaired(tmp_path: Path) -> None:
    """A seeded sample of the corruption campaign: after --apply no error, and every whole line still read."""
    from tests.tools.crash.corruption import at_random, every_line, every_splice, sealed_stream, two_writers

    rng = random.Random(11)
    lines = sealed_stream(rng, 5, sessions=2)
    tried = [*every_line(lines), *every_splice(lines), *two_writers(lines, rng), *at_random(lines, rng, 300)]
    for _, content in rng.sample(tried, 250):
        run = make(tmp_path, content)
        _, found = read(run)
        before = [record.line.rstrip(b"\n") for record in scan(run)]
        if errors(found):
            apply(run, accept_loss=bool(repair_run(run).promised))  # two writers: both were acknowledged
            after = [record.line.rstrip(b"\n") for record in scan(run)]
            assert sorted(before) == sorted(after[:-1])
        for path in run.iterdir():
            path.unlink()


# -- the command


def test_the_command_shows_a_plan_then_carries_it_out(tmp_path: Path, command: Command) -> None:
    """Exit 1 with a plan, 0 once it is applied, 0 when there is nothing to do; never a question on stdin."""
    lines = sealed_stream(4)
    run = make(tmp_path, b"".join([*lines[:2], b"\x1b[31mrubbish\n", *lines[2:]]))
    assert command("repair", run) == 1
    assert "corrupt_line at byte" in command.err and "nothing was changed" in command.err and not command.out
    assert "\x1b" not in command.err
    assert command("repair", run, "--json") == 1
    document = command.document
    assert document["plan"][0]["code"] == "corrupt_line" and document["plan"][0]["action"] == "set_aside"
    assert not document["applied"] and document["backup"] is None and not document["needs_accept_loss"]
    assert command("repair", run, "--apply", "--json") == 0
    assert command.document["applied"] and command.document["backup"] == "progress.jsonl.unrepaired-1"
    assert command("repair", run, "--apply") == 0 and "nothing to repair" in command.err
    assert command("repair", run, "--json") == 0 and command.document["plan"] == []


def test_the_command_refuses_what_was_promised(tmp_path: Path, command: Command) -> None:
    """Exit 1, in words and as JSON."""
    lines = sealed_stream(4)
    run = make(tmp_path, b"".join(lines[:2]), mark=mark_of(lines))
    assert command("repair", run, "--apply") == 1 and "--accept-loss" in command.err
    assert command("repair", run, "--apply", "--json") == 1 and command.document["error"]["kind"] == "refused"
    assert command("repair", run, "--apply", "--accept-loss") == 0


def test_a_run_without_a_stream_needs_nothing(tmp_path: Path, command: Command) -> None:
    """It failed before its first event: every command answers for it."""
    run = tmp_path / RUN
    run.mkdir()
    (run / "run_info.json").write_text("{}")
    assert command("repair", run) == 0
    assert command("repair", run, "--apply") == 0 and os.listdir(run) == ["run_info.json"]


def test_snapshots_follow_the_repaired_stream(run_dir: Callable[[str], Path], command: Command) -> None:
    """After --apply both snapshots are those of what is left, and the ones before are kept."""
    run = run_dir("r_ok")
    path = run / "progress.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    finished = next(number for number, line in enumerate(lines) if b'"task_finished"' in line)
    path.write_bytes(b"".join([*lines[:finished], b"x\n", *lines[finished + 1 :]]))
    before = (run / "progress.json").read_bytes()
    assert command("repair", run, "--apply") == 0
    assert "progress.json" in command.err
    assert (run / "progress.json.replaced-1").read_bytes() == before
    assert command("replay", run) == 0 and "nothing to do" in command.err
    assert command("repair", run) == 0


def test_verify_names_the_repair_and_nothing_else(run_dir: Callable[[str], Path], command: Command) -> None:
    """After --apply a run gives what it gave before it was damaged, and one finding for information."""
    run = run_dir("r_ok")
    assert command("verify", run, "--json") == 0
    before = {finding["code"] for finding in command.document["findings"]}
    path = run / "progress.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:9], b"\0" * 99 + b"\n", lines[9][:33] + lines[9], *lines[10:]]))
    assert command("verify", run) == 1
    assert command("repair", run, "--apply") == 0
    assert command("verify", run, "--json") == 0
    after = command.document["findings"]
    assert {finding["code"] for finding in after} == before - {"unsealed"} | {"repaired"}
    assert [finding["severity"] for finding in after if finding["code"] == "repaired"] == ["info"]
