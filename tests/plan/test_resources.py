from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from router.config import RoutingSettings, Strategy
from tasks.plan.fields import Schema
from tasks.plan.policy import Placement, Retention
from tasks.plan.resources import Endpoint, InvalidResource, check_same_source, parse_endpoint
from tasks.plan.schema import EndpointSpec, field_names
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


def refusal(resource: dict[str, Any]) -> InvalidResource:
    with pytest.raises(InvalidResource) as refused:
        parse_endpoint(resource)
    return refused.value


def test_the_s3_example_parses_to_what_it_says(endpoint: Endpoints) -> None:
    found = endpoint()
    assert (found.name, found.namespace, found.uid, found.replicas) == ("chat", "default", "iec-1", 3)
    assert (found.source.kind, found.source.uri) == (SourceKind.S3, "s3://models/tiny-llama/")
    assert (found.source.region, found.source.addressing_style) == ("us-east-1", "path")
    assert found.source.formats is Formats.SAFE
    assert found.credentials_secret == "model-source"  # noqa: S105 - the name of a Secret
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


SOURCE = "spec.modelSourceConfig"
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"spec.routing.strategy": "ROUND_ROBIN"}, "spec.routing.strategy", "LEAST_OUTSTANDING_REQUESTS"),
    (
        {"spec.routing": {"strategy": "PREFIX_AWARE", "prefixLength": 1023, "concurrencyThreshold": 8}},
        "spec.routing.prefixLength",
        "is 1023; expected a whole number from 1024 to 65536",
    ),
    (
        {"spec.routing": {"strategy": "PREFIX_AWARE", "prefixLength": 65537, "concurrencyThreshold": 8}},
        "spec.routing.prefixLength",
        "is 65537; expected a whole number from 1024 to 65536",
    ),
    (
        {"spec.routing": {"strategy": "PREFIX_AWARE", "prefixLength": 4096, "concurrencyThreshold": 0}},
        "spec.routing.concurrencyThreshold",
        "from 1 to 1024",
    ),
    ({"spec.routing": {"strategy": "PREFIX_AWARE"}}, "spec.routing", "needs both prefixLength"),
    ({"spec.routing": {"strategy": "RANDOM", "prefixLength": 4096}}, "spec.routing", "PREFIX_AWARE"),
    ({"spec.modelCacheConfig.weightsCache.hostPath": "opt"}, "spec.modelCacheConfig.weightsCache.hostPath", "absolute"),
    ({"spec.modelCacheConfig.weightsCache.hostPath": "/"}, "spec.modelCacheConfig.weightsCache.hostPath", "below /"),
    ({"spec.modelCacheConfig.weightsCache.hostPath": "/a/../b"}, "spec.modelCacheConfig.weightsCache.hostPath", '".."'),
    ({"spec.modelCacheConfig.weightsCache.hostPath": ""}, "spec.modelCacheConfig.weightsCache.hostPath", "at least 1"),
    (
        {"spec.modelCacheConfig.weightsCache.hostPath": "/" + "a" * 255},
        "spec.modelCacheConfig.weightsCache.hostPath",
        "255",
    ),
    ({f"{SOURCE}.modelSourceType": "gcs"}, f"{SOURCE}.modelSourceType", "one of s3, fsx, huggingface"),
    ({f"{SOURCE}.modelSourceType": "kubernetesVolume"}, f"{SOURCE}.modelSourceType", "cannot be cached"),
    ({f"{SOURCE}.modelSourceType": "huggingface"}, f"{SOURCE}.huggingFaceModel", "is missing; expected modelId"),
    ({f"{SOURCE}.modelSourceType": "fsx"}, f"{SOURCE}.fsxStorage", "is missing; expected fileSystemId"),
    ({f"{SOURCE}.modelLocation": ""}, f"{SOURCE}.modelLocation", "whole bucket"),
    ({f"{SOURCE}.modelLocation": "/"}, f"{SOURCE}.modelLocation", "whole bucket"),
    ({f"{SOURCE}.modelLocation": "a/../b"}, f"{SOURCE}.modelLocation", '".."'),
    ({f"{SOURCE}.modelLocation": "a//b"}, f"{SOURCE}.modelLocation", "without empty"),
    ({f"{SOURCE}.s3Storage.bucketName": "s3://models"}, f"{SOURCE}.s3Storage.bucketName", "without s3://"),
    ({f"{SOURCE}.s3Storage.region": ""}, f"{SOURCE}.s3Storage.region", "at least 1"),
    (
        {SOURCE: {"modelSourceType": "huggingface", "huggingFaceModel": {"modelId": "llama"}}},
        f"{SOURCE}.huggingFaceModel.modelId",
        "org/model",
    ),
    (
        {SOURCE: {"modelSourceType": "huggingface", "huggingFaceModel": {"modelId": "a/b", "commitSHA": "main"}}},
        f"{SOURCE}.huggingFaceModel.commitSHA",
        "40 lower-case hex digits",
    ),
    (
        {SOURCE: {"modelSourceType": "huggingface", "modelLocation": "x", "huggingFaceModel": {"modelId": "a/b"}}},
        f"{SOURCE}.modelLocation",
        "include",
    ),
    (
        {
            SOURCE: {"modelSourceType": "huggingface", "huggingFaceModel": {"modelId": "a/b", "commitSHA": "0" * 40}},
            "spec.cachePolicy.source.revision": "main",
        },
        "spec.cachePolicy.source.revision",
        "commitSHA names the revision already",
    ),
    (
        {SOURCE: {"modelSourceType": "fsx", "modelLocation": "llama", "fsxStorage": {"fileSystemId": "fs-1"}}},
        "spec.cachePolicy.source.mountedPath",
        "such as /fsx",
    ),
    ({"spec.instanceTypes": ["ml.g5.xlarge"]}, "spec.instanceTypes", "Keep one"),
    ({"spec.instanceType": "g5.xlarge"}, "spec.instanceType", "begins with ml."),
    ({"spec.replicas": "3"}, "spec.replicas", "a whole number"),
    ({"spec.replicas": True}, "spec.replicas", "is true"),
    ({"spec.replicas": -1}, "spec.replicas", "from 0"),
    ({"spec.replicas": 1.5}, "spec.replicas", "a whole number"),
    ({"spec.worker.args": ["--port", 8000]}, "spec.worker.args[1]", "Put it in quotes"),
    (
        {"spec.worker.modelInvocationPort.containerPort": 0},
        "spec.worker.modelInvocationPort.containerPort",
        "1 to 65535",
    ),
    ({"spec.worker.modelVolumeMount.mountPath": "model"}, "spec.worker.modelVolumeMount.mountPath", "absolute"),
    ({"spec.worker.modelVolumeMount.mountPath": "/warmpath/x"}, "spec.worker.modelVolumeMount.mountPath", "outside"),
    ({"spec.worker.environmentVariables": [{"name": "A", "value": 1}]}, "spec.worker.environmentVariables", "quotes"),
    ({"spec.worker.environmentVariables": [{"value": "x"}]}, "spec.worker.environmentVariables", "has a name"),
    ({"spec.kubernetes.volumes": [{"name": "model-weights"}]}, "spec.kubernetes.volumes", "names other than"),
    ({"spec.cachePolicy.gate.mode": "Most"}, "spec.cachePolicy.gate.mode", "one of All, Count, Percentage"),
    ({"spec.cachePolicy.gate": {"mode": "Percentage", "value": 101}}, "spec.cachePolicy.gate.value", "from 1 to 100"),
    ({"spec.cachePolicy.gate": {"mode": "Count"}}, "spec.cachePolicy.gate.value", "how many nodes"),
    ({"spec.cachePolicy.gate.deadlineSeconds": 0}, "spec.cachePolicy.gate.deadlineSeconds", "more than 0"),
    ({"spec.cachePolicy.gate.onDeadline": "Retry"}, "spec.cachePolicy.gate.onDeadline", "Hold"),
    ({"spec.cachePolicy.retention": "Forget"}, "spec.cachePolicy.retention", "Delete, Retain"),
    (
        {"spec.cachePolicy.source.endpointUrl": "minio:9000"},
        "spec.cachePolicy.source.endpointUrl",
        "http:// or https://",
    ),
    ({"spec.cachePolicy.source.addressingStyle": "dns"}, "spec.cachePolicy.source.addressingStyle", "auto, path"),
    ({"spec.modelName": "has space"}, "spec.modelName", "at most 63 letters"),
    ({"spec.modelname": "x"}, "spec.modelname", "Did you mean modelName?"),
    ({"spec.cachePolicy.gates": {}}, "spec.cachePolicy.gates", "Did you mean gate?"),
    ({"spec.zebra": 1}, "spec.zebra", "check its indentation"),
    ({"spec.worker": "python"}, "spec.worker", "a mapping of fields"),
    ({"metadata.name": "7b-chat"}, "metadata.name", "the first a letter"),
    ({"metadata.name": "Chat_1"}, "metadata.name", "lower-case letters"),
    ({"metadata.name": "a" * 51}, "metadata.name", "1 to 50"),
    ({"metadata.name": "chat-"}, "metadata.name", 'the last no "-"'),
    ({"metadata.namespace": "My_Space"}, "metadata.namespace", "lower-case"),
    ({"apiVersion": "v1"}, "apiVersion", "warmpath.dev/v1alpha1 or inference.sagemaker"),
    ({"kind": "Deployment"}, "kind", "InferenceEndpointConfig"),
]


