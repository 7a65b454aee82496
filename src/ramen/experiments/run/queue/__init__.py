"""Many runs at once: one queue, which local processes or the tasks of a Ray cluster work through."""
