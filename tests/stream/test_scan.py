"""Scan: from the front, whole lines, every verdict with its place, nothing skipped silently."""

import os
import random
import tracemalloc
from pathlib import Path

import pytest
import xxhash

from eventstore.errors import InputError
from eventstore.format import codec
from eventstore.format.chain import Chain
from eventstore.format.records import VERDICTS
from eventstore.format.seal import read_proof, seal
from eventstore.stream import line_reader
from eventstore.stream.lock_file import LOCK_NAME, Mark, Witness, parse_witness, render_slot, render_writer, slot_offset
from eventstore.stream.scan import Scan, scan
from projections import fold
from projections.snapshots import progress
from tests.tools.recorded import RUNS
from tests.tools.streams import plain_line, sealed_lines, sealed_stream


def read(tmp_path: Path, content: bytes) -> tuple[list[str | None], Scan]:
    """Task ids of the accepted records, and the scan; the accounting is checked on the way."""
    path = tmp_path / "progress.jsonl"
    path.write_bytes(content)
    stream = scan(path)
    tasks = [record.event.task_id for record in stream]
    assert stream.lines.read == content.count(b"\n")
    assert stream.lines.read == stream.lines.kept + stream.lines.damaged + stream.lines.blank
    assert stream.records == len(tasks) == stream.lines.kept + stream.lines.salvaged
    again = scan(path)
    assert sum(len(block.heads) for block in again.blocks()) == len(tasks)
    assert again.verdicts == stream.verdicts
    return tasks, stream


def verdicts(stream: Scan) -> dict[str, int]:
    return {name: count for name, count in stream.verdicts.items() if name != "unsealed"}


def only(stream: Scan, code: str) -> tuple[int | None, int | None, int | None]:
    """Place of the one finding there is: line, offset, length."""
    findings = [finding for finding in stream.findings if finding.code != "unsealed"]
    assert [finding.code for finding in findings] == [code], findings
    return findings[0].line, findings[0].offset, findings[0].length


LINES = [plain_line(number) + b"\n" for number in range(5)]
AT = [sum(map(len, LINES[:number])) for number in range(6)]


def test_empty_stream_is_fine(tmp_path: Path) -> None:
    """No records, no verdicts."""
    tasks, stream = read(tmp_path, b"")
    assert tasks == [] and not stream.verdicts and stream.tail.torn_bytes == 0


def test_truncated_last_line_is_not_an_error(tmp_path: Path) -> None:
    """A torn tail is a number: the writer died or is at work."""
    tasks, stream = read(tmp_path, b"".join(LINES[:2]) + LINES[2][:17])
    assert tasks == ["t0", "t1"]
    assert stream.tail.torn_bytes == 17 and stream.tail.offset == AT[2]
    assert only(stream, "torn_tail") == (3, AT[2], 17)
    assert not stream.damaged


def test_whole_record_without_its_newline_is_torn_too(tmp_path: Path) -> None:
    """Whole lines only: SQL, replay and the next reader all leave it out until its newline is there."""
    tasks, stream = read(tmp_path, LINES[0] + LINES[1][:-1])
    assert tasks == ["t0"] and verdicts(stream) == {"torn_tail": 1}


def test_power_loss_leaves_nul_bytes_at_the_end(tmp_path: Path) -> None:
    """A run of NUL bytes without a newline is a torn tail, and said so."""
    tasks, stream = read(tmp_path, LINES[0] + b"\0" * 4096)
    assert tasks == ["t0"] and verdicts(stream) == {"torn_tail": 1}
    assert "NUL" in stream.findings[0].message


@pytest.mark.parametrize(
    "rubbish",
    [
        b"rubbish",
        b"\0" * 100,
        b"[1, 2]",
        b"42",
        b"null",
        b'{"a": 1}',
        b'{"run_id":"r"',
        b"\xff\xfe",
        b"{" * 5000,
        LINES[1][:-1].replace(b"plan", b"pl\xffn"),
        LINES[1][:-1].replace(b"1001.5", b'"x"'),
        LINES[1][:-1].replace(b'"payload":{}', b'"payload":[]'),
        LINES[1][:-1].replace(b'"t1"', b'"t\x001"'),
    ],
)
def test_whole_line_that_is_no_event_is_corrupt_and_the_rest_is_read(tmp_path: Path, rubbish: bytes) -> None:
    """The verdict has the line's place, and reading goes on with the next line."""
    tasks, stream = read(tmp_path, LINES[0] + rubbish + b"\n" + LINES[2])
    assert tasks == ["t0", "t2"]
    assert only(stream, "corrupt_line") == (2, AT[1], len(rubbish) + 1)
    assert stream.damaged


