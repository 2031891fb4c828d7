"""What stat says of a run directory: equal signatures mean that nothing has to be read again.

Device, inode, size, mtime and ctime (which can't be set back) of the stream, the small files and the folders of
details. A result.json that is changed in place, without its folder, is the one thing that this doesn't see.
"""

import os
from pathlib import Path

from eventstore.run.directory import PARAMS_NAME, PROGRESS_NAME, RUN_INFO_NAME, RUN_LOG_NAME
from eventstore.stream.scan import STREAM_NAME

_FILES = (STREAM_NAME, RUN_INFO_NAME, PROGRESS_NAME, PARAMS_NAME, RUN_LOG_NAME, "metrics.json", "progress.lock")
_FOLDERS = ("details", "details/running", "details/normal", "details/error", "details/fatal")


def signature(run_dir: Path) -> str:
    """The signature of a run directory as text."""
    base = os.fspath(run_dir)
    stat = os.stat
    parts = []
    for name in (*_FILES, *_FOLDERS):
        try:
            found = stat(f"{base}/{name}")
        except OSError:
            parts.append("-")
            if name == "details":
                break
        else:
            parts.append(f"{found.st_dev}.{found.st_ino}.{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}")
    return ";".join(parts)
