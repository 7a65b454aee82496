"""Figures: one function per figure."""