@pytest.mark.parametrize("cut", [1, 12, 60, len(LINES[1]) - 2])
def test_crash_then_append_glues_a_half_record_to_a_whole_one(tmp_path: Path, cut: int) -> None:
    """SIGKILL in mid-write, and the next append lands on the same line: the intact record behind is kept."""
    tasks, stream = read(tmp_path, LINES[0] + LINES[1][:cut] + LINES[2] + LINES[3])
    assert tasks == ["t0", "t2", "t3"]
    assert only(stream, "glued_line")[:2] == (2, AT[1])


def test_nul_block_in_the_middle_keeps_what_follows(tmp_path: Path) -> None:
    """A block of NUL bytes before a record is rubbish; the record, and everything after it, is read."""
    tasks, stream = read(tmp_path, LINES[0] + b"\0" * 512 + LINES[1] + LINES[2])
    assert tasks == ["t0", "t1", "t2"] and verdicts(stream) == {"glued_line": 1}


def test_body_and_newline_in_two_writes_interleave(tmp_path: Path) -> None:
    """Two writers that write record and newline apart leave `{a}{b}` and a blank line: both records are kept."""
    tasks, stream = read(tmp_path, LINES[0] + LINES[1][:-1] + LINES[2][:-1] + b"\n\n" + LINES[3])
    assert tasks == ["t0", "t1", "t2", "t3"]
    assert verdicts(stream) == {"glued_line": 1} and stream.lines.blank == 1


def test_nested_object_in_a_damaged_line_is_not_taken_for_a_record(tmp_path: Path) -> None:
    """Only a whole envelope counts as a record inside a damaged line."""
    inner = '{"run_id": "r", "event": "task_finished", "timestamp": 1}'
    damaged = b'{"run_id":"r","event":"phase_changed","timestamp":1,"payload":{"x":' + inner.encode() + b"},,}\n"
    tasks, stream = read(tmp_path, LINES[0] + damaged + LINES[1])
    assert tasks == ["t0", "t1"] and verdicts(stream) == {"corrupt_line": 1}


def test_newline_in_place_of_a_comma_damages_one_line(tmp_path: Path) -> None:
    """A byte that became a newline splits a line in two that are none; they don't heal when put together."""
    broken = LINES[1].replace(b',"timestamp"', b'\n"timestamp"')
    tasks, stream = read(tmp_path, LINES[0] + broken + LINES[2])
    assert tasks == ["t0", "t2"] and verdicts(stream) == {"corrupt_line": 2}


def test_line_of_another_run_is_foreign(tmp_path: Path) -> None:
    """Two runs in one file: the first line says whose stream it is, the other's lines are not used."""
    tasks, stream = read(tmp_path, LINES[0] + plain_line(7, run_id="other") + b"\n" + LINES[1])
    assert tasks == ["t0", "t1"]
    assert only(stream, "foreign_run")[:2] == (2, AT[1])
    assert stream.run_id == "r"


def test_what_json_writers_in_the_wild_produce_is_read(tmp_path: Path) -> None:
    """BOM, CRLF, blank lines, NaN, huge integers, lone surrogates, repeated keys, U+2028: read, not refused."""
    odd = [
        b"\xef\xbb\xbf" + plain_line(0) + b"\r",
        b"",
        b" \t",
        plain_line(1, payload={"x": float("nan"), "y": float("-inf")}),
        plain_line(2, payload={"x": 2**90}, attempt=10**40),
        plain_line(3, payload={"x": "\ud83d"}),
        plain_line(4)[:-1] + b',"phase":"evaluate"}',
        plain_line(5, payload={"x": "a\u2028b\x85c"}),
        plain_line(6, payload={"x": 1}).replace(b'"x":1', b'"x":1e999'),
        plain_line(7, payload={"x": 1}).replace(b'"x":1', b'"x":' + b"9" * 5000),
    ]
    tasks, stream = read(tmp_path, b"\n".join(odd) + b"\n")
    assert tasks == [f"t{number}" for number in range(8)]
    assert not verdicts(stream) and stream.lines.blank == 2


