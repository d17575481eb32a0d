"""Steps of random programs and plans, as text to the last digit: the same file runs under CPython and
in the browser's Python, where `steps` is called and its answers are compared.

From Python 3.12 on `sum` of floats compensates rounding errors, so the last digit of a sum may differ
between 3.11 and the browser's 3.14. With `plain_sum` both add from left to right instead.
"""

import builtins
from contextlib import contextmanager, nullcontext
from functools import reduce
from operator import add
from random import Random

import simlab as sl
from simlab.schedules import SCHEDULES

MODELS = ("llama-2-7b", "llama-3-8b")


def steps(seed, programs, plans, plain_sum):
    """[text of the step of each of `programs` random programs and `plans` random plans, or of why it
    is refused]."""
    random = Random(seed)
    made = [lambda: program_step(random)] * programs + [lambda: plan_step(random)] * plans
    with adding_from_left_to_right() if plain_sum else nullcontext():
        return [attempt(step) for step in made]


@contextmanager
def adding_from_left_to_right():
    given = builtins.sum
    builtins.sum = lambda values, start=0: reduce(add, values, start)
    try:
        yield
    finally:
        builtins.sum = given


def attempt(step):
    try:
        return repr(step())
    except sl.InputError as error:
        return str(error)


def program_step(random):
    name = random.choice([name for name in SCHEDULES if name != "zb-auto"])
    stages, microbatches = random.randint(1, 8), random.randint(1, 24)
    options = {"chunks": random.randint(1, 3)} if SCHEDULES[name].chunked else {}
    forward_s, input_grad_s, weight_grad_s = (random.uniform(1e-3, 0.1) for _ in range(3))
    times = sl.OpTimes(
        forward_s=forward_s,
        backward_s=input_grad_s + weight_grad_s,
        input_grad_s=input_grad_s,
        weight_grad_s=weight_grad_s,
    )
    link = sl.Link(latency_s=random.choice([0.0, random.uniform(1e-4, 0.02)]))
    program = sl.generate(name, stages, microbatches, **options)
    return sl.simulate(program, times, link=link).step_s


def plan_step(random):
    nodes, tp, pp = 2, 2 ** random.randint(0, 2), 2 ** random.randint(0, 2)
    plan = sl.Plan(
        dp=8 * nodes // (tp * pp),
        tp=tp,
        pp=pp,
        zero=random.choice([0, 1]),
        microbatches=4 * random.randint(1, 4),
        microbatch_size=random.randint(1, 2),
        schedule=random.choice(["gpipe", "1f1b", "zb-h1"]),
        recompute=random.choice(["none", "full"]),
    )
    model = sl.load_model(random.choice(MODELS))
    cluster = sl.load_cluster("dgx-h100", nodes=nodes)
    return sl.predict(model, plan, cluster).step_s
