from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.config import RoutingSettings, Strategy
from tasks.plan.fields import Schema
from tasks.plan.policy import Placement, Retention
from tasks.plan.resources import Endpoint, InvalidResource, check_same_source, parse_endpoint
from tasks.plan.schema import EndpointSpec
from tasks.plan.types import Formats, GateMode, OnDeadline, SourceKind

EXAMPLES = Path(__file__).parents[2] / "examples"
Resources = Callable[..., dict[str, Any]]
Endpoints = Callable[..., Endpoint]

# As the announcement of model caching shows it.
AWS = """
apiVersion: inference.sagemaker.aws.amazon.com/v1
kind: InferenceEndpointConfig
metadata: {name: demo, namespace: inference}
spec:
  modelName: llama-3-1-8b
  endpointName: demo-endpoint
  instanceType: ml.g5.24xlarge
  invocationEndpoint: v1/chat/completions
  replicas: 2
  modelSourceConfig:
    modelSourceType: s3
    modelLocation: models/llama-3-1-8b
    prefetchEnabled: true
    s3Storage: {bucketName: my-bucket, region: us-west-2}
  modelCacheConfig:
    weightsCache: {enabled: true}
    imageCache: {enabled: true}
  autoScalingSpec: {minReplicaCount: 1, maxReplicaCount: 5}
  intelligentRoutingSpec: {enabled: true, routingStrategy: prefixaware}
  loadBalancer: {healthCheckPath: /ping}
  metrics: {enabled: true}
  tags: [{name: team, value: ml}]
  kubernetes: {serviceAccountName: s3-reader}
  worker:
    image: vllm/vllm-openai:latest
    resources: {limits: {nvidia.com/gpu: "4"}}
    modelInvocationPort: {containerPort: 8000, name: http}
    modelVolumeMount: {name: model-weights, mountPath: /opt/ml/model}
    environmentVariables: [{name: VLLM_LOGGING_LEVEL, value: INFO}]
    requestLimits: {maxConcurrentRequests: 8}
"""


def test_the_s3_example_parses_to_what_it_says(endpoint: Endpoints) -> None:
    found = endpoint()
    assert (found.name, found.namespace, found.uid, found.replicas) == ("chat", "default", "iec-1", 3)
    assert (found.source.kind, found.source.uri) == (SourceKind.S3, "s3://models/tiny-llama/")
    assert (found.source.region, found.source.addressing_style) == ("us-east-1", "path")
    assert found.source.formats is Formats.SAFE
    assert found.credentials_secret == "model-source"
    assert (found.weights_cache, found.host_path) == (True, "/opt/dlami/nvme")
    assert (found.placement, found.retention) == (Placement.PREFERRED, Retention.DELETE)
    assert (found.gate.mode, found.gate.on_deadline) == (GateMode.ALL, OnDeadline.OPEN_WITH_FALLBACK)
    assert "$(POD_IP)" in found.worker.args
    assert found.ignored == ()


def test_the_hugging_face_example_parses_to_what_it_says() -> None:
    found = parse_endpoint(yaml.safe_load((EXAMPLES / "endpoint-hf.yaml").read_text()))
    assert (found.source.kind, found.source.uri) == (SourceKind.HUGGINGFACE, "hf://warmpath/tiny-llama")
    assert found.source.revision == "main"
    assert found.source.endpoint_url.startswith("http://")


def test_a_manifest_of_aws_is_taken_unchanged_and_what_has_no_effect_is_told() -> None:
    found = parse_endpoint(yaml.safe_load(AWS))
    assert found.source.uri == "s3://my-bucket/models/llama-3-1-8b/"
    assert found.host_path == "/opt/dlami/nvme"
    assert found.kubernetes.service_account_name == "s3-reader"
    assert found.routing.strategy is Strategy.RANDOM
    assert found.ignored == (
        "autoScalingSpec",
        "intelligentRoutingSpec",
        "loadBalancer",
        "metrics",
        "modelCacheConfig.imageCache",
        "tags",
    )


def test_a_mounted_file_system_is_read_where_it_is_mounted(endpoint: Endpoints, absent: object) -> None:
    source = {"modelSourceType": "fsx", "modelLocation": "/llama/v1/", "fsxStorage": {"fileSystemId": "fs-1"}}
    found = endpoint({"spec.modelSourceConfig": source, "spec.cachePolicy.source": {"mountedPath": "/fsx/"}})
    assert found.source.uri == "file:///fsx/llama/v1"


def test_a_token_of_a_gated_model_is_named_never_held(endpoint: Endpoints) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    token = {"name": "hub", "key": "token", "optional": True}
    model = {"modelId": "meta/llama", "commitSHA": commit, "tokenSecretRef": token}
    source = {"modelSourceType": "huggingface", "huggingFaceModel": model}
    found = endpoint({"spec.modelSourceConfig": source, "spec.cachePolicy.source": {}})
    assert (found.token_secret, found.token_key, found.token_optional) == ("hub", "token", True)
    assert found.source.revision == commit


def test_pods_tolerate_the_taint_of_the_accelerator_they_ask_for(endpoint: Endpoints) -> None:
    mine = {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoExecute"}
    found = endpoint({"spec.cachePolicy.tolerations": [mine]})
    assert found.tolerations == (mine, {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})


def test_every_field_of_ours_explains_itself() -> None:
    unexplained = [
        f"{model.__name__}.{name}"
        for model in (EndpointSpec, RoutingSettings, *Schema.__subclasses__())
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert unexplained == []


def test_an_existing_endpoint_refuses_another_source(endpoint: Endpoints) -> None:
    before = endpoint()
    check_same_source(before, endpoint({"spec.replicas": 5}))
    with pytest.raises(InvalidResource, match="is s3://models/v2/; expected s3://models/tiny-llama/") as refused:
        check_same_source(before, endpoint({"spec.modelSourceConfig.modelLocation": "v2"}))
    assert "--change-source" in str(refused.value)
    with pytest.raises(InvalidResource, match="endpointUrl is missing; expected http://127"):
        check_same_source(before, endpoint({"spec.cachePolicy.source.endpointUrl": ""}))
