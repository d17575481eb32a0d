"""What hangs: `hang_of` the dumps of torch's flight recorder, `hang_in_logs` of its watchdog's lines."""

from simlab.diagnosis.hangs.dumps import hang_of
from simlab.diagnosis.hangs.hang import Cause, Hang
from simlab.diagnosis.hangs.waits import Wait
from simlab.diagnosis.hangs.watchdog import hang_in_logs

__all__ = ["Cause", "Hang", "Wait", "hang_in_logs", "hang_of"]
