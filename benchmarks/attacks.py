"""Attacks on a service from outside, one after the other, and what others notice of them.

    python benchmarks/attacks.py --out benchmarks/results/attacks_cpu.json

A server with the tiny model, at most 1,024 open files and 4 GiB of data answers at a loopback address only.
Each attack lasts a few seconds; some need nothing but the port, others a token for images of the attacker's
own streams. Meanwhile a monitor asks for ``/healthz`` on new connections, and another tenant sends images, in
processes of their own. Targets: 99 % of ``/healthz`` within 200 ms, the tenant within twice its usual time.
"""

import argparse
import base64
import io
import json
import os
import socket
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from image_corpus import chunk, png
from PIL import Image
from service_checks.http_connection import Address, ask
from service_checks.server_process import ServerProcess, free_port, sampled

from ramen.serve.http.auth import create_token

_FILES, _DATA_KIB = 1024, 4 * 2**20
_HEALTH_MS, _SLOWER = 200.0, 2.0
_PAUSE = 0.02  # seconds between two requests of the monitor, and of the tenant
_MIB = 2**20
_CLASSIFY = "/v1/streams/attacker/classify"
_RAW = {"Content-Type": "application/x-ramen-uint8", "X-Shape": "1,64,64,3"}
_JSON = {"Content-Type": "application/json"}
_fork = get_context("fork")  # no threads have been started yet


@dataclass(frozen=True)
class Target:
    """What an attacker knows."""

    port: int
    token: str
    seconds: float


# -- what attackers do --------------------------------------------------------------------------------


