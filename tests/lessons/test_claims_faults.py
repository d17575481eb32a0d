"""What lesson 10 tells people to say holds over a sweep of what it depends on."""

import pytest

from simlab.operations import failures

LLAMA_3_S = 54 * 24 * 3600 / 419  # between failures on 16,384 GPUs


@pytest.mark.parametrize("gpus", [90_000, 100_000, 110_000])
def test_at_a_hundred_thousand_gpus_nearly_half_of_the_time_is_lost(gpus):
    costs = {"checkpoint_s": 60.0, "mtbf_s": LLAMA_3_S * 16_384 / gpus}
    interval_s = failures.daly_interval_s(**costs)
    lost = 1 - failures.expected_goodput(interval_s=interval_s, restart_s=600.0, **costs)
    assert 0.4 < lost < 0.5 and interval_s < 10 * 60 and 25 * 60 < costs["mtbf_s"] < 35 * 60
    # the restart costs more than all checkpoints: it decides
    quick = 1 - failures.expected_goodput(interval_s=interval_s, restart_s=0.0, **costs)
    free = failures.daly_interval_s(3.0, costs["mtbf_s"])
    cheap = 1 - failures.expected_goodput(
        interval_s=free, restart_s=600.0, checkpoint_s=3.0, mtbf_s=costs["mtbf_s"]
    )
    assert quick < cheap < lost
