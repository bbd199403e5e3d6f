"""In which order blobs are fetched."""

from aot.client.transfers import transfer_order


def ordered(*sizes: int) -> list[int]:
    return [sizes[index] for index in transfer_order(sizes)]


def test_large_blobs_fall_and_small_ones_are_spread_among_them() -> None:
    assert ordered(1, 100, 2, 90, 3, 80, 4, 5, 6) == [100, 6, 5, 90, 4, 3, 80, 2, 1]


def test_every_blob_is_fetched_once() -> None:
    sizes = [7, 7, 0, 500, 7, 12, 500, 0]
    assert sorted(transfer_order(sizes)) == list(range(len(sizes)))
    assert transfer_order([]) == [] and transfer_order([3]) == [0]


def test_blobs_of_one_size_keep_their_order() -> None:
    assert transfer_order([4, 4, 4]) == [0, 1, 2]
