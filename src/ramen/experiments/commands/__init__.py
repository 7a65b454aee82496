"""The commands of experiments: one file each, and the options that they share."""