@pytest.mark.parametrize(("changes", "path", "says"), BAD, ids=[f"{path}-{n}" for n, (_, path, _) in enumerate(BAD)])
def test_a_bad_field_is_told_by_its_path_with_what_belongs_there(
    resource: Resources, changes: dict[str, Any], path: str, says: str
) -> None:
    refused = refusal(resource(changes))
    assert [problem.path for problem in refused.problems] == [path]
    assert says in str(refused)
    assert f"  {path} is " in str(refused)


@pytest.mark.parametrize("field", ["modelName", "modelSourceConfig", "worker"])
def test_a_missing_field_is_told(resource: Resources, absent: object, field: str) -> None:
    refused = refusal(resource({f"spec.{field}": absent}))
    assert [(problem.path, problem.found) for problem in refused.problems] == [(f"spec.{field}", "missing")]


def test_every_bad_field_is_told_at_once(resource: Resources) -> None:
    refused = refusal(
        resource(
            {
                "apiVersion": "v2",
                "metadata.name": "B",
                f"{SOURCE}.modelLocation": "",
                "spec.modelCacheConfig.weightsCache.hostPath": "x",
                "spec.routing.strategy": "SESSION",
                "spec.replicas": "3",
            }
        )
    )
    assert {problem.path for problem in refused.problems} == {
        "apiVersion",
        "metadata.name",
        f"{SOURCE}.modelLocation",
        "spec.modelCacheConfig.weightsCache.hostPath",
        "spec.routing.strategy",
        "spec.replicas",
    }
    assert str(refused).startswith("InferenceEndpointConfig default/B is refused, nothing was changed:\n")


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.cachePolicy.source.endpointUrl": "https://user:pl4nted@minio:9000"},
        {"spec.cachePolicy.source.secretKey": "pl4nted"},
        {"spec.worker.environmentVariables": {"HF_TOKEN": "pl4nted"}},
        {"spec.worker.environmentVariables": ["pl4nted"]},
        {"spec.worker.environmentVariables": [{"name": "HF_TOKEN", "value": ["pl4nted"]}]},
        {"spec.worker.environmentVariables": [{"name": 1, "value": "pl4nted"}]},
    ],
)
def test_a_refusal_never_repeats_what_may_be_a_secret(resource: Resources, changes: dict[str, Any]) -> None:
    assert "pl4nted" not in str(refusal(resource(changes)))


