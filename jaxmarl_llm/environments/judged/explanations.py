"""One-line explanations, scored against an expert's text; a paraphrase and a plausible wrong text serve as checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import MESSAGE, Script, draw, make_view, random_player
from jaxmarl_llm.text.grammar import Grammar


class Explained(NamedTuple):
    question: str
    reference: str
    paraphrase: str  # the same in other words
    look_alike: str  # nearly the reference's words, and wrong


SCIENCE = tuple(
    Explained(*texts)
    for texts in (
        (
            "Why does ice float on water?",
            "Ice floats because it is less dense than water.",
            "Frozen water takes up more room for its mass, so it stays on top of the liquid.",
            "Water floats because it is less dense than ice.",
        ),
        (
            "Why is the sky blue?",
            "The sky is blue because air scatters short wavelengths most.",
            "Blue light is spread by the atmosphere more than red light is.",
            "The sky is red because air scatters long wavelengths most.",
        ),
        (
            "Why do we have seasons?",
            "We have seasons because the Earth's axis is tilted.",
            "As the planet leans, each half gets more or less sun through the year.",
            "We have seasons because the Earth's distance to the sun changes.",
        ),
        (
            "Why are leaves green?",
            "Leaves are green because chlorophyll absorbs red and blue light.",
            "The pigment in plants takes up other colours and reflects green.",
            "Leaves are green because chlorophyll absorbs green light.",
        ),
        (
            "Why does iron rust?",
            "Iron rusts because it reacts with oxygen and water.",
            "The metal oxidises when it is wet and in air.",
            "Iron shines because it never reacts with oxygen and water.",
        ),
        (
            "Why does the moon shine?",
            "The moon shines because it reflects the light of the sun.",
            "Moonlight is sunlight that bounces off its surface.",
            "The moon shines because it burns like the sun.",
        ),
        (
            "Why are there tides?",
            "Tides rise because the moon pulls on the sea.",
            "Lunar gravity makes the ocean bulge.",
            "Tides rise because the wind pushes on the sea.",
        ),
        (
            "Why does thunder come after lightning?",
            "Thunder comes after lightning because sound is slower than light.",
            "We see the flash first since its light travels faster than the bang.",
            "Lightning comes after thunder because light is slower than sound.",
        ),
        (
            "Why do plants need light?",
            "Plants need light to make sugar from air and water.",
            "By photosynthesis sunshine turns carbon dioxide and water into food.",
            "Plants need sugar to make light from air and water.",
        ),
        (
            "Why can birds fly?",
            "Birds can fly because their bones are light and their wings push air down.",
            "Hollow bones and wings that drive air downward keep them aloft.",
            "Birds can swim because their bones are heavy and their wings push water up.",
        ),
        (
            "Why does sweat cool the skin?",
            "Sweat cools the skin because evaporation takes heat away.",
            "When moisture on the body dries it carries off warmth.",
            "Sweat warms the skin because evaporation brings heat.",
        ),
        (
            "Why does bread rise?",
            "Bread rises because yeast makes gas.",
            "Tiny fungi give off carbon dioxide that puffs up the dough.",
            "Bread sinks because yeast makes salt.",
        ),
        (
            "Why does a magnet attract iron?",
            "A magnet attracts iron because it lines up the spins in the metal.",
            "Its field orders the small magnets inside iron and so pulls it.",
            "A magnet repels iron because it melts the spins in the metal.",
        ),
        (
            "How do fish breathe?",
            "Fish breathe with gills that take oxygen from water.",
            "Their gills draw dissolved oxygen out of the water that they live in.",
            "Fish breathe with lungs that take oxygen from air.",
        ),
        (
            "How do mountains form?",
            "Mountains form where plates of the crust collide.",
            "When two pieces of the Earth's shell push together the ground is lifted.",
            "Valleys form where plates of the crust never move.",
        ),
        (
            "How do vaccines protect us?",
            "Vaccines protect because they teach the immune system to know a germ.",
            "A harmless piece of the pathogen trains the body's defences.",
            "Vaccines harm because they teach the germ to know the immune system.",
        ),
        (
            "Why does salt melt ice?",
            "Salt melts ice because it lowers the freezing point.",
            "With salt in it water stays liquid at colder temperatures.",
            "Salt makes ice because it raises the freezing point.",
        ),
        (
            "Why does night come?",
            "Night comes because the Earth turns away from the sun.",
            "As our planet rotates, our side ends up in its own shadow.",
            "Night comes because the sun turns away and goes out.",
        ),
        (
            "Why does metal feel cold?",
            "Metal feels cold because it conducts heat away from the hand.",
            "It carries your warmth off fast, so it seems chilly to touch.",
            "Metal feels cold because it makes cold inside.",
        ),
        (
            "Why do stars twinkle?",
            "Stars twinkle because the air bends their light.",
            "Turbulence in the atmosphere makes starlight waver.",
            "Stars twinkle because they turn their light on and off.",
        ),
    )
)


class ExplanationState(struct.PyTreeNode):
    question: jax.Array  # int32
    ended: jax.Array  # bool


@dataclass(frozen=True)
class Explanations:
    """One seat explains something in one line of free words, in a single turn.

    The component `similarity` is 0 in the game. Training pays it: the similarity of the line to an expert's line, which
    stands in no text that the seat reads. The measure `question`, the number of the question, tells training the
    expert's line.

    After Shaping Explanations (https://arxiv.org/abs/2509.13081). Raises ValueError without questions.
    """

    explained: tuple[Explained, ...] = SCIENCE

    agents = 1
    turns = 1
    actions = 1
    roles = ("student",)
    components = ("similarity",)
    measures = ("question",)

    def __post_init__(self):
        if not self.explained:
            raise ValueError("There is nothing to explain: give at least one question.")

    @property
    def rules(self) -> Fields:
        rule = (
            "Explain in one short line. The more it is similar to an expert's line, the more points you get, 1 at most."
        )
        return (rule,), tuple(f" {entry.question}" for entry in self.explained)

    @property
    def observation(self) -> Fields:
        return (("Your explanation?",),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (MESSAGE,)

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {"random": random_player(self.view)}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[ExplanationState, View]:
        state = self._start(draw(key, len(self.explained)))
        return state, self.view(state)

    def prompt(self, state: ExplanationState) -> jax.Array:
        return jnp.stack([jnp.int32(0), state.question])[None]

    def step(
        self, state: ExplanationState, action: jax.Array, key: jax.Array
    ) -> tuple[ExplanationState, View, jax.Array]:
        after = state.replace(ended=jnp.bool_(True))
        question = jnp.where(state.ended, 0, state.question.astype(jnp.float32))
        return after, self.view(after).replace(measured=question[None, None]), jnp.zeros((1, 1))

    def _start(self, question: Any) -> ExplanationState:
        return ExplanationState(jnp.int32(question), jnp.bool_(False))

    def view(self, state: ExplanationState) -> View:
        return make_view(self, [0], True, state.ended)


GAMES = {"explanations": Explanations}