def test_a_second_byte_order_mark_is_rubbish_before_a_record(tmp_path: Path) -> None:
    """One may begin a line; of two the line is damaged, and the record behind them is kept."""
    tasks, stream = read(tmp_path, LINES[0] + b"\xef\xbb\xbf\xef\xbb\xbf" + LINES[1] + LINES[2])
    assert tasks == ["t0", "t1", "t2"]
    assert only(stream, "glued_line")[:2] == (2, AT[1])


def test_a_record_on_two_lines_does_not_make_up_for_two_records_on_one(tmp_path: Path) -> None:
    """As many records as lines, and all of it JSON with commas between: the lines are damaged all the same."""
    split = LINES[1].replace(b",", b"\n", 1)
    glued = LINES[2].rstrip(b"\n") + b"," + LINES[3]
    assert split != LINES[1]
    tasks, stream = read(tmp_path, LINES[0] + split + glued)
    assert tasks == ["t0", "t2", "t3"]
    assert verdicts(stream) == {"corrupt_line": 2, "glued_line": 1}


def test_payload_nested_beyond_any_parser_still_counts(tmp_path: Path) -> None:
    """A payload that can't be held is sound JSON all the same, or it is damage: never a crash."""
    deep = plain_line(1).replace(b'"payload":{}', b'"payload":{"x":' + b"[" * 900 + b"]" * 900 + b"}")
    deeper = plain_line(2).replace(b'"payload":{}', b'"payload":{"x":' + b"[" * 90_000 + b"]" * 90_000 + b"}")
    tasks, stream = read(tmp_path, LINES[0] + deep + b"\n" + deeper + b"\n" + LINES[3])
    assert tasks in (["t0", "t1", "t3"], ["t0", "t3"])
    assert verdicts(stream).keys() == {"corrupt_line"}


def test_more_unknown_events_than_known_ones(tmp_path: Path) -> None:
    """Types of a later version are kept under their own names, many of them too."""
    content = b"".join(plain_line(n, event=f"future_{n % 100}") + b"\n" for n in range(3000))
    tasks, stream = read(tmp_path, content)
    assert len(tasks) == 3000 and not verdicts(stream)


# -- sealed streams


def test_sealed_stream_proves_itself(tmp_path: Path) -> None:
    """Contiguous numbers, each line the successor of the one before: no verdict at all."""
    lines = sealed_stream(1000)
    tasks, stream = read(tmp_path, b"".join(lines))
    assert len(tasks) == 1000 and not stream.verdicts and stream.sealed


def test_golden_vectors_of_the_seal() -> None:
    """The proof's bytes are the format: they never change."""
    text, digest = seal(b'{"run_id":"r"}', 17, "00000000000000aa")
    assert digest == "0878ef0e34f4a71a"
    assert text == (b'{"run_id":"r","log":{"seq":17,"prev":"00000000000000aa","xxh3":"' + digest.encode() + b'"}}\n')
    first, _ = seal(b'{"run_id":"r"}', 0, "0" * 16, b'"writer":{"id":"w"},')
    assert first.startswith(b'{"run_id":"r","log":{"writer":{"id":"w"},"seq":0,"prev":"0000000000000000","xxh3":"')


@pytest.mark.parametrize("position", [5, 30, 90, 150, 190, 210])
def test_changed_sealed_line_is_told_and_not_used(tmp_path: Path, position: int) -> None:
    """One letter of one line changed into another that JSON allows: the digest knows."""
    lines = sealed_stream(6)
    line = bytearray(lines[3])
    while not chr(line[position]).isalnum():
        position += 1
    line[position] = ord("5") if line[position] != ord("5") else ord("6")
    tasks, stream = read(tmp_path, b"".join([*lines[:3], bytes(line), *lines[4:]]))
    assert tasks == ["t0", "t1", "t2", "t4", "t5"] and stream.damaged
    assert {(f.line, f.offset) for f in stream.findings} == {(4, sum(map(len, lines[:3])))}


