"""What records mean: pure folds over streams. No disk, no clock, no randomness.

`replay` folds a stream, with the stored files as its base, into both snapshots; `fold` runs any one projection.
"""

from .fold import Base, Projection, fold
from .snapshots import Snapshots, replay

__all__ = ["Base", "Projection", "Snapshots", "fold", "replay"]
