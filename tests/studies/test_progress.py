"""What a run says of its progress: programs that compile, updates, and an estimate that holds."""

import io

import pytest
from rich.console import Console

from jaxmarl_llm.studies.progress import Estimate, progress


class Clock:
    """A clock that plays the run of a plan: seconds for the start, each update and the end of each program."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, estimate: Estimate, plan: list[tuple[float, int, float, float]]) -> list[tuple[float, float | None]]:
        """(time, estimate) after every update of programs (start, updates, seconds of an update, end)."""
        seen = []
        for number, (start, updates, rate, end) in enumerate(plan):
            estimate.begin(number)
            self.now += start
            for update in range(updates):
                self.now += rate * (update > 0)
                estimate.step()
                seen.append((self.now, estimate.seconds))
            self.now += end
        return seen


@pytest.mark.parametrize(
    ("plan", "within"),
    [
        ([(30.0, 200, 0.5, 0.0)], 0.01),
        ([(30.0, 60, 0.5, 2.0)] + 5 * [(4.0, 60, 0.5, 2.0)], 0.15),
        ([(30.0, 10, 0.5, 0.0)] + 5 * [(25.5, 10, 0.5, 0.0)], 0.01),  # compiled beside, while the one before trains
        ([(20.0, 3, 40.0, 30.0)] + 2 * [(20.0, 3, 40.0, 30.0)], 0.35),  # a pretrained model: nothing is beside
    ],
)
def test_the_estimate_of_a_whole_run_holds_from_a_tenth_on(plan, within):
    clock = Clock()
    seen = clock.run(Estimate([program[1] for program in plan], [0] * len(plan), clock), plan)
    late = [(now, left) for now, left in seen if left is not None and now > clock.now / 10]
    assert len(late) > len(seen) / 2
    for now, left in late:
        assert left == pytest.approx(clock.now - now, abs=within * clock.now)


def test_saved_updates_are_not_waited_for():
    clock = Clock()
    estimate = Estimate([10, 10, 10], [10, 4, 0], clock)
    estimate.begin(0)
    estimate.begin(1)
    assert estimate.seconds is None
    clock.now = 5.0
    for _ in range(2):
        estimate.step()
        clock.now += 1.0
    assert estimate.seconds == pytest.approx(4 + 9)


def test_lines_name_the_program_that_compiles_and_the_time_left():
    out = io.StringIO()
    with progress(Console(file=out, width=100), ["naive", "taught[x]"], [20, 20], [0, 0], [0, 300]) as shown:
        for number in range(2):
            shown.begin(number)
            for _ in range(20):
                shown.step("return 0.1")
    lines = out.getvalue().splitlines()
    assert (
        "compiling (1 of 2): naive" in lines and "compiling, and imitating for 300 updates (2 of 2): taught[x]" in lines
    )
    assert lines[1].startswith("update 2 of 40: return 0.1, about ")
    assert lines[-1] == "update 40 of 40: return 0.1, finishing"
    assert 11 <= len(lines) <= 14


def test_a_terminal_shows_a_bar():
    out = io.StringIO()
    with progress(Console(file=out, width=120, force_terminal=True), ["naive"], [2], [0], [0]) as shown:
        shown.begin(0)
        shown.step("naive: return 0.5")
        shown.step("naive: return 0.6")
    printed = out.getvalue()
    assert (
        "2/2" in printed and "naive: return 0.6" in printed and "finishing" in printed and "0.0 s left" not in printed
    )


def test_a_finished_program_is_not_said_to_compile():
    out = io.StringIO()
    with progress(Console(file=out, width=100), ["naive", "taught"], [20, 20], [20, 5], [0, 0]) as shown:
        shown.begin(0)
        shown.begin(1)
    assert out.getvalue().splitlines() == ["trained already (1 of 2): naive", "compiling (2 of 2): taught"]