def test_missing_sealed_lines_are_a_gap(tmp_path: Path) -> None:
    """Lines 2 and 3 have gone: the next one's number tells how many."""
    lines = sealed_stream(6)
    tasks, stream = read(tmp_path, b"".join(lines[:2] + lines[4:]))
    assert tasks == ["t0", "t1", "t4", "t5"]
    assert only(stream, "gap")[:2] == (3, sum(map(len, lines[:2])))
    assert "2 lines are missing" in stream.findings[0].message


def test_missing_first_lines_are_a_gap(tmp_path: Path) -> None:
    """A stream that begins with number 2 has lost its beginning."""
    lines = sealed_stream(4)
    assert verdicts(read(tmp_path, b"".join(lines[2:]))[1]) == {"gap": 1}


def test_repeated_sealed_line_counts_once(tmp_path: Path) -> None:
    """A copied line is reported and not folded again."""
    lines = sealed_stream(4)
    tasks, stream = read(tmp_path, b"".join([*lines[:2], lines[1], *lines[2:]]))
    assert tasks == ["t0", "t1", "t2", "t3"]
    assert only(stream, "repeated")[0] == 3


def test_swapped_sealed_lines_are_told_and_both_used(tmp_path: Path) -> None:
    """Nothing is lost when lines stand in another order, and the order is not believed silently."""
    lines = sealed_stream(5)
    tasks, stream = read(tmp_path, b"".join([lines[0], lines[2], lines[1], *lines[3:]]))
    assert sorted(map(str, tasks)) == ["t0", "t1", "t2", "t3", "t4"]
    assert stream.damaged and verdicts(stream).keys() <= {"gap", "chain_break"}


def test_line_of_another_chain_breaks_the_chain(tmp_path: Path) -> None:
    """The right number, but written after another line."""
    lines = sealed_stream(5)
    other = sealed_lines([plain_line(number, phase="other") for number in range(5)])
    tasks, stream = read(tmp_path, b"".join([*lines[:3], *other[3:]]))
    assert len(tasks) == 5 and verdicts(stream) == {"chain_break": 1}


def test_corrupt_line_explains_the_number_that_is_missing(tmp_path: Path) -> None:
    """One fault, one finding: the number of the damaged line isn't reported missing once more."""
    lines = sealed_stream(5)
    _, stream = read(tmp_path, b"".join([*lines[:2], b"x" * len(lines[2][:-1]) + b"\n", *lines[3:]]))
    assert verdicts(stream) == {"corrupt_line": 1}


def test_foreign_writer_between_sealed_lines(tmp_path: Path) -> None:
    """A line without proof after sealed ones: somebody else wrote. It is an error, and the line is used."""
    lines = sealed_stream(3)
    tasks, stream = read(tmp_path, b"".join([*lines, plain_line(9) + b"\n"]))
    assert tasks == ["t0", "t1", "t2", "t9"] and verdicts(stream) == {"unsealed_line": 1}


def test_adopted_prefix_is_checked(tmp_path: Path) -> None:
    """A session that found AgentCompass's lines vouches for their bytes; changed afterwards, the chain breaks."""
    prefix = b"".join(LINES)
    adopted = b'"writer":{"id":"w"},"adopted":{"bytes":%d,"lines":5,"xxh3":"%b"},' % (
        len(prefix),
        xxhash.xxh3_64_hexdigest(prefix).encode(),
    )
    lines = sealed_lines([plain_line(n) for n in (5, 6)], seq=5, prev=xxhash.xxh3_64_hexdigest(prefix), session=adopted)
    tasks, stream = read(tmp_path, prefix + b"".join(lines))
    assert len(tasks) == 7 and not stream.verdicts
    changed = prefix.replace(b'"t2"', b'"t9"')
    assert verdicts(read(tmp_path, changed + b"".join(lines))[1]) == {"chain_break": 1}


def adopting_stream() -> list[bytes]:
    """Five unsealed lines, and a session of two that vouches for them."""
    prefix = b"".join(LINES)
    digest = xxhash.xxh3_64_hexdigest(prefix)
    session = b'"writer":{"id":"w"},"adopted":{"bytes":%d,"lines":5,"xxh3":"%b"},' % (len(prefix), digest.encode())
    return LINES + sealed_lines([plain_line(n) for n in (5, 6)], seq=5, prev=digest, session=session)


