"""R1: SIGKILL at random instants under load. What was learned comes back, as far as it was promised.

Three streams get images in a fixed order, and the server computes batch-invariant answers. After a kill each
stream continues from where the next server says it is. In the end, a server that is never killed answers the
same images: a state that was not exactly what it must be would give other answers.
"""

import asyncio
import random
import statistics
import time
from dataclasses import dataclass, field

from service_checks.options import CheckOptions
from service_checks.report import Findings
from service_checks.sent_images import domain_images
from service_checks.sequences import ImageSequence, SequenceDriver, compare
from service_checks.server_process import ServerProcess, ramen_server

TITLE = "SIGKILL at random instants under load"
_SAVE_EVERY = ("batch", "1s")  # in turns
_SECOND = 1.0  # of the second form of the promise
_WRITING = 0.5  # seconds that the pause between two looks and a write may take
_MOST = 3  # images per request
_TARGET_SECONDS = 2.0


@dataclass
class _Tally:
    """What was found after the kills."""

    losses: dict[str, list[int]] = field(default_factory=lambda: {every: [] for every in _SAVE_EVERY})
    beyond_promise: int = 0
    invented: int = 0
    starts: list[float] = field(default_factory=list)
    refused_starts: int = 0


def run(options: CheckOptions, kills: int | None = None, longest: float = 2.5) -> Findings:
    """Kill so many servers, each after at most ``longest`` seconds of load."""
    kills = options.pick(10, 60) if kills is None else kills
    driver, reference = _driver(options), _driver(options)
    tally = _kill_often(options, driver, kills, longest)
    ends = {
        one.stream: max(position for name, position in driver.answers if name == one.stream) + 1
        for one in driver.sequences
    }
    with ramen_server(options, state=str(options.folder / "never-killed"), invariant=True) as server:
        asyncio.run(reference.run(server.address, ends))
    return _findings(driver, reference, tally, kills)


def _driver(options: CheckOptions) -> SequenceDriver:
    images = [domain_images(domain, 64, options.image_size) for domain in (0, 5, 11)]
    return SequenceDriver(
        [ImageSequence(f"camera-{number}", pixels) for number, pixels in enumerate(images)], _MOST
    )


def _kill_often(options: CheckOptions, driver: SequenceDriver, kills: int, longest: float) -> _Tally:
    draws, state, tally = random.Random(0), str(options.folder / "crashes"), _Tally()
    promised: dict[str, tuple[int, int]] = {}  # the least and the most that each stream must come back with
    for number in range(kills + 1):
        every = _SAVE_EVERY[number % 2]
        before = {one.stream: len(one.received) for one in driver.sequences}
        began = time.monotonic()
        try:
            server = ramen_server(options, state=state, save_every=every, invariant=True)
        except RuntimeError:
            tally.refused_starts += 1
            continue
        delay = draws.uniform(0.05, longest)
        killed = asyncio.run(_drive_and_kill(driver, server, delay, kill=number < kills))
        received = [one.received[before[one.stream] :] for one in driver.sequences]
        if any(received):
            tally.starts.append(min(times[0][0] for times in received if times) - began)
        for one in driver.sequences:
            if one.stream in promised and one.resumed:
                least, last = promised[one.stream]
                restored = one.resumed[-1]
                tally.losses[_SAVE_EVERY[(number - 1) % 2]].append(max(0, last - restored))
                tally.beyond_promise += restored < least
                # the last request may have been learned, but not answered
                tally.invented += restored > last + _MOST
        promised = {one.stream: _promise(one, before[one.stream], every, killed) for one in driver.sequences}
    return tally


async def _drive_and_kill(
    driver: SequenceDriver, server: ServerProcess, delay: float, *, kill: bool
) -> float:
    """Load until the server is killed; returns when that was."""
    load = asyncio.create_task(driver.run(server.address, delay + 60.0 if kill else delay + 1.0))
    if kill:
        while not any(one.position for one in driver.sequences):
            await asyncio.sleep(0.01)
        await asyncio.sleep(delay)
        killed = time.monotonic()
        server.kill()
        await load
    else:
        await load
        killed = time.monotonic()
        server.stop()
    return killed


def _promise(one: ImageSequence, first: int, every: str, killed: float) -> tuple[int, int]:
    """The least and the most images that a stream must have seen after the kill."""
    received = one.received[first:]
    base = one.resumed[-1] if one.resumed else 0
    versions = [base, *(version for _, version in received)]
    if every == "batch":
        return versions[-2] if len(versions) > 1 else base, versions[-1]
    moment = killed - _SECOND - _WRITING
    return max([base, *(version for when, version in received if when <= moment)]), versions[-1]


def _findings(driver: SequenceDriver, reference: SequenceDriver, tally: _Tally, kills: int) -> Findings:
    found = Findings("R1")
    compared, different = compare(driver.answers, reference.answers)
    restored = sum(map(len, tally.losses.values()))
    found.expect_zero("servers that did not start again after a kill", tally.refused_starts, kills)
    found.expect_zero("streams that came back with less than promised", tally.beyond_promise, restored)
    found.expect_zero("streams that came back with more than was sent", tally.invented, restored)
    found.expect_zero("answers that differ from a server that was never killed", different, compared)
    found.expect_zero("answers that differ when an image is sent again", driver.differences, driver.repeated)
    for every, losses in tally.losses.items():
        if losses:
            text = f"at most {max(losses)}, {statistics.mean(losses):.1f} on average"
            found.note(f"images lost per kill and stream, saved every {every}", text, max(losses))
    found.expect_zero("answers other than 200", sum(driver.failures.values()))
    if len(tally.starts) > 1:
        fresh, again = tally.starts[0], statistics.median(tally.starts[1:])
        what = "from the start of a process to its first answer, without a state"
        found.note(what, f"{fresh:.1f} s", fresh)
        found.expect_at_most("the same with a state, beyond that", again - fresh, _TARGET_SECONDS, "s")
    found.details = {
        "kills": kills,
        "losses": tally.losses,
        "seconds_to_first_answer": tally.starts,
        "failures": dict(driver.failures),
    }
    return found
