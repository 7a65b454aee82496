"""What can be checked of the files in ``deploy`` without running a container."""

import json
import re
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import typer.main
import yaml

from ramen.cli import app
from ramen.client.operations import EngineStatistics, ServedModel
from ramen.serve.http import metrics
from ramen.serve.http.metrics import RequestFigures

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def load(name: str):
    return yaml.safe_load((DEPLOY / name).read_text())


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: names and arguments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def instruction(name: str) -> str:
    """The last one of that name."""
    return [arguments for found, arguments in instructions() if found == name][-1]


@pytest.fixture(scope="module")
def compose():
    return load("compose.yaml")


@pytest.fixture(scope="module")
def dashboard():
    return json.loads((DEPLOY / "grafana/dashboard.json").read_text())


# -- the Dockerfile -------------------------------------------------------------------------------------


def test_what_is_copied_is_there_and_not_ignored():
    allowed = {
        line[1:]
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = [arguments.split()[:-1] for name, arguments in instructions() if name == "COPY"]
    from_here = {path for paths in copied if not paths[0].startswith("--from") for path in paths}
    assert {"pyproject.toml", "src"} <= from_here
    assert from_here == allowed
    assert all((ROOT / path).exists() for path in from_here)


def test_what_the_package_needs_to_be_built_is_copied():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = " ".join(arguments for name, arguments in instructions() if name == "COPY")
    assert all(name in copied for name in (project["readme"], *project["license-files"]))


def test_extras_exist():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (DEPLOY / "Dockerfile").read_text() + (DEPLOY / "README.md").read_text()
    named = {extra for found in re.findall(r"EXTRAS=([\w,]+)", text) for extra in found.split(",")}
    assert {"serve"} <= named <= set(known)


def parsed(command: list[str]) -> dict[str, object]:
    """The values that a command line gives to the parameters of ``ramen COMMAND``; fails if it is wrong."""
    assert command[0] == "ramen"
    found = typer.main.get_command(app).commands[command[1]]
    while hasattr(found, "commands"):
        found = found.commands[command.pop(2)]
    return found.make_context("ramen", list(command[2:])).params


def test_the_command_is_one_of_ours(compose):
    entrypoint = json.loads(instruction("ENTRYPOINT"))
    service = compose["services"]["ramen"]
    values = parsed([*entrypoint, *json.loads(instruction("CMD")), *service["command"]])
    assert (values["host"], str(values["port"])) == ("0.0.0.0", instruction("EXPOSE"))
    assert values["no_auth"] is False
    volumes = json.loads(instruction("VOLUME"))
    assert values["state"] in volumes
    assert str(Path(str(values["tokens"])).parent) in volumes
    example = re.search(r"# command: (\[.*\])", (DEPLOY / "compose.yaml").read_text())[1]
    assert parsed([*entrypoint, *json.loads(example)])["model"] == "ViT-B-16/openai"


def test_the_readmes_command_lines_are_ours():
    page = (DEPLOY / "README.md").read_text()
    tokens_file = Path(parsed(json.loads(instruction("ENTRYPOINT")))["tokens"])
    lines = re.findall(r"^token (--.*?)(?: > \S+)?$", page, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        command = ["ramen", "token", "create", "--file", str(tokens_file), *shlex.split(line)]
        assert parsed(command)["file"] == tokens_file
    assert f"token create --file {tokens_file}" in page


def test_it_does_not_run_as_root_and_has_no_secrets():
    assert instruction("USER").split(":")[0].isdecimal()
    assert int(instruction("USER").split(":")[0]) > 0
    text = (DEPLOY / "Dockerfile").read_text().lower()
    assert not re.search(r"(password|secret|_token|api_key)\s*=", text)
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_health_check_asks_the_port_that_is_exposed():
    assert f"http://127.0.0.1:{instruction('EXPOSE')}/readyz" in instruction("HEALTHCHECK")


# -- compose --------------------------------------------------------------------------------------------


def test_ports_and_volumes_agree_with_the_image(compose):
    service = compose["services"]["ramen"]
    assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    mounted = dict(volume.split(":")[:2][::-1] for volume in service["volumes"])
    assert set(mounted) == set(json.loads(instruction("VOLUME")))
    assert set(mounted.values()) <= set(compose["volumes"])
    assert [port.rsplit(":", 1)[1] for port in service["ports"]] == [instruction("EXPOSE")]
    assert "privileged" not in service
    grace = int(service["stop_grace_period"].removesuffix("s"))
    command = typer.main.get_command(app).commands["serve"]
    longest = next(option.default for option in command.params if option.name == "max_timeout_ms")
    assert grace * 1000 > longest


def test_every_port_is_open_to_this_machine_only(compose):
    ports = [port for service in compose["services"].values() for port in service["ports"]]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_files_that_are_mounted_are_there(compose):
    mounted = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service["volumes"]
        if volume.startswith(".")
    ]
    assert len(mounted) == 4
    assert [path for path in mounted if not (DEPLOY / path).exists()] == []


def test_secrets_are_declared_made_and_ignored(compose):
    used = {name for service in compose["services"].values() for name in service.get("secrets", [])}
    assert used == set(compose["secrets"])
    page, ignored = (DEPLOY / "README.md").read_text(), (DEPLOY / ".gitignore").read_text().split()
    for secret in compose["secrets"].values():
        assert f"> {secret['file'].removeprefix('./')}" in page
        assert secret["file"].split("/")[1] + "/" in ignored
    password = compose["services"]["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"]
    assert Path(password).name in compose["secrets"]


# -- Prometheus and Grafana -----------------------------------------------------------------------------


def test_prometheus_finds_the_service_and_its_token(compose):
    config = load("prometheus.yml")
    (job,) = config["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"ramen:{instruction('EXPOSE')}"]
    name = Path(job["authorization"]["credentials_file"]).name
    assert name in compose["services"]["prometheus"]["secrets"]
    mounted = [volume.split(":")[1] for volume in compose["services"]["prometheus"]["volumes"]]
    assert set(config["rule_files"]) <= set(mounted)


def test_grafana_finds_prometheus_and_the_dashboard(compose, dashboard):
    (source,) = load("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    (provider,) = load("grafana/provisioning/dashboards/ramen.yaml")["providers"]
    mounted = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert any(path.startswith(provider["options"]["path"] + "/") for path in mounted)


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """The names of all time series of the service, each with its labels."""
    model = ServedModel("tiny", "ramen", ("cat",), (32, 32), 8, True, "cpu", "float32")
    service, figures = metrics.ServiceMetrics(model), RequestFigures()
    figures.count("POST", "/v1/streams/{stream}/classify", 200, 0.1)
    whole = {field.name: 1 for field in fields(EngineStatistics)}
    percentiles = {name: {"p50": 1.0, "p90": 1.0, "p99": 1.0} for name in ("latency_ms", "compute_ms")}
    page = service.page(figures, EngineStatistics(**{**whole, **percentiles})).decode()
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", page, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    return found


def expressions(dashboard) -> list[str]:
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    notes = [note["expr"] for note in dashboard["annotations"]["list"]]
    rules = [rule["expr"] for group in load("alerts.yml")["groups"] for rule in group["rules"]]
    return [*targets, *notes, *rules]


def test_every_metric_that_is_shown_exists(exposed, dashboard):
    used = {name for text in expressions(dashboard) for name in re.findall(r"\bramen_\w+", text)}
    assert len(used) > 15
    assert used - set(exposed) == set()


def test_every_label_that_is_used_exists(exposed, dashboard):
    for text in expressions(dashboard):
        names = re.findall(r"\bramen_\w+", text)
        labels = set(re.findall(r"[{,]\s*(\w+)\s*=", text))
        for grouping in re.findall(r"by \(([^)]*)\)", text):
            labels |= set(grouping.replace(" ", "").split(","))
        known = set().union(*(exposed[name] for name in names)) if names else {"job"}
        assert labels <= known, text
