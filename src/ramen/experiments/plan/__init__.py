"""Which runs there are: presets, experiments, variations."""