@pytest.mark.parametrize("lines", [LINES, sealed_stream(6), adopting_stream()], ids=["plain", "sealed", "adopted"])
@pytest.mark.parametrize("tail", [b"", b'{"run_id":"r', b"garbage\n"], ids=["whole", "torn", "damaged"])
def test_a_pass_gone_on_with_ends_as_one_from_the_front(tmp_path: Path, lines: list[bytes], tail: bytes) -> None:
    """Records, line numbers, findings, tail and chain: nothing tells that a part had been read before."""
    path = tmp_path / "progress.jsonl"
    for cut in range(1, len(lines) + 1):
        path.write_bytes(b"".join(lines[:cut]))
        before = scan(path)
        count = len(list(before))
        path.write_bytes(b"".join(lines) + tail)
        chain = Chain.resume(before.chain.last, before.chain.start, before.chain.unsealed)
        after = Scan.resume(
            path, offset=before.bytes, lines=before.lines.read, records=count, run_id=before.run_id, chain=chain
        )
        whole = scan(path)
        records = list(whole)
        assert list(after) == records[count:]
        assert (after.findings, after.tail, after.lines.read) == (whole.findings, whole.tail, whole.lines.read)
        assert (after.chain.last, after.chain.unsealed) == (whole.chain.last, whole.chain.unsealed)


def test_adopting_nothing_of_what_is_there_breaks_the_chain(tmp_path: Path) -> None:
    """Unsealed lines before the first sealed one that no session found."""
    _, stream = read(tmp_path, LINES[0] + b"".join(sealed_stream(2)))
    assert verdicts(stream) == {"chain_break": 1}


def with_repair(lines: list[bytes], **changes: object) -> list[bytes]:
    """A stream of six without lines 2 and 3, and a repair that says so."""
    proofs = [read_proof(line) for line in lines]
    assert proofs[1] and proofs[3] and proofs[5]
    entry = {"first_seq": 2, "last_seq": 3, "follows": proofs[1].xxh3, "resumes_seq": 4, "resumes_prev": proofs[3].xxh3}
    repaired = plain_line(0, event="stream_repaired", payload={"removed": [entry | changes]})
    return lines[:2] + lines[4:] + sealed_lines([repaired], seq=6, prev=proofs[5].xxh3, session=b'"writer":{},')


def test_repair_accounts_for_what_it_removed(tmp_path: Path) -> None:
    """A gap that a `stream_repaired` record names is no finding any more."""
    _, stream = read(tmp_path, b"".join(with_repair(sealed_stream(6))))
    assert not stream.verdicts and not stream.findings


@pytest.mark.parametrize("member", ["first_seq", "last_seq", "follows", "resumes_seq", "resumes_prev"])
def test_repair_accounts_for_nothing_else(tmp_path: Path, member: str) -> None:
    """A record that names another place, by number or digest, explains nothing."""
    _, stream = read(tmp_path, b"".join(with_repair(sealed_stream(6), **{member: 7})))
    assert verdicts(stream) == {"gap": 1}


def test_damage_after_a_repair_is_seen(tmp_path: Path) -> None:
    """A line that goes missing next to what a repair removed is a gap again."""
    lines = with_repair(sealed_stream(6))
    _, stream = read(tmp_path, b"".join(lines[:1] + lines[2:]))
    assert verdicts(stream) == {"gap": 1}


def test_a_sealed_line_of_another_run_takes_no_place_in_the_chain(tmp_path: Path) -> None:
    """Wherever it stands and whatever its number: the stream's own lines are all used."""
    lines, other = sealed_stream(5), sealed_stream(8, run_id="other")
    for place in range(1, 6):
        for foreign in other:
            tasks, stream = read(tmp_path, b"".join([*lines[:place], foreign, *lines[place:]]))
            assert len(tasks) == 5 and verdicts(stream) == {"foreign_run": 1}


# -- the witness


def lock_file(mark: Mark, turn: int = 0) -> bytes:
    content = bytearray(render_writer({"id": "w", "host": "h", "pid": 1}).ljust(slot_offset(2) + 4096))
    slot = render_slot(mark)
    content[slot_offset(turn) : slot_offset(turn) + len(slot)] = slot
    return bytes(content)


