"""R6: the memory of a server does not grow with the requests that it has answered.

A positive control is a server that keeps a little of every request: it must be found out.
"""

import time
from typing import Any

from service_checks.load import LoadPlan, run_load
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import file_request, jpeg, mixed_images, raw_request
from service_checks.server_process import ServerProcess, ramen_server, sampled

TITLE = "memory of the server"
_LARGEST_SHARE, _LARGEST_MIB = 0.01, 50.0
_STREAMS = 4
_MOST_PIECES = 8  # of the warm-up


def run(options: CheckOptions, images: int | None = None, warm_up: int | None = None) -> Findings:
    """Watch a server while it answers so many images after a warm-up, and one that leaks."""
    images = options.pick(30_000, 1_000_000) if images is None else images
    warm_up = options.pick(10_000, 100_000) if warm_up is None else warm_up
    found = Findings("R6")
    plain = grown(options, images, warm_up)
    share, added = plain["grown_mib"] / plain["before_mib"], plain["grown_mib"]
    found.note("images answered after the warm-up", f"{plain['images']:,}", plain["images"])
    until_flat = plain["warm_up_images"]
    found.note("images of the warm-up, until memory was flat", f"{until_flat:,}", until_flat)
    found.note("memory after the warm-up", f"{plain['before_mib']:.0f} MiB", plain["before_mib"])
    what = "growth after the warm-up"
    found.expect(what, "less than 1 %", share < _LARGEST_SHARE, f"{100 * share:+.2f} %", share)
    found.expect(what, "less than 50 MiB", added < _LARGEST_MIB, f"{added:+.1f} MiB", added)
    few = max(images // 8, 1000)
    leaking = grown(options, few, min(warm_up, 2 * few), module="service_checks.leaking_server")
    share, added = leaking["grown_mib"] / leaking["before_mib"], leaking["grown_mib"]
    is_found = share >= _LARGEST_SHARE or added >= _LARGEST_MIB
    what = f"positive control: a server that leaks, {leaking['images']:,} images"
    found.expect(what, "is found out", is_found, f"{added:+.1f} MiB, {100 * share:+.1f} %", added)
    found.details = {"plain": plain, "leaking": leaking}
    return found


def grown(options: CheckOptions, images: int, warm_up: int, module: str = "ramen") -> dict[str, Any]:
    """Answer so many images in all, and compare the memory after the warm-up with that in the end."""
    state = str(options.folder / module)
    with ramen_server(options, module=module, stream_memory="2 MiB", state=state) as server:
        warmed_up = _warm_up(options, server, warm_up)
        before = _settled(server)
        with sampled(server.memory_mib, 0.5) as samples:
            answered = _answer(options, server, images)
        after = _settled(server)
        return {
            "warm_up_images": warmed_up,
            "images": answered,
            "before_mib": before,
            "after_mib": after,
            "peak_mib": server.peak_mib(),
            "grown_mib": after - before,
            "samples_mib": [round(value, 1) for value in samples[:: max(1, len(samples) // 50)]],
        }


def _warm_up(options: CheckOptions, server: ServerProcess, images: int) -> int:
    """Answer images until buffers of bounded size are full; returns how many it took.

    At least ``images``, and then in pieces of a quarter of that until a piece adds less than a fifth of what
    is allowed later. A leak does not become less with time: after the most pieces it is measured.
    """
    answered, memory = _answer(options, server, images), _settled(server)
    for _ in range(_MOST_PIECES):
        answered += _answer(options, server, max(1, images // 4))
        before, memory = memory, _settled(server)
        if memory - before < _LARGEST_SHARE / 5 * before:
            break
    return answered


def _settled(server: ServerProcess) -> float:
    """The least of some looks: memory that is in use for a moment does not count."""
    values = []
    for _ in range(10):
        values.append(server.memory_mib())
        time.sleep(0.1)
    return min(values)


def _answer(options: CheckOptions, server: ServerProcess, images: int) -> int:
    """Answer at least so many, mostly as pixels, some as JPEG files; returns how many it were."""
    pixels = mixed_images(options.max_batch, options.image_size)
    requests = []
    for number in range(_STREAMS):
        requests += [raw_request(f"stream-{number}", pixels), raw_request(f"stream-{number}", pixels[:3])]
        requests.append(file_request(f"stream-{number}", jpeg(pixels[number])))
    answered = 0
    while answered < images:
        outcomes = run_load(LoadPlan(server.address, tuple(requests), 2.0, 2 * _STREAMS))
        added = sum(outcome.images for outcome in outcomes if outcome.status == 200)
        if not added:
            raise RuntimeError(f"the server answers nothing more:\n{server.log_text()[-2000:]}")
        answered += added
    return answered
