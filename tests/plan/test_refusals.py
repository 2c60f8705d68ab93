"""What is refused before anything is changed: each bad field by its path, with what belongs there."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.resources import InvalidResource, parse_endpoint
from tasks.plan.schema import field_names

Resources = Callable[..., dict[str, Any]]

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


def refusal(resource: dict[str, Any]) -> InvalidResource:
    with pytest.raises(InvalidResource) as refused:
        parse_endpoint(resource)
    return refused.value


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
