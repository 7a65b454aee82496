"""The engine behind HTTP: its own API, the Open Inference Protocol, metrics and a dashboard."""
