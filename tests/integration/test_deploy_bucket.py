"""The permissions of deploy/s3-policy.json: enough for what the registry does with its bucket, and none to spare."""

import copy
import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.core import set_initial_no_auth_action_count

from aot.errors import InvalidConfig
from aot.schema.digest import Digest
from registry.storage.s3 import S3BlobStore

POLICY = json.loads((Path(__file__).parents[2] / "deploy/s3-policy.json").read_text())
BLOB = b"one blob"


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
        store = S3BlobStore(client, bucket="aot", prefix="blobs")
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
    store.delete(digest)
    assert store.stat(digest) is None
    records = store.records()
    records.put("one", b"{}")
    assert (list(records.list("")), records.find("one")) == (["one"], b"{}")
    records.delete("one")


def without(action: str) -> dict[str, Any]:
    policy = copy.deepcopy(POLICY)
    for statement in policy["Statement"]:
        statement["Action"] = [name for name in statement["Action"] if name != action]
    policy["Statement"] = [statement for statement in policy["Statement"] if statement["Action"]]
    return policy


def test_the_policy_is_enough() -> None:
    use_bucket_with(POLICY)


@pytest.mark.parametrize("action", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"])
def test_every_action_is_needed(action: str) -> None:
    with pytest.raises(InvalidConfig):
        use_bucket_with(without(action))


def test_nothing_else_is_allowed() -> None:
    needed = {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"}
    assert {action for statement in POLICY["Statement"] for action in statement["Action"]} == needed
    assert {arn for statement in POLICY["Statement"] for arn in statement["Resource"]} == {
        "arn:aws:s3:::aot",
        "arn:aws:s3:::aot/*",
    }
