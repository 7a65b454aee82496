"""The application of a config file, and what Ray is told about it."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from ramen.data.drawings.shapes import OBJECTS
from ramen.serve.http.auth import create_token
from ramen.serve.on_ray.app import (
    RayServeArguments,
    application,
    build,
    deployment_of_ingress,
    deployment_of_replicas,
)
from ramen.serve.on_ray.replica import StreamReplica
from ramen.serve.on_ray.scaling import Scaling
from tests.helpers.ray_machine import small_request

CONFIG = Path(__file__).parents[3] / "deploy" / "ray" / "serve.yaml"


def test_the_config_file_is_accepted_by_ray_and_by_the_application(tmp_path):
    config = ServeDeploySchema.model_validate(yaml.safe_load(CONFIG.read_text()))
    (app,) = config.applications
    assert app.import_path == "ramen.serve.on_ray.app:build"
    arguments = RayServeArguments.model_validate(app.args)
    assert arguments.scaling == Scaling(
        min_replicas=1, max_replicas=8, gpus_per_replica=1, cpus_per_replica=4
    )
    classes = tmp_path / "classes.txt"
    classes.write_text("cat\n\n dog \n")
    assert arguments.tokens == Path("/shared/ramen/tokens.json")
    create_token(tmp_path / "tokens.json", "all", ["classify"])
    here = {"classes_file": classes, "tokens": tmp_path / "tokens.json"}
    request = arguments.model_copy(update=here).request()
    assert request.classes == ("cat", "dog")
    assert request.model == "ViT-B-16/openai"
    assert request.http.tokens == tmp_path / "tokens.json"
    assert (request.engine.state, request.engine.max_batch) == ("/shared/ramen/state", 100)


def test_the_number_of_replicas_follows_the_load(tmp_path):
    request = small_request(tmp_path)
    deployment = deployment_of_replicas(
        request, Scaling(min_replicas=1, max_replicas=4, gpus_per_replica=0.5)
    )
    scaling = deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 4)
    assert scaling.target_ongoing_requests == request.engine.max_batch
    assert deployment.ray_actor_options == {"num_cpus": 1.0, "num_gpus": 0.5}
    assert deployment.func_or_class is StreamReplica
    assert deployment.max_ongoing_requests > request.engine.max_queue_images
    assert deployment_of_replicas(request, Scaling(replicas=3)).num_replicas == 3
    assert deployment_of_ingress(request, Scaling(ingress_replicas=2)).num_replicas == 2


def test_replicas_must_share_their_state(tmp_path):
    alone = RayServeArguments(no_auth=True)
    assert build(alone) is not None
    for scaling in (Scaling(replicas=2), Scaling(min_replicas=1, max_replicas=2)):
        with pytest.raises(ValueError, match="2 replicas need a state that all of them reach"):
            application(alone.request(), scaling)
        assert application(small_request(tmp_path), scaling) is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"modle": "tiny"}, "modle"),
        ({"engine": {"maxbatch": 3}}, "engine has no maxbatch; it has create_on_use, "),
        ({"engine": {"max_batch": "many"}}, "engine.max_batch"),
        ({"scaling": {"replica": 3}}, "scaling has no replica"),
        ({"scaling": {"replicas": 0}}, "replicas must be"),
        ({"http": {"port": 3}}, "http has no port"),
    ],
)
def test_wrong_arguments_are_refused_by_name(given, message):
    with pytest.raises(ValidationError, match=message):
        RayServeArguments.model_validate(given)


def test_classes_are_given_once():
    assert RayServeArguments(no_auth=True).request().classes == tuple(OBJECTS)
    for given in ({"model": "ViT-B-16/openai"}, {"classes": ["cat"], "classes_file": Path("x")}):
        with pytest.raises(ValueError, match="either classes or classes_file must be given"):
            RayServeArguments(no_auth=True, **given).request()


def test_somebody_must_have_decided_who_may_come_in():
    with pytest.raises(ValueError, match="say who may use the service"):
        RayServeArguments().request()
