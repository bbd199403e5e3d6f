"""The permissions of deploy/s3-policy.json: enough for what the registry does with its bucket, and none to spare."""

import ast
import copy
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.core import set_initial_no_auth_action_count

from aot.errors import InvalidConfig
from aot.schema.digest import Digest
from registry.storage.place import S3Place
from registry.storage.s3 import S3BlobStore

ROOT = Path(__file__).parents[2]
POLICY = json.loads((ROOT / "deploy/s3-policy.json").read_text())
BLOB = b"one blob"
# The permission that each operation of the S3 API asks for (Amazon S3 User Guide, "Required permissions for Amazon S3
# API operations"; what a link names is asked of whoever signed it).
OBJECT, BUCKET = "arn:aws:s3:::aot/*", "arn:aws:s3:::aot"
PERMISSIONS = {
    "abort_multipart_upload": ("s3:AbortMultipartUpload", OBJECT),
    "complete_multipart_upload": ("s3:PutObject", OBJECT),
    "copy_object": ("s3:PutObject", OBJECT),
    "create_multipart_upload": ("s3:PutObject", OBJECT),
    "delete_object": ("s3:DeleteObject", OBJECT),
    "delete_objects": ("s3:DeleteObject", OBJECT),
    "get_object": ("s3:GetObject", OBJECT),
    "head_bucket": ("s3:ListBucket", BUCKET),
    "head_object": ("s3:GetObject", OBJECT),
    "list_multipart_uploads": ("s3:ListBucketMultipartUploads", BUCKET),
    "list_objects_v2": ("s3:ListBucket", BUCKET),
    "list_parts": ("s3:ListMultipartUploadParts", OBJECT),
    "put_object": ("s3:PutObject", OBJECT),
    "upload_part": ("s3:PutObject", OBJECT),
}
# Without s3:ListBucket, S3 answers 403 for an object that is absent.
ASKED_BY_ABSENCE = ("s3:ListBucket", BUCKET)
NOT_OPERATIONS = {"generate_presigned_url", "get_paginator", "can_paginate", "close", "meta", "exceptions"}
ACTIONS = [action for statement in POLICY["Statement"] for action in statement["Action"]]


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "administrator")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def use_bucket_with(policy: dict[str, Any]) -> None:
    """Do once whatever the registry does, as a user who may do what `policy` says. Raises as the registry would."""
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="aot")
        iam = boto3.client("iam")
        iam.create_user(UserName="registry")
        iam.put_user_policy(UserName="registry", PolicyName="bucket", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName="registry")["AccessKey"]
        client = boto3.client("s3", aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"])
        store = S3BlobStore(client, S3Place(bucket="aot", prefix="blobs"))
        # From here on moto asks the policies.
        set_initial_no_auth_action_count(0)(_use)(store, client)


def _use(store: S3BlobStore, client: Any) -> None:
    store.probe()
    digest = Digest.of(BLOB)
    assert store.stat(digest) is None
    client.put_object(Bucket="aot", Key=f"blobs/sha256/{digest.hex[:2]}/{digest.hex[2:]}", Body=BLOB)
    assert store.stat(digest) == len(BLOB)
    with store.open(digest) as file:
        assert file.read() == BLOB
    assert store.delete(digest, version=store.version(digest))
    assert store.stat(digest) is None
    records = store.records()
    records.put("one", b"{}")
    assert (list(records.list("")), records.find("one")) == (["one"], b"{}")
    records.delete("one")
    with store.part_link(expires_in=timedelta(minutes=1)):
        pass  # the upload is begun and given up


def without(action: str) -> dict[str, Any]:
    policy = copy.deepcopy(POLICY)
    for statement in policy["Statement"]:
        statement["Action"] = [name for name in statement["Action"] if name != action]
    policy["Statement"] = [statement for statement in policy["Statement"] if statement["Action"]]
    return policy


def test_the_policy_is_enough() -> None:
    use_bucket_with(POLICY)


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_is_needed(action: str) -> None:
    with pytest.raises(InvalidConfig):
        use_bucket_with(without(action))


def test_the_policy_allows_what_the_calls_need_and_nothing_else() -> None:
    needed = {ASKED_BY_ABSENCE}
    for operation, place in operations_of(ROOT / "registry/storage"):
        assert operation in PERMISSIONS, f"{place} calls {operation}: what does it need?"
        needed.add(PERMISSIONS[operation])
    allowed = {
        (action, resource)
        for statement in POLICY["Statement"]
        for action in statement["Action"]
        for resource in statement["Resource"]
    }
    assert allowed == needed


def test_nothing_but_the_storage_reaches_the_bucket() -> None:
    imports = re.compile(r"^\s*(import|from) boto", re.MULTILINE)
    reaching = {path for path in (ROOT / "registry").rglob("*.py") if imports.search(path.read_text())}
    assert {path.parent.name for path in reaching} == {"storage"}


def operations_of(package: Path) -> Iterator[tuple[str, str]]:
    """Every S3 operation that the code of a package calls, signs a link for, or pages through."""
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                found += [(name, f"{path.name}:{node.lineno}") for name in _named_by(node.func, node)]
    assert {name for name, _ in found} > {"put_object", "head_object", "list_objects_v2"}, "the client has another name"
    yield from found


def _named_by(function: ast.Attribute, call: ast.Call) -> set[str]:
    """`client.head_object(...)`; and `put_object` of `get_paginator("...")`, `_presigned("...")` or a signer's like."""
    words = {argument.value for argument in call.args if isinstance(argument, ast.Constant)}
    named = {word for word in words if isinstance(word, str) and word in PERMISSIONS}
    owner = function.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    if name.endswith("client") and function.attr not in NOT_OPERATIONS and "_" in function.attr:
        named.add(function.attr)
    return named
