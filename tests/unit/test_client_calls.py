"""The client as an object: what it keeps does not hide what it can do."""

from tests.simulator import RegistrySimulator


def test_nothing_that_a_client_keeps_hides_one_of_its_calls() -> None:
    client = RegistrySimulator().client()
    assert [name for name in vars(client) if hasattr(type(client), name)] == []


def test_a_copy_with_another_token_keeps_how_it_tries_again() -> None:
    client = RegistrySimulator().client()
    assert client.with_token("another").retry_policy is client.retry_policy
