"""The report: one self-contained page of tables and figures."""
