"""Experiments: plan and run them, analyse and show their results."""
