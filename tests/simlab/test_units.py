import pytest

from simlab.units import bytes_text, percent_text, seconds_text


@pytest.mark.parametrize(
    "seconds, text",
    [(1.25, "1.250 s"), (0.69, "690.0 ms"), (57e-6, "57 µs"), (0, "0 µs"), (-0.002, "-2.0 ms")],
)
def test_seconds_are_written_in_the_unit_a_person_would_use(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    "count, text", [(512, "512 B"), (1536, "1.5 KiB"), (3 * 2**20, "3.0 MiB"), (2**31, "2.0 GiB")]
)
def test_bytes_are_written_in_powers_of_1024(count, text):
    assert bytes_text(count) == text


def test_percentages_carry_their_sign():
    assert (percent_text(0.0186), percent_text(-0.1)) == ("+1.9%", "-10.0%")