def _connect(target: Target, timeout: float = 5.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", target.port), timeout)


def _head(path: str, length: int, headers: dict[str, str], verb: str = "POST") -> bytes:
    lines = [f"{verb} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


def _status(connected: socket.socket) -> str:
    """The status of the response; what happened if there is none."""
    try:
        first = connected.recv(2**16)
    except TimeoutError:
        return "no answer"
    except OSError:
        return "closed"
    return first[9:12].decode("ascii", "replace") if first else "closed"


def _exchange(target: Target, request: bytes) -> str:
    with _connect(target) as connected:
        with suppress(OSError):  # refused before all of it was sent
            connected.sendall(request)
        return _status(connected)


def _post(target: Target, body: bytes, headers: dict[str, str], path: str = _CLASSIFY) -> str:
    allowed = {"Authorization": f"Bearer {target.token}", **headers}
    return _exchange(target, _head(path, len(body), allowed) + body)


def _repeat(target: Target, *attempts: Callable[[], str], threads: int = 2) -> Counter[str]:
    """Do something again and again until the time is up."""
    end = time.monotonic() + target.seconds
    found: Counter[str] = Counter()

    def work(number: int) -> None:
        while time.monotonic() < end:
            try:
                outcome = attempts[number % len(attempts)]()
            except OSError:
                outcome = "refused"
            found[outcome] += 1
            number += 1

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return found


def many_objects(target: Target) -> Counter[str]:
    """JSON of 5.7 and 14.3 MiB with millions of empty objects where images should be."""
    bodies = [b'{"images":[' + count * b"{}," + b"{}]}" for count in (2_000_000, 5_000_000)]
    return _repeat(target, *(partial(_post, target, body, _JSON) for body in bodies))


def deep_lists(target: Target) -> Counter[str]:
    """A million lists within each other, as images and as a tensor."""
    deep = 1_000_000 * b"["
    oip = "/v2/models/tiny/infer"
    attempts = [partial(_post, target, deep, _JSON), partial(_post, target, b'{"inputs":' + deep, _JSON, oip)]
    return _repeat(target, *attempts)


def many_headers(target: Target) -> Counter[str]:
    """Header lines without end, up to 80 MiB."""
    return _repeat(target, partial(_flood, target, b"GET / HTTP/1.1\r\n", b"a:b\r\n" * 20_000, 80 * _MIB))


def long_header(target: Target) -> Counter[str]:
    """One header of 100 MiB."""
    return _repeat(target, partial(_flood, target, b"GET / HTTP/1.1\r\na: ", b"x" * 100_000, 100 * _MIB))


def _flood(target: Target, start: bytes, piece: bytes, most: int) -> str:
    with _connect(target) as connected:
        sent = 0
        try:
            connected.sendall(start)
            while sent < most:
                connected.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        return _status(connected) if sent < most else "all was read"


def slow_heads(target: Target) -> Counter[str]:
    """1,100 connections with half a head each; those that are closed are opened again."""
    return _hold(target, b"GET /v1/model HTTP/1.1\r\nHost: 127.0.0.1\r\n")


def idle_connections(target: Target) -> Counter[str]:
    """1,100 connections on which nothing is sent."""
    return _hold(target, b"")


def slow_bodies(target: Target) -> Counter[str]:
    """Requests that announce 64 MiB, with a token, and send one byte."""
    head = _head(_CLASSIFY, 64 * _MIB, _RAW | {"Authorization": f"Bearer {target.token}"})
    return _hold(target, head + b"x", count=300)


def _hold(target: Target, start: bytes, count: int = 1100) -> Counter[str]:
    end = time.monotonic() + target.seconds
    found: Counter[str] = Counter()
    held: list[socket.socket] = []
    try:
        while time.monotonic() < end:
            for connected in held[:]:
                connected.setblocking(False)
                try:
                    answer = connected.recv(4096)
                except BlockingIOError:
                    continue
                except OSError:
                    answer = b""
                found[answer[9:12].decode("ascii", "replace") if answer else "closed"] += 1
                connected.close()
                held.remove(connected)
            while len(held) < count and time.monotonic() < end:
                try:
                    held.append(_connect(target, 1.0))
                    held[-1].sendall(start)
                except OSError:
                    found["refused"] += 1
                    break
            time.sleep(0.05)
        found["held at the end"] = len(held)
    finally:
        for connected in held:
            connected.close()
    return found


def unread_responses(target: Target) -> Counter[str]:
    """The largest response, asked for 60 times on each of 50 connections that read nothing."""
    held = [_connect(target) for _ in range(50)]
    for connected in held:
        connected.sendall(60 * _head("/", 0, {}, "GET"))
    time.sleep(target.seconds)
    for connected in held:
        connected.close()
    return Counter({"held at the end": len(held)})


def colour_profiles(target: Target) -> Counter[str]:
    """PNG files of 4.8 and 43 MiB that consist of colour profiles."""
    profile = chunk(b"iCCP", b"p\0\0" + zlib.compress(bytes(2**20)))
    files = [_png(1, 1, size // len(profile) * profile) for size in (int(4.8 * _MIB), 43 * _MIB)]
    return _repeat(target, *(partial(_post, target, file, {"Content-Type": "image/png"}) for file in files))


def large_images(target: Target) -> Counter[str]:
    """Files of few bytes with as many pixels as possible, four at a time."""
    file = io.BytesIO()
    Image.new("RGB", (4000, 4000)).save(file, "WEBP", lossless=True, quality=0)
    shapes = [(2**25, 1), (1, 2**25), (5792, 5792)]
    files = [("image/webp", file.getvalue()), *(("image/png", _png(*shape)) for shape in shapes)]
    attempts = [partial(_post, target, data, {"Content-Type": kind}) for kind, data in files]
    return _repeat(target, *attempts, threads=4)


def _png(width: int, height: int, before: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return png(header, zlib.compress(bytes(((width + 7) // 8 + 1) * height)), before=before)


def typing_errors(target: Target) -> Counter[str]:
    """Files that are no images, for streams that do not exist."""
    names = iter(range(10**9))

    def attempt() -> str:
        path = f"/v1/streams/attacker-{next(names)}/classify"
        return _post(target, b"no image", {"Content-Type": "image/png"}, path)

    return _repeat(target, attempt)


def wrong_tokens(target: Target) -> Counter[str]:
    """Tokens that are guessed."""
    guess = {"Authorization": f"Bearer {base64.b64encode(os.urandom(32)).decode()}"}
    return _repeat(target, lambda: _exchange(target, _head("/v1/model", 0, guess, "GET")))


def _nothing(target: Target) -> Counter[str]:
    time.sleep(target.seconds)
    return Counter()


ATTACKS: dict[str, Callable[[Target], Counter[str]]] = {
    attack.__name__: attack
    for attack in (
        *(many_objects, deep_lists, many_headers, long_header, slow_heads, idle_connections, slow_bodies),
        *(unread_responses, colour_profiles, large_images, typing_errors, wrong_tokens),
    )
}


# -- what others notice -------------------------------------------------------------------------------


def _watch(port: int, token: str | None, pipe: Connection) -> None:
    """From one message to the next send requests; then the milliseconds of each, and how many were lost."""
    address = Address(port)
    pixels = np.random.default_rng(0).integers(0, 256, 64 * 64 * 3, np.uint8).tobytes()
    while pipe.recv() == "start":
        times: list[float] = []
        lost = 0
        while not pipe.poll(_PAUSE):
            began = time.monotonic()
            try:
                if token is None:
                    reply = ask(address, "GET", "/healthz")
                else:
                    headers = {**_RAW, "Authorization": f"Bearer {token}"}
                    reply = ask(address, "POST", "/v1/streams/tenant/classify", pixels, **headers)
                lost += reply.status != 200
            except (OSError, TimeoutError):
                lost += 1
            times.append((time.monotonic() - began) * 1000)
        pipe.recv()
        pipe.send((times, lost))


class Watchers:
    """The monitor, which needs no token, and the tenant, in processes of their own."""

    def __init__(self, port: int, tenant: str) -> None:
        self._pipes: dict[str, Connection] = {}
        for name, token in (("healthz", None), ("tenant", tenant)):
            self._pipes[name], theirs = _fork.Pipe()
            _fork.Process(target=_watch, args=(port, token, theirs), daemon=True).start()

    @contextmanager
    def watching(self) -> Iterator[dict[str, Any]]:
        """What they measure while the block runs; filled in at its end."""
        found: dict[str, Any] = {}
        for pipe in self._pipes.values():
            pipe.send("start")
        yield found
        for name, pipe in self._pipes.items():
            pipe.send("stop")
            times, lost = pipe.recv()
            p50, p99 = (round(float(np.percentile(times, share)), 1) for share in (50, 99))
            found[name] = {"requests": len(times), "lost": lost, "p50_ms": p50, "p99_ms": p99}

    def close(self) -> None:
        """End them."""
        for pipe in self._pipes.values():
            pipe.send("end")


@contextmanager
def server(folder: Path, tokens: Path) -> Iterator[ServerProcess]:
    """``ramen serve`` with the tiny model and the limits of a small machine."""
    port = free_port()
    limits = f'ulimit -n {_FILES}; ulimit -d {_DATA_KIB}; exec "$@"'
    serve = [sys.executable, "-m", "ramen", "serve", "--device", "cpu", "--classes", "house,tree"]
    serve += ["--port", str(port), "--tokens", str(tokens), "--state", str(folder / "state")]
    with ServerProcess(["bash", "-c", limits, "-", *serve], port, folder / "server.log") as process:
        yield process


def run(seconds: float, names: Sequence[str]) -> dict[str, Any]:
    """Some of the attacks, each for so many seconds, and the same time without one."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tokens = folder / "tokens.json"
        attacker = create_token(tokens, "attacker", ["classify"], ["attacker*"])
        tenant = create_token(tokens, "tenant", ["classify"], ["tenant"])
        owner = create_token(tokens, "owner", ["manage"])
        with server(folder, tokens) as process, _fork.Pool(1) as pool:
            target = Target(process.address.port, attacker, seconds)
            watchers, rows = Watchers(target.port, tenant), {}
            with watchers.watching():  # until all have started, and the tenant has its stream
                pool.apply(_nothing, (target,))
            for name in ("nothing", *names):
                with sampled(process.family_mib) as memory, watchers.watching() as seen:
                    outcomes = pool.apply(ATTACKS.get(name, _nothing), (target,))
                rows[name] = seen | {"peak_mib": round(max(memory)), "outcomes": dict(outcomes.most_common())}
                _show(name, rows)
            watchers.close()
            listed = ask(process.address, "GET", "/v1/streams", Authorization=f"Bearer {owner}").json()
            streams = [stream["name"] for stream in listed["streams"]]
            is_alive = process.alive
    return {"seconds": seconds, "rows": rows, "streams": streams, "alive": is_alive}


def _show(name: str, rows: dict[str, Any]) -> None:
    row, usual = rows[name], rows["nothing"]
    health, tenant = row["healthz"], row["tenant"]
    ratio = tenant["p50_ms"] / usual["tenant"]["p50_ms"]
    kept = health["p99_ms"] <= _HEALTH_MS and ratio <= _SLOWER and not health["lost"] + tenant["lost"]
    row["tenant"]["ratio"], row["kept"] = round(ratio, 2), kept
    print(
        f"{name:18} {'kept  ' if kept else 'MISSED'} healthz p99 {health['p99_ms']:7.1f} ms, "
        f"lost {health['lost']}; "
        f"tenant {ratio:5.2f} of its usual {usual['tenant']['p50_ms']} ms, lost {tenant['lost']}; "
        f"{row['peak_mib']} MiB; {row['outcomes']}",
        flush=True,
    )


def main() -> int:
    """Run the attacks; 1 if a target was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each attack")
    parser.add_argument("--attacks", nargs="*", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    found = run(options.seconds, options.attacks)
    found["cores"] = len(os.sched_getaffinity(0))
    print(f"streams at the end: {', '.join(found['streams'])}; alive: {found['alive']}")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if found["alive"] and all(row["kept"] for row in found["rows"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
