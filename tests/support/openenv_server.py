"""An OpenEnv server of a small word game, on a port of its own: python -m tests.support.openenv_server."""

import random
import socket

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Said(Action):
    message: str


class Seen(Observation):
    text: str = ""


class Colours(Environment):
    """A colour is shown, by the seed; the answer 1 is paid 1, then the game goes on once more and ends."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **settings):
        self._shown, self._steps = random.Random(seed).choice(("red", "green", "blue")), 0
        return Seen(text=f"It is {self._shown}.")

    def step(self, action, timeout_s=None, **settings):
        if action.message == "break":
            raise RuntimeError("this word breaks the game")
        self._steps += 1
        return Seen(text=f"It was {self._shown}.", reward=float(action.message == "1"), done=self._steps == 2)

    @property
    def state(self):
        return State(step_count=self._steps)


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    app = create_fastapi_app(Colours, Said, Seen, max_concurrent_envs=200)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
