"""Studies beside the runs: what similarity tells, what the cache saves, what methods cost."""
