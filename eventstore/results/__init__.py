"""The folder `details/`: task results, checkpoints and artifacts, read and published."""
