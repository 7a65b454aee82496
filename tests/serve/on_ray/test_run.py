"""``ramen serve --ray``."""

import importlib.util
import json
import os
import signal
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from ramen.cli import app
from tests.helpers.sent_images import pixels
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.serve.engine.engines import PATIENCE


def refused(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", "--no-auth", *arguments])
    return result.exit_code, " ".join(result.output.replace("│", " ").split())


def test_options_of_ray_need_ray():
    code, said = refused("--replicas", "2")
    assert code == 2
    assert "--replicas needs --ray" in said
    assert "--gpus-per-replica needs --ray" in refused("--gpus-per-replica", "1")[1]


def test_several_replicas_need_a_state():
    code, said = refused("--ray", "--replicas", "2")
    assert code == 2
    assert "2 replicas need a state that all of them reach" in said
    assert "and not both" in refused("--ray", "--replicas", "2", "--min-replicas", "1")[1]


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    code, said = refused("--ray")
    assert code == 1
    assert "ramen serve --ray needs Ray: pip install 'ramen-tta[ray]'" in said


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="starts another Ray: make test-all")
def test_it_serves_until_it_is_stopped_and_continues_when_it_is_started_again(tmp_path):
    command = [sys.executable, "-m", "ramen", "serve", "--ray", "--replicas", "2", "--no-auth", "--port", "0"]
    for learned in (0, 3):
        with subprocess.Popen(
            [*command, "--state", "state"],
            stdout=subprocess.PIPE,
            stderr=(tmp_path / "log").open("ab"),
            text=True,
            cwd=tmp_path,
            env={**os.environ, "RAMEN_SLOW_TESTS": ""},
        ) as process:
            assert process.stdout is not None
            url = next(line for line in process.stdout if line.startswith("serving")).split()[-1]
            with httpx.Client(base_url=url, timeout=PATIENCE) as client:
                for seed in range(3):
                    reply = client.post(
                        "/v1/streams/a/classify",
                        content=pixels(seed).tobytes(),
                        headers={"Content-Type": "application/x-ramen-uint8", "X-Shape": "1,32,32,3"},
                    )
                    assert reply.status_code == 200
                    (answer,) = json.loads(reply.text)["answers"]
                    assert answer["state_version"] == learned + seed + 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
