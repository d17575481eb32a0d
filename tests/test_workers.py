"""How many workers the tests get."""

from tests.support import workers as plugin
from tests.support.workers import cores, memory_bytes, workers

GIB = 2**30


def test_two_cores_get_three_workers_and_a_small_machine_one():
    assert workers(2, 16 * GIB) == 3 and workers(8, 64 * GIB) == 12
    assert workers(8, 4 * GIB) == 2 and workers(1, 1 * GIB) == workers(0.5, 64 * GIB) == 1


def test_a_container_counts_its_share_of_the_machine(tmp_path):
    whole, free = cores(tmp_path), memory_bytes(tmp_path)  # no group says anything
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("1048576\n")
    assert whole >= 1 and cores(tmp_path) == 0.5
    assert free > 2**20 and memory_bytes(tmp_path) == 2**20
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores(tmp_path) == whole


def test_the_first_kind_of_groups_is_read_too(tmp_path):
    (tmp_path / "cpu").mkdir()
    whole = cores(tmp_path)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("20000\n")
    assert cores(tmp_path) == 0.2
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert cores(tmp_path) == whole


def test_the_suite_is_run_by_so_many_workers(pytestconfig):
    """xdist has an answer of its own."""
    if not pytestconfig.pluginmanager.is_registered(plugin):
        pytestconfig.pluginmanager.register(plugin)
    answered = pytestconfig.hook.pytest_xdist_auto_num_workers(config=pytestconfig)
    assert answered == workers(cores(), memory_bytes())
