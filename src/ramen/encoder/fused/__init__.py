"""The fused passes of vision transformers: what they cover, and how they compute."""
