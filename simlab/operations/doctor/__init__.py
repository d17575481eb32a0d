"""It examines a machine before a training, and says what would break it, loudly or silently."""

from simlab.operations.doctor.differences import differences
from simlab.operations.doctor.findings import Finding, findings
from simlab.operations.doctor.machine import Machine, examined

__all__ = ["Finding", "Machine", "differences", "examined", "findings"]
