"""The JSON Schemas of all reports, made from their structs.

python -m eventstore.operations.reports.schemas docs/schema
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from eventstore.operations.status import RunList, RunPage
from eventstore.operations.watch import WatchPage

from .close import CloseReport
from .diagnose import DiagnoseReport
from .diff import DiffReport
from .error import ErrorReport
from .history import ExportReport, IndexReport, QueryListReport
from .repair import RepairReport
from .replay import ReplayReport
from .reuse import LineageReport, ReuseApplyReport, ReusePlanReport
from .scrub import ScrubReport
from .task import TaskReport
from .verify import RulesReport, VerifyReport

REPORTS: dict[str, type[Struct]] = {
    "replay": ReplayReport,
    "repair": RepairReport,
    "close": CloseReport,
    "scrub": ScrubReport,
    "runs": RunList,
    "show": RunPage,
    "task": TaskReport,
    "diagnose": DiagnoseReport,
    "watch": WatchPage,
    "diff": DiffReport,
    "verify": VerifyReport,
    "rules": RulesReport,
    "reuse-plan": ReusePlanReport,
    "reuse-apply": ReuseApplyReport,
    "reuse-lineage": LineageReport,
    "query-list": QueryListReport,
    "index": IndexReport,
    "export": ExportReport,
    "error": ErrorReport,
}
"""The name of a report, as its `schema` member has it between `compass-es.` and `.v1`, and its struct."""


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a report. Raises KeyError for a name that no report has.

    Every member is required: a report always has all of them, with null for what is not known.
    """
    schema = msgspec.json.schema(REPORTS[name])
    for part in schema["$defs"].values():
        if "properties" in part:
            part["required"] = list(part["properties"])
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"compass-es {name}"}
    return head | schema


def schema_text(name: str) -> str:
    """Return the schema as it is published: a text file of JSON."""
    return json.dumps(schema_of(name), indent=2, sort_keys=True) + "\n"


def write_schemas(folder: Path) -> None:
    """Write one file for each report, and remove those of reports that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in REPORTS:
        (folder / f"{name}.json").write_text(schema_text(name), encoding="utf-8")
    for path in folder.glob("*.json"):
        if path.stem not in REPORTS:
            path.unlink()


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
