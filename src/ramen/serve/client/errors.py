"""The errors of clients, which are in ``ramen.client.operations``; this name stays for one version."""

from ramen.client.operations import *  # noqa: F403
