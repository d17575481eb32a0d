import csv
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab_oracles import op_times, plans, seconds_of_kinds

from simlab import InputError, Op, Program, ProgramError, generate, simulate, validate


@given(st.integers(0, 10**9 - 1), st.sampled_from("FBIW"), st.integers(0, 10**9 - 1))
def test_an_op_reads_back_from_its_text(stage, kind, microbatch):
    op = Op(stage, kind, microbatch)
    assert str(op) == f"{stage}{kind}{microbatch}"
    assert Op.parse(f" {op} ") == op


@pytest.mark.parametrize(
    "text", ["", "F0", "2F", "2X0", "-1F0", "2F0 2F1", "2f0", "1.0F0", "2SEND_F0"]
)
def test_what_is_no_op_is_refused_and_quoted(text):
    with pytest.raises(InputError) as raised:
        Op.parse(text)
    assert repr(text) in str(raised.value)


@given(plans())
def test_a_program_reads_back_from_its_text(program):
    assert Program.from_text(str(program)).ranks == program.ranks


@given(program=plans())
def test_a_program_reads_back_from_its_csv(tmp_path_factory, program):
    path = tmp_path_factory.getbasetemp() / "mine.csv"
    program.to_csv(path)
    assert Program.from_csv(path) == Program(program.ranks, name="mine")
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [[str(op) for op in ops] for ops in program.ranks]


@given(st.data())
def test_a_trace_gives_its_program_back(data):
    program = data.draw(plans())
    trace = simulate(program, op_times(data.draw(seconds_of_kinds(program))))
    assert Program.from_trace(trace) == program


def test_empty_cells_are_idle_time_and_dropped(tmp_path):
    path = tmp_path / "spaced.csv"
    path.write_text("0F0,,, 0B0 ,\n,1F0,1B0,,\n")
    assert str(Program.from_csv(path)) == "0F0 0B0\n1F0 1B0"


def test_a_csv_saved_by_a_spreadsheet_with_a_byte_order_mark_reads_the_same(tmp_path):
    path = tmp_path / "excel.csv"
    path.write_bytes(b"\xef\xbb\xbf0F0,0B0\r\n")
    assert str(Program.from_csv(path)) == "0F0 0B0"


