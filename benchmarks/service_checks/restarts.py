"""R3: a server is stopped and started at random points of a stream; its answers are as if it had not been.

Every second stop is a SIGKILL right after a snapshot was asked for.
"""

import asyncio
import random

from service_checks.http_connection import ask
from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import mixed_images
from service_checks.sequences import ImageSequence, SequenceDriver, compare
from service_checks.server_process import ramen_server

TITLE = "restored is the same as never stopped"


def run(options: CheckOptions, images: int | None = None, stops: int | None = None) -> Findings:
    """Compare a run of so many images with ``stops`` stops with one without."""
    images = options.pick(600, 2000) if images is None else images
    stops = options.pick(4, 10) if stops is None else stops
    pixels = mixed_images(min(images, 500), options.image_size)
    points = sorted(random.Random(1).sample(range(1, images), stops))
    stopped = SequenceDriver([ImageSequence("camera", pixels)], most=8)
    codes, state = [], str(options.folder / "restarts")
    for number, end in enumerate([*points, images]):
        server = ramen_server(options, state=state, invariant=True)
        asyncio.run(stopped.run(server.address, {"camera": end}))
        if number % 2:
            ask(server.address, "POST", "/v1/streams/camera/snapshot")
            server.kill()
        else:
            codes.append(server.stop())
        stopped.sequences[0].position = None  # the next server has to know
    reference = SequenceDriver([ImageSequence("camera", pixels)], most=8)
    with ramen_server(options, state=str(options.folder / "never-stopped"), invariant=True) as server:
        asyncio.run(reference.run(server.address, {"camera": images}))
    compared, different = compare(stopped.answers, reference.answers)
    found = Findings("R3")
    found.expect_zero(f"answers that differ, with {stops} stops", different, compared)
    found.expect_zero("images without an answer in one of the runs", images - min(compared, images))
    found.expect_zero("exit codes other than 0 after SIGTERM", sum(code != 0 for code in codes), len(codes))
    lost = sum(point > resumed for point, resumed in zip(points, stopped.sequences[0].resumed, strict=False))
    found.expect_zero("stops after which something was lost", lost, stops)
    found.details = {"stops": points, "exit_codes": codes}
    return found
