"""What ranks noted of their instructions becomes the spans of a measured trace."""

import pytest

from realrun import Job
from realrun.record.instructions import measured_traces
from realrun.record.recorder import DONE, Record, Recording
from simlab.lowering.instructions import BEGIN, WAIT

COMPUTE_S, SENDING_S = 1.0, 1.5


def noted(instructions):
    """(Records of a step in which each computation takes `COMPUTE_S`, and communications follow each other
    as they are begun, `SENDING_S` each; {communication: (start, end)}, s)."""
    records, sent, now_s, free_s = [], {}, 0.0, 0.0
    for position, its in enumerate(instructions):
        key = its.op, its.name
        start_s, over_s = now_s, 0.0
        if its.action == BEGIN:
            sent[key] = max(now_s, free_s), max(now_s, free_s) + SENDING_S
            free_s = sent[key][1]
        elif its.action == WAIT:
            over_s = sent[key][1]
            now_s = max(now_s, over_s)
        else:
            now_s += COMPUTE_S
        records.append(Record(0, position, DONE, 0, 0, start_s, now_s, over_s))
    return records, sent


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_communications_of_a_group_follow_each_other_as_they_were_begun(tmp_path, zero):
    """ZeRO-3 begins to scatter gradients before it gathers the next layer, and waits for the gather
    first: the gather takes no longer for that."""
    job = Job(
        plan={"dp": 2, "zero": zero, "microbatches": 2},
        sizes={"layers": 3},
        steps=1,
        warmup=0,
        out=str(tmp_path),
    )
    lists = [job.instructions(rank) for rank in range(2)]
    of_ranks = [noted(its) for its in lists]
    recordings = [Recording(0.0, records) for records, _ in of_ranks]
    (trace,) = measured_traces(job, recordings, "cpu")
    for rank, (_, sent) in enumerate(of_ranks):
        spans = [span for span in trace.spans if (span.rank, span.stream) == (rank, "dp")]
        found = {span.op: (span.start_s, span.end_s) for span in spans}
        assert found == {f"{op} {name}".strip(): times for (op, name), times in sent.items()}
