"""What tuning chose, as `aot show --kernels` tells it."""

from aot.cli.tuning import tuning_lines
from aot.schema.artifact import Kernel
from tests.builders import an_artifact


def test_a_tuned_kernel_is_told_with_its_margin_and_where_it_was_measured() -> None:
    kernels = (
        Kernel(name="mm_1", choice="triton_mm_7", candidates=21, best_us=10.0, next_us=12.5),
        Kernel(name="mm_2", choice="mm", candidates=21, best_us=10.0, next_us=10.2, reused=True),
        Kernel(name="mm_3", choice="mm", candidates=2, best_us=4.0),
        Kernel(name="triton_poi_0"),
    )
    assert tuning_lines(an_artifact(kernels=kernels)) == [
        "  tuned mm_1: triton_mm_7, 10.0 us, best of 21, the next 25.0 % slower",
        "  tuned mm_2: mm, 10.0 us, best of 21, the next 2.0 % slower (a near tie), as measured by an earlier build",
        "  tuned mm_3: mm, 4.0 us, best of 2",
        "  1 kernel(s) generated without a choice among candidates",
    ]


def test_an_artifact_without_kernels_has_nothing_to_tell() -> None:
    assert tuning_lines(an_artifact(kernels=())) == []
