"""Running experiments: one method on one stream, checkpoints, results."""
