"""What to run: presets, experiments, variations."""
