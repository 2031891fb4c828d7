"""The document that `scrub --json` prints."""

from typing import Literal

from msgspec import Struct

from eventstore.operations.scrub import Scrubbed


class ScrubReport(Struct, frozen=True, kw_only=True):
    """A copy of a run without its credentials.

    `masked` names the files whose text was changed, `binary` those copied without a look, `left_out` what is not in the
    copy; `credentials_left` counts what `verify` still finds in it.
    """

    schema: Literal["compass-es.scrub.v1"] = "compass-es.scrub.v1"
    run_dir: str
    out: str
    files: int
    masked: list[str]
    binary: list[str]
    left_out: list[str]
    credentials_left: int


def scrub_report(scrubbed: Scrubbed) -> ScrubReport:
    """Return the document of a copy that was made."""
    return ScrubReport(
        run_dir=str(scrubbed.run_dir),
        out=str(scrubbed.out),
        files=scrubbed.files,
        masked=scrubbed.masked,
        binary=scrubbed.binary,
        left_out=scrubbed.left_out,
        credentials_left=scrubbed.credentials_left,
    )