@pytest.mark.parametrize("content, message", [
    (b"0F0,0B0\n1F0,oops\n", "bad.csv: rank 1, cell 2: 'oops' is not an op"),
    (b"0F0,0SEND_F0,0B0\n", "bad.csv: rank 0, cell 2: '0SEND_F0' is a communication op"),
    (b"0F0\n0RECV_B0\n", "bad.csv: rank 1, cell 1: '0RECV_B0' is a communication op"),
    (b"0UNSHARD,0F0\n", "bad.csv: rank 0, cell 1: '0UNSHARD' is a communication op"),
    (b"", "bad.csv: no op in it"),
    (b"\n,,\n", "bad.csv: no op in it"),
    (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "bad.csv': it is no text"),
    (b"\x00\x01\x02", "bad.csv: rank 0, cell 1: '\\x00\\x01\\x02' is not an op"),
])  # fmt: skip
def test_a_csv_that_is_none_is_refused_with_file_rank_and_cell(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        Program.from_csv(path)
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@given(content=st.one_of(st.binary(), st.text(alphabet='0123FBIW,\n"; ').map(str.encode)))
def test_whatever_bytes_a_csv_has_it_is_a_program_or_a_one_line_error_that_names_it(
    tmp_path_factory, content
):
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(content)
    try:
        program = Program.from_csv(path)
    except InputError as error:
        assert "fuzz.csv" in str(error) and len(str(error).splitlines()) == 1
    else:
        assert program.rank_of


def test_blank_lines_of_a_csv_are_no_ranks(tmp_path):
    (tmp_path / "blank.csv").write_text("0F0,0B0\n\n1F0,1B0\n\n")
    assert str(Program.from_csv(tmp_path / "blank.csv")) == "0F0 0B0\n1F0 1B0"


def test_torchs_marks_that_are_no_compute_ops_are_dropped_and_its_pairs_are_kept(tmp_path):
    (tmp_path / "torch.csv").write_text("0F0,,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2,0REDUCE_GRAD\n")
    assert str(Program.from_csv(tmp_path / "torch.csv")) == "0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2"


# pairs
# ----------------------------------------------------------------------------------------------------


def paired_at_random(program, random):
    """`program` with some of its forwards, each before a backward, paired."""
    found = [
        op
        for ops in program.ranks
        for op, after in pairwise(ops)
        if (op.kind, after.kind in "BI") == ("F", True)
    ]
    return Program(
        program.ranks, program.name, frozenset(op for op in found if random.random() < 0.5)
    )


@given(program=plans(), random=st.randoms(use_true_random=False))
def test_pairs_read_back_from_text_and_csv(tmp_path_factory, program, random):
    program = paired_at_random(program, random)
    assert Program.from_text(str(program), name="random") == program
    path = tmp_path_factory.getbasetemp() / "random.csv"
    program.to_csv(path)
    assert Program.from_csv(path) == program
    assert sum("OVERLAP" in cell for row in program.ranks_as_text for cell in row) == len(
        program.paired
    )


def test_a_pair_is_one_cell_of_a_csv(tmp_path):
    Program.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1").to_csv(tmp_path / "pair.csv")
    assert (tmp_path / "pair.csv").read_text().split(",") == [
        "0F0",
        "(0F1;0B0)OVERLAP_F_B",
        "0B1\n",
    ]


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v"])
def test_unpaired_has_the_same_ops_in_the_same_order(name):
    program = generate(name, 4, 8)
    assert program.paired and {op.kind for op in program.paired} == {"F"}
    assert program.unpaired() == Program(program.ranks, name)
    assert "OVERLAP" not in str(program.unpaired())


@pytest.mark.parametrize(
    "cell", ["(0F1;0F2)OVERLAP_F_B", "(0B1;0F2)OVERLAP_F_B", "(0F1;0W0)OVERLAP_F_B"]
)
def test_what_is_no_forward_and_backward_is_no_pair(cell):
    with pytest.raises(
        InputError,
        match=r"^rank 1, cell 2: .* is not a pair: OVERLAP_F_B is for a forward and a backward, as in",
    ) as raised:
        Program.from_text(f"0F0\n1F0 {cell}")
    assert repr(cell) in str(raised.value)


@pytest.mark.parametrize(
    "cell", ["(0F1)OVERLAP_F_B", "(0F1;0B0;0B1)OVERLAP_F_B", "(0F1;0B0)", "(what;0B0)OVERLAP_F_B"]
)
def test_a_pair_of_what_is_no_op_is_refused_with_rank_and_cell(cell):
    with pytest.raises(InputError, match=r"^rank 0, cell 2: .* is not an op"):
        Program.from_text(f"0F0 {cell}")


@pytest.mark.parametrize("text, reason", [
    ("(0F0;0B0)OVERLAP_F_B", "rank 0: 0F0 is to run beside 0B0, which cannot start before it has ended"),
    ("(0F0;1B0)OVERLAP_F_B 0B0\n1F0", "rank 0: 1B0 needs 1F0, whose saved tensors are on rank 1; move one to the other"),
])  # fmt: skip
def test_a_backward_does_not_run_beside_the_forward_it_needs(text, reason):
    with pytest.raises(ProgramError) as raised:
        validate(Program.from_text(text))
    assert str(raised.value) == reason


@pytest.mark.parametrize("op, after", [("0B0", "nothing"), ("0F0", "0F1")])
def test_what_is_paired_without_a_forward_and_a_backward_after_it_is_refused(op, after):
    program = Program(Program.from_text("0F0 0F1 0B1 0B0").ranks, paired={Op.parse(op)})
    with pytest.raises(
        ProgramError,
        match=f"^rank 0: {op} is to run beside a backward, but {after} comes after it$",
    ):
        validate(program)


@pytest.mark.parametrize("name", ["absent.csv", "."])
def test_a_csv_that_cannot_be_opened_is_refused_and_named(tmp_path, name):
    with pytest.raises(InputError, match=r"^cannot read .*: "):
        Program.from_csv(tmp_path / name)


def test_needs_of_each_kind_of_op():
    program = Program.from_text("0F0 0I0 0W0\n1F0 1I0 1W0\n2F0 2B0")

    def needs(text):
        return " ".join(map(str, program.needs(Op.parse(text))))

    assert [needs(op) for op in ("0F0", "1F0", "2B0", "1I0", "0I0", "0W0")] == [
        "",
        "0F0",
        "2F0",
        "1F0 2B0",
        "0F0 1I0",
        "0I0",
    ]


def test_users_are_the_needs_of_neighbouring_stages_turned_round():
    program = generate("1f1b", 4, 3)
    for op, rank in program.rank_of.items():
        users = [
            other
            for other in program.rank_of
            if op in program.needs(other) and program.rank_of[other] != rank
        ]
        assert [program.user(op)] == (users or [None])


def test_stages_of_a_rank_are_in_ascending_order():
    assert Program.from_text("2F0 0F0 0B0 2B0\n1F0 1B0").stages_of(0) == [0, 2]
