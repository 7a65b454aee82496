"""``python -m ramen`` is ``ramen``."""

from ramen.cli import app

app(prog_name="ramen")
