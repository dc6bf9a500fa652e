"""A taskset of verifiers: repeat the letter that you are told. Its folder has to be on the path."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["RepeatLetters"]


class Letter(vf.TaskData):
    answer: str


class Repeat(vf.Task[Letter]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 2)


class RepeatLetters(vf.Taskset[Repeat]):
    def load(self) -> Iterator[Repeat]:
        for letter in "abc":
            yield Repeat(Letter(system_prompt="r", prompt=letter, answer=letter), self.config.task)
