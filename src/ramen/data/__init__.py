"""Domains and streams."""
