"""A plain small example: every method on random weights and a random stream."""

import time

import torch
from rich.console import Console
from rich.table import Table

from ramen import testing
from ramen.devices import readable_bytes
from ramen.methods.registry import create, list_methods

_BATCH = 50


def run(images: int, seed: int) -> None:
    """Print, for each method, how often it differs from zero-shot, its speed and its memory."""
    classifier = testing.small_classifier(classes=10)
    stream = torch.randn(images, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    table = Table(title=f"{images} random images, {classifier.num_classes} classes, a random CLIP")
    for column in ("method", "labels changed", "images a second", "memory at most"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in list_methods():
        method = create(name, classifier)
        start = time.perf_counter()
        outs = [method.predict(batch) for batch in stream.split(_BATCH)]
        speed = images / (time.perf_counter() - start)
        zero_shot = torch.cat([out.zero_shot_logits.argmax(1) for out in outs])
        changed = (torch.cat([out.labels for out in outs]) != zero_shot).float().mean()
        table.add_row(name, f"{changed:.1%}", f"{speed:,.0f}", readable_bytes(method.memory_bytes()))
    Console().print(table)
