"""What ``benchmarks/service.py`` measures: a load generator, a server process, and one file per subject."""