def test_stream_shorter_than_its_mark_lost_what_was_promised(tmp_path: Path) -> None:
    """The witness knows how far the stream was on stable storage."""
    lines = sealed_stream(5)
    proof = read_proof(lines[4])
    assert proof is not None
    (tmp_path / LOCK_NAME).write_bytes(lock_file(Mark(4, sum(map(len, lines)), proof.xxh3)))
    assert not read(tmp_path, b"".join(lines))[1].verdicts
    _, stream = read(tmp_path, b"".join(lines[:4]))
    assert verdicts(stream) == {"lost_acknowledged": 1}
    other = sealed_lines([plain_line(number, phase="plam") for number in range(5)], session=b'"writer":{"id":"w"},')
    assert verdicts(read(tmp_path, b"".join(other))[1]) == {"lost_acknowledged": 1}


def test_torn_slot_of_the_mark_is_not_believed() -> None:
    """Two slots take turns; one that a crash tore leaves the other."""
    good, better = Mark(3, 300, "a" * 16), Mark(4, 400, "b" * 16)
    content = bytearray(lock_file(good, 0))
    content[slot_offset(1) : slot_offset(1) + 128] = render_slot(better)
    assert parse_witness(bytes(content)).mark == better
    content[slot_offset(1) + 10] ^= 1
    assert parse_witness(bytes(content)).mark == good
    assert parse_witness(b"\0" * 2000) == Witness()


# -- the file itself


def test_paths_that_are_no_stream_get_words(tmp_path: Path) -> None:
    """Missing, a folder without a stream, a FIFO: a sentence that names the path, and no waiting."""
    with pytest.raises(InputError, match="there is no such file"):
        scan(tmp_path / "nowhere" / "progress.jsonl")
    with pytest.raises(InputError, match="there is no such file"):
        scan(tmp_path)
    (tmp_path / "progress.jsonl").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        scan(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError, match="is a FIFO"):
        scan(tmp_path / "fifo")


def test_no_permission_gets_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal of the system, in words (root may read everything, so the refusal is made)."""

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "progress.jsonl").write_bytes(LINES[0])
    monkeypatch.setattr(line_reader.os, "open", refuse)
    with pytest.raises(InputError, match="no permission"):
        Scan(tmp_path / "progress.jsonl")


def test_line_of_64_mib_is_read_and_memory_stays_near_it(tmp_path: Path) -> None:
    """Long lines are fine, damaged or not, and what follows them is read."""
    size = 64 * 1024 * 1024
    path = tmp_path / "progress.jsonl"
    with path.open("wb") as file:
        file.write(LINES[0] + plain_line(1, payload={"x": "y" * size}) + b"\n" + b"z" * size + b"\n" + LINES[2])
    stream = scan(path)
    assert [head.task_id for block in stream.blocks() for head in block.heads] == ["t0", "t1", "t2"]
    assert verdicts(stream) == {"corrupt_line": 1}


def test_endless_line_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of gigabytes without a newline is a torn tail; one with a newline at last is a corrupt line."""
    monkeypatch.setattr(line_reader, "MAX_LINE_BYTES", 1024 * 1024)
    path = tmp_path / "progress.jsonl"
    with path.open("wb") as file:
        file.write(LINES[0])
        file.truncate(4 * 1024**3)  # sparse: four gigabytes of NUL bytes
        tracemalloc.start()
        stream = scan(path)
        assert sum(len(block.heads) for block in stream.blocks()) == 1
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
        tracemalloc.stop()
        assert stream.tail.torn_bytes == 4 * 1024**3 - len(LINES[0])
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + LINES[1])
    stream = scan(path)
    assert [head.task_id for block in stream.blocks() for head in block.heads] == ["t0", "t1"]
    assert verdicts(stream) == {"corrupt_line": 1} and not stream.tail.torn_bytes


def test_file_that_grows_while_it_is_read_gives_a_consistent_prefix(tmp_path: Path) -> None:
    """Only what was there at the start is read: a forming line is a torn tail, never half a record."""
    path = tmp_path / "progress.jsonl"
    path.write_bytes(b"".join(LINES[:3]) + LINES[3][:20])
    stream = scan(path)
    with path.open("ab") as file:
        file.write(LINES[3][20:] + LINES[4])
    assert [record.event.task_id for record in stream] == ["t0", "t1", "t2"]
    assert stream.tail.torn_bytes == 20
    assert [record.event.task_id for record in scan(path)] == ["t0", "t1", "t2", "t3", "t4"]


