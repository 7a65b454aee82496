"""Fused passes of vision transformers and residual networks: what they cover, and how they compute."""
