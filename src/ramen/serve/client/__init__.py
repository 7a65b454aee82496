"""The client of a Ramen service: ``ramen.Client`` and ``ramen.AsyncClient``, without torch."""
