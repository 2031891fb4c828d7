"""One stream on disk: reading it whole or live, its single writer, the lock and the recovery."""
