"""What records mean: pure folds over streams. No disk, no clock, no randomness.

`replay` folds a stream, with the stored files as its base, into both snapshots; `fold` runs any one projection.
"""

from projections.snapshots.replay import Snapshots, replay

from .fold import Base, Projection, fold

__all__ = ["Base", "Projection", "Snapshots", "fold", "replay"]

__distribution__ = "compass-es"
