"""The commands that run and show experiments: one file each, and the options that they share."""
