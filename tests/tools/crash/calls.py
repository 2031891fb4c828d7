"""The system calls of a shared library, led through a `FileSystem`: DuckDB writes its files itself, and is watched so.

A library reaches the C library through a table of addresses, one a function. While `led` holds, the addresses of the
calls that open, write, sync, name and unname files are those of functions here, which call the methods of the
`FileSystem`. Nothing is installed or compiled; it needs Linux and a 64-bit ELF library that names these functions.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eventstore.stream.filesystem import FileSystem

_I, _L, _P = ctypes.c_int, ctypes.c_ssize_t, ctypes.c_void_p
_KINDS: dict[str, list[Any]] = {
    "open": [_I, ctypes.c_char_p, _I, _I],
    "pwrite": [_L, _I, _P, ctypes.c_size_t, ctypes.c_int64],
    "write": [_L, _I, _P, ctypes.c_size_t],
    "fsync": [_I, _I],
    "fdatasync": [_I, _I],
    "ftruncate": [_I, _I, ctypes.c_int64],
    "unlink": [_I, ctypes.c_char_p],
    "remove": [_I, ctypes.c_char_p],
    "rename": [_I, ctypes.c_char_p, ctypes.c_char_p],
    "fallocate": [_I, _I, _I, ctypes.c_int64, ctypes.c_int64],
}
"""Result, then arguments. On Linux `open` may be called as if it had a fixed number of them."""
_SLOTS = {"x86_64": (6, 7), "aarch64": (1025, 1026)}
"""Types of relocations (GLOB_DAT, JUMP_SLOT) whose target is the address of a function."""
_DYNAMIC, _LOAD = 2, 1
_STRTAB, _SYMTAB, _RELA, _RELASZ, _JMPREL, _PLTRELSZ = 5, 6, 7, 8, 23, 2


def duckdb_library() -> Path:
    """The file of DuckDB's code, loaded."""
    import duckdb

    module = sys.modules.get("_duckdb") or sys.modules.get("duckdb.duckdb") or duckdb
    return Path(str(module.__file__))


def slots(library: Path) -> dict[str, list[int]]:
    """Where in this process the addresses of the functions stand; empty where that can't be told."""
    if not sys.platform.startswith("linux") or os.uname().machine not in _SLOTS or sys.maxsize < 1 << 32:
        return {}
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        if image[:6] != b"\x7fELF\x02\x01":
            return {}
        found = _relocated(image, _SLOTS[os.uname().machine])
    base = _base(library)
    return {name: [base + offset for offset in offsets] for name, offsets in found.items()}


def _relocated(image: mmap.mmap, kinds: tuple[int, ...]) -> dict[str, list[int]]:
    start, size, count = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<HH", image, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", image, start + n * size) for n in range(count)]
    loads = [(address, offset, length) for kind, _, offset, address, _, length, *_ in headers if kind == _LOAD]

    def place(address: int) -> int:
        return next(offset + address - first for first, offset, length in loads if first <= address < first + length)

    dynamic = next(offset for kind, _, offset, *_ in headers if kind == _DYNAMIC)
    tags: dict[int, int] = {}
    while (entry := struct.unpack_from("<qQ", image, dynamic))[0]:
        tags[entry[0]] = entry[1]
        dynamic += 16
    symbols, strings = place(tags[_SYMTAB]), place(tags[_STRTAB])
    found: dict[str, list[int]] = {}
    for table, length in ((tags.get(_JMPREL), tags.get(_PLTRELSZ, 0)), (tags.get(_RELA), tags.get(_RELASZ, 0))):
        if table is None:
            continue
        first = place(table)
        for offset, info, _ in struct.iter_unpack("<QQq", image[first : first + length]):
            if info & 0xFFFFFFFF not in kinds:
                continue
            at = strings + struct.unpack_from("<I", image, symbols + (info >> 32) * 24)[0]
            name = image[at : at + 16].split(b"\0")[0].decode("latin-1").removesuffix("64")
            if name in _KINDS:
                found.setdefault(name, []).append(offset)
    return found


def _base(library: Path) -> int:
    real = os.path.realpath(library)
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == real and int(fields[2], 16) == 0:
            return int(fields[0].split("-")[0], 16)
    raise LookupError(f"{real} is not loaded")


@contextmanager
def led(files: FileSystem, library: Path) -> Iterator[None]:
    """While this holds, the library's calls go through `files`. Raises LookupError where they can't be found."""
    places = slots(library)
    if not {"open", "pwrite", "write", "unlink"} <= places.keys() or not {"fsync", "fdatasync"} & places.keys():
        raise LookupError(f"{library}: its system calls can't be led elsewhere on this system")
    functions = {name: _function(name, method) for name, method in _methods(files).items()}
    before: dict[int, int] = {}
    try:
        for name, addresses in places.items():
            for address in addresses:
                before[address] = _set(address, ctypes.cast(functions[name], _P).value or 0)
        yield
    finally:
        for address, value in before.items():
            _set(address, value)


def _set(address: int, value: int) -> int:
    page = address & -mmap.PAGESIZE
    if ctypes.CDLL(None).mprotect(_P(page), ctypes.c_size_t(mmap.PAGESIZE), _I(3)) != 0:
        raise LookupError("the table of functions can't be written")
    slot = ctypes.c_uint64.from_address(address)
    before = int(slot.value)
    slot.value = value
    return before


def _methods(files: FileSystem) -> dict[str, Callable[..., int | None]]:
    def unsupported(*arguments: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not in this model")

    return {
        "open": lambda path, flags, mode: files.open(os.fsdecode(path), flags, mode & 0o7777),
        "pwrite": lambda fd, data, count, offset: files.pwrite(fd, ctypes.string_at(data, count), offset),
        "write": lambda fd, data, count: files.write(fd, ctypes.string_at(data, count)),
        "fsync": files.fsync,
        "fdatasync": files.fsync,
        "ftruncate": files.ftruncate,
        "unlink": lambda path: files.unlink(os.fsdecode(path)),
        "remove": lambda path: files.unlink(os.fsdecode(path)),
        "rename": lambda source, target: files.replace(os.fsdecode(source), os.fsdecode(target)),
        "fallocate": unsupported,
    }


def _function(name: str, method: Callable[..., int | None]) -> Any:
    def call(*arguments: Any) -> int:
        try:
            return method(*arguments) or 0
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1

    return ctypes.CFUNCTYPE(*_KINDS[name], use_errno=True)(call)
