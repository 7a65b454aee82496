"""Studies of a model and a stream beside the runs: what similarity tells, what the cache saves, what methods cost."""
