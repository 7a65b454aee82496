"""``ramen data``: its commands."""