def test_file_that_shrinks_while_it_is_read_ends(tmp_path: Path) -> None:
    """A truncation meanwhile ends the pass; nothing is made up."""
    path = tmp_path / "progress.jsonl"
    path.write_bytes(b"".join(plain_line(n) + b"\n" for n in range(5000)))
    stream = scan(path)
    blocks = iter(stream.blocks())
    next(blocks)
    os.truncate(path, 1000)
    assert sum(len(block.heads) for block in blocks) == 0


def test_records_know_their_place(runs_root: Path) -> None:
    """Offset, length, line number and bytes of a record are those in the file."""
    path = runs_root / RUNS["r_retry2"] / "progress.jsonl"
    content = path.read_bytes()
    for number, record in enumerate(scan(path)):
        assert record.seq == number and record.line_number == number + 1
        assert content[record.offset : record.offset + record.length] == record.line
        assert record.event == codec.decode(record.line)


# -- every cut, and random damage


def test_cut_at_every_byte_loses_no_whole_line(runs_root: Path, tmp_path: Path) -> None:
    """r_ok's stream ended at each of its bytes: whole lines are read, the rest is a torn tail, the fold works."""
    content = (runs_root / RUNS["r_ok"] / "progress.jsonl").read_bytes()
    path = tmp_path / "progress.jsonl"
    with path.open("wb", buffering=0) as file:
        for end in range(len(content) + 1):
            if end:
                file.write(content[end - 1 : end])
            whole = content.rfind(b"\n", 0, end) + 1
            stream = scan(path)
            state = fold(progress, stream)
            assert state.counts.events == content.count(b"\n", 0, whole)
            assert stream.tail.torn_bytes == end - whole
            assert verdicts(stream) == ({"torn_tail": 1} if end > whole else {})


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_always_told_and_stays_where_it_is(runs_root: Path, tmp_path: Path, seed: int) -> None:
    """Bytes flipped, zeroed, dropped, doubled in an unsealed stream: lines without damage are all read.

    A change inside a string can leave a sound line; then the record count is whole and nothing needs to be told.
    """
    chance = random.Random(seed)
    content = (runs_root / RUNS["r_kill_mid"] / "progress.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for _ in range(60):
        at = chance.randrange(len(content))
        change = chance.choice(["flip", "zero", "drop", "double", "random"])
        new = {
            "flip": bytes([content[at] ^ (1 << chance.randrange(8))]),
            "zero": b"\0",
            "drop": b"",
            "double": content[at : at + 1] * 2,
            "random": bytes([chance.randrange(256)]),
        }[change]
        path = tmp_path / "progress.jsonl"
        path.write_bytes(content[:at] + new + content[at + 1 :])
        stream = scan(path)
        count = sum(len(block.heads) for block in stream.blocks())
        assert stream.lines.read == stream.lines.kept + stream.lines.damaged + stream.lines.blank
        if stream.damaged:
            assert count >= len(lines) - 2
            hit = next(n for n in range(len(lines)) if starts[n + 1] > at)
            offsets = [f.offset for f in stream.findings if VERDICTS[f.code] == "error"]
            assert starts[max(0, hit - 1)] <= min(o for o in offsets if o is not None) <= at
        else:
            assert count >= len(lines) - 1 and (count == len(lines) or stream.tail.torn_bytes)


def test_fast_and_slow_way_agree(runs_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block decoder is an optimisation: without it the records, verdicts and places are the same."""
    chance = random.Random(7)
    content = (runs_root / RUNS["r_retry"] / "progress.jsonl").read_bytes()
    sealed = b"".join(sealed_stream(400))
    for _ in range(60):
        data = bytearray(chance.choice([content, sealed]))
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(data))
            pieces = [b"", b"\n", b"{", b"}{", b"\0", b",", b"\n\n", data[at : at + 500]]
            data[at : at + chance.randrange(3)] = chance.choice(pieces)
        path = tmp_path / "progress.jsonl"
        path.write_bytes(data)
        answers = []
        for slow in (False, True):
            with monkeypatch.context() as patch:
                if slow:
                    patch.setattr(Scan, "_decode_block", lambda self, lines: None)
                stream = scan(path)
                records = [(r.seq, r.offset, r.line_number, r.event, r.line) for r in stream]
                answers.append((records, stream.verdicts, stream.findings, stream.lines, stream.tail))
        assert answers[0] == answers[1]
