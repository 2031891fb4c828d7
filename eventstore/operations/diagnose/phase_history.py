"""How long phases usually take, from the history of other runs: for a run that has no siblings of its own yet."""

import os
from collections.abc import Sequence

from eventstore.history.sql.access import CatalogChoice, with_history

_QUESTION = """
-- For each phase of runs of the same benchmark in the same environment: the length that 95 of 100 finished stays keep.
SELECT phase, quantile_cont(phases.seconds, 0.95)
FROM phases JOIN runs USING (run_key)
WHERE benchmark IS NOT DISTINCT FROM $benchmark AND environment IS NOT DISTINCT FROM $environment
  AND phases.ended_by NOT IN ('running', 'died', 'nothing', 'run_finished')
GROUP BY phase
HAVING count(*) >= 5
"""


def usual_seconds(
    paths: Sequence[str | os.PathLike[str]], benchmark: str | None, environment: str | None
) -> dict[str, float]:
    """For each phase how long 95 of 100 stays took at most, in the runs at and below `paths`.

    Raises InputError if a path can't be read.
    """
    asked = {"benchmark": benchmark, "environment": environment}
    found = with_history(
        paths, lambda connection: connection.execute(_QUESTION, asked).fetchall(), catalog=CatalogChoice()
    )
    return {str(phase): float(seconds) for phase, seconds in found if phase is not None and seconds is not None}
