"""The stores of ``ramen.state``; this name stays for one version."""

from ramen.state import StateStore as StateStore
from ramen.state import open_store as open_store
