"""Running experiments: one method through one stream, checkpoints, results."""
