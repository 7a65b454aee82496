"""Hyper-parameters chosen for all methods alike, on streams that no test uses."""
