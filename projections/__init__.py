"""What records mean: pure folds over the events of a run."""