@pytest.mark.parametrize("spec", [None, "text", 7, [], {}])
def test_a_spec_of_the_wrong_shape_is_refused(resource: Resources, spec: object) -> None:
    assert refusal(resource({"spec": spec})).problems


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70_000) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_whatever_stands_in_a_field_is_accepted_or_refused_never_a_crash(
    resource: Resources, data: st.DataObject
) -> None:
    places = ["spec", "metadata", "kind", *(f"spec.{name}" for name in sorted(field_names()))]
    changes = {data.draw(st.sampled_from(places)): data.draw(json_values)}
    with contextlib.suppress(InvalidResource):
        parse_endpoint(resource(changes))


def test_a_refusal_survives_the_way_to_another_process(resource: Resources) -> None:
    refused = refusal(resource({"spec.replicas": -1}))
    again = pickle.loads(pickle.dumps(refused))  # noqa: S301 - our own bytes
    assert (str(again), again.problems) == (str(refused), refused.problems)


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
        check_same_source(before, endpoint({f"{SOURCE}.modelLocation": "v2"}))
    assert "--change-source" in str(refused.value)
    with pytest.raises(InvalidResource, match="endpointUrl is missing; expected http://127"):
        check_same_source(before, endpoint({"spec.cachePolicy.source.endpointUrl": ""}))
