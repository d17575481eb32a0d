"""A kernel that stays on some multiprocessors of a GPU for as long as it is told to, as a collective of
NCCL does on many GPUs: what other kernels lose beside it is what `benchmarks/bench_gpu.py` measures."""

import torch

from realrun.measure.stopwatch import SLEEP_CYCLES, lower_quartile
from simlab.units import KIB, MIB

OCCUPY = """
extern "C" __global__ void __launch_bounds__(1024, 1)
occupy(int microseconds, float4 *from, float4 *to, int size, int copies, int pause,
       unsigned long long *copied)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    long long stride = (long long) gridDim.x * blockDim.x;
    long long at = (long long) blockIdx.x * blockDim.x + threadIdx.x;
    float4 held[11];
    unsigned long long rounds = 0;
    for (int i = 0; i < 11; i++) held[i] = from[(at + i * stride) % size];
    do {
        if (copies) {
            #pragma unroll
            for (int i = 0; i < 11; i++) held[i] = from[(at + i * stride) % size];
            #pragma unroll
            for (int i = 0; i < 11; i++) to[(at + i * stride) % size] = held[i];
            at = (at + 11 * stride) % size;
            rounds++;
            if (pause) __nanosleep(pause);
        }
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < 1000ull * microseconds);
    #pragma unroll
    for (int i = 0; i < 11; i++) to[(at + i * stride) % size] = held[i];
    if (threadIdx.x == 0) copied[blockIdx.x] = rounds * 11 * 16 * blockDim.x;
}
"""
"""A kernel that stays on its multiprocessors for so long, as a collective of NCCL does, and copies, or
does not."""
SHARED = 160 * KIB
"""Bytes of a multiprocessor's shared memory that it takes, so that no block of a product fits there."""


class Occupier:
    """`OCCUPY` on a stream of its own, on so many multiprocessors. pause_ns: between two copies of
    all threads; None: it copies nothing."""

    def __init__(self, sms, pause_ns):
        self.kernel = torch.cuda._compile_kernel(OCCUPY, "occupy")
        self.kernel.set_shared_memory_config(SHARED)
        self.sms, self.pause_ns = sms, pause_ns
        self.stream = torch.cuda.Stream(priority=-1)
        self.source, self.target = (torch.zeros(128 * MIB, device="cuda") for _ in range(2))
        self.copied = torch.zeros(sms, dtype=torch.int64, device="cuda")
        self.end = torch.cuda.Event(enable_timing=True)

    def start(self, seconds):
        """Begin to occupy for `seconds`."""
        self.seconds = seconds
        self.stream.wait_stream(torch.cuda.current_stream())
        copies, pause = int(self.pause_ns is not None), self.pause_ns or 0
        size = self.source.numel() // 4
        given = int(seconds * 1e6), self.source, self.target, size, copies, pause, self.copied
        with torch.cuda.stream(self.stream):
            self.kernel((self.sms, 1, 1), (1024, 1, 1), given, SHARED, self.stream)
            self.end.record()

    def bytes_per_s(self):
        """What it read and wrote."""
        torch.cuda.synchronize()
        return 2 * int(self.copied.sum()) / self.seconds

    def beside_s(self, work, alone_s):
        """Seconds of `work` while it occupies, which lasts longer than all calls."""
        calls = max(3, min(10, int(0.02 / alone_s)))
        samples = []
        for _ in range(5):
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.start(0.02 + 2.5 * calls * alone_s)
            torch.cuda._sleep(SLEEP_CYCLES)
            start.record()
            for _ in range(calls):
                work()
            end.record()
            torch.cuda.synchronize()
            if end.elapsed_time(self.end) > 0:  # it was there to the end
                samples.append(start.elapsed_time(end) / 1e3 / calls)
        return lower_quartile(samples)
