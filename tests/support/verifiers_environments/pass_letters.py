"""An environment of verifiers with two roles: one answers twice, the other repeats its last answer.

Its folder has to be on the path.
"""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["PassLetters", "Passing"]


class Hidden(vf.Task):
    """The reader is paid for a lone "a"; the writer is paid for repeating the reader's last letter."""


class PassLetters(vf.Taskset[Hidden]):
    def load(self) -> Iterator[Hidden]:
        for letter in "ab":
            yield Hidden(vf.TaskData(system_prompt="r", prompt=letter), self.config.task)


class PassingConfig(vf.EnvConfig):
    reader: vf.AgentConfig = vf.AgentConfig()
    writer: vf.AgentConfig = vf.AgentConfig()
    train_writer: bool = True


class Passing(vf.Env[PassingConfig]):
    async def setup(self, agents: vf.Agents) -> None:
        agents.writer.trainable = self.config.train_writer

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.reader.interaction(task) as reading:
            await reading.turn()
            heard = await reading.turn("c")
        await agents.writer.run(vf.Task(vf.TaskData(system_prompt="w", prompt=heard.last_reply or "?")))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        said = {trace.agent.name: trace.last_reply for trace in episode.traces}
        for trace in episode.traces:
            right = "a" if trace.agent.name == "reader" else said["reader"]
            trace.record_reward("right", float(said[trace.agent.name] == right))
