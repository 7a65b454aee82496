"""The page at ``/`` of the service: what it does now, its streams, and an image to try."""

from ramen.serve.dashboard.page import dashboard_csp, dashboard_page

__all__ = ["dashboard_csp", "dashboard_page"]
