"""Search self-play: a proposer poses questions of several hops over documents, and solvers answer them by searching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, draw, make_view, random_player
from jaxmarl_llm.environments.judged.relation_chains import Chains, Question
from jaxmarl_llm.rl.rewards import Pays, challenge
from jaxmarl_llm.text.grammar import Grammar

RELATIONS = ("knows", "likes", "pays", "hears")
PROPOSER, SOLVER = 0, 1
WALK, POSE, SOLVE = range(3)  # grammars
NOTHING, STANDS_IN, LADDER = range(3)  # the use of a deal's question
SHORT = (0.8, 0.95)  # luck of a `short` question: one hop below the first number, two below the second, else `hops`


class Dealt(struct.PyTreeNode):
    """The deal that training arranges: the third argument of `Corpus.reset`."""

    use: jax.Array  # int32: NOTHING, STANDS_IN or LADDER
    documents: jax.Array  # int32 [relations, keys]: the documents of the deal; below 0: drawn by `reset`
    question: Question  # the question of STANDS_IN


class CorpusState(struct.PyTreeNode):
    documents: jax.Array  # int32 [relations, keys]: the documents of the deal
    answer: jax.Array  # int32, the key that the proposer is given
    luck: jax.Array  # float32 in [0, 1), gives the number of hops of scripted proposers
    plan: jax.Array  # int32 [hops], the relations that they walk back
    use: jax.Array  # int32
    spare: Question  # the stand-in question of the deal
    turn: jax.Array  # int32
    at: jax.Array  # int32, the key that the proposer has walked back to
    walked: jax.Array  # int32, its searches
    seen: jax.Array  # bool [relations, keys], the documents that it was shown
    start: jax.Array  # int32, the key that it has named, -1: none
    hops: jax.Array  # int32, hops of the posed question, or of the ladder's; 0: none yet
    valid: jax.Array  # bool, the proposal passed the gate
    asked: Question  # the question for the solvers
    asking: jax.Array  # bool, the solvers act
    searches: jax.Array  # int32, the turns in which solvers have acted
    reached: jax.Array  # int32 [solvers], the key that each has come to
    answered: jax.Array  # bool [solvers]
    right: jax.Array  # bool [solvers]


@dataclass(frozen=True)
class Corpus:
    """Search self-play over random documents "A knows C", one for each key and relation. Every relation is one-to-one.

    Seat 0 is the proposer. It is given a key, the true answer, and walks back from it by up to `hops` searches ("who
    knows C?"). Then it poses a question: a start key, and a chain of one to `hops` relations to follow. The other seats
    are solvers, each with a context of its own, and they act at once. A solver sees the question and searches up to
    `hops` times: from its present key it moves to the key that this one knows, likes, ... Then it answers with a key.

    A proposal must pass a gate. It is valid if the chain leads from its start to the answer on the documents that the
    proposer was shown, and on no others. This is the exact form of SSP's check by retrieval. Solvers never see an
    invalid proposal. They get the stand-in question of the deal, with documents of its own; without a stand-in the game
    ends. Without `gate` every proposal is asked.

    `reset` takes a `Dealt`: `nothing()`, `stand_in(...)` or `ladder()`. In a ladder the proposer is silent, and group g
    is asked a random true question of 1 + g mod hops hops.

    Components:

    - `correct`: 1 to a solver that gives the answer of the question, else 0.
    - `proposal`: to the proposer in the last turn. With p the share of right solvers, a valid proposal pays
      `rewards.challenge` of p: 1 - p, or 4 p (1 - p) with `pays="intermediate"`. An invalid proposal pays -penalty.

    Measures, of the proposer in the last turn:

    - `valid`: 1 for a valid proposal, else 0.
    - `hops`: the hops of its question, or of the ladder's.
    - `false`: 1 if the documents contradict the answer of the question that was asked.
    - `replaced`: 1 if the stand-in question was asked.

    The release of SSP also requires two searches or more, a question without the answer's words, and a question length.
    The grammar here has no such questions, or they are no shortcut. The judge is right by construction. There are no
    noise documents, because execution does not read them. After Search Self-play (https://arxiv.org/abs/2510.18821).
    Raises ValueError unless there are 3 to 26 keys and 1 to 4 relations. Raises it also for solvers or hops < 1,
    another `pays`, or a negative penalty.
    """

    keys: int = 8
    relations: int = 2
    hops: int = 3
    solvers: int = 4
    gate: bool = True
    pays: Pays = "hard"
    penalty: float = 0.0

    roles = ("proposer", "solver")
    components = ("correct", "proposal")
    measures = ("valid", "hops", "false", "replaced")

    def __post_init__(self):
        at_least(1, solvers=self.solvers, hops=self.hops)
        if not 3 <= self.keys <= 26:
            raise ValueError(f"keys must be 3 to 26, as there are letters, got {self.keys}.")
        if not 1 <= self.relations <= len(RELATIONS):
            raise ValueError(f"relations must be 1 to {len(RELATIONS)}, got {self.relations}.")
        if self.pays not in ("hard", "intermediate"):
            raise ValueError(f"pays must be 'hard' or 'intermediate', got {self.pays!r}.")
        if self.penalty < 0:
            raise ValueError(f"penalty must not be negative, got {self.penalty}.")

    @property
    def agents(self) -> int:
        return 1 + self.solvers

    @property
    def seat_turns(self) -> int:
        return self.hops + 2

    @property
    def turns(self) -> int:
        return 2 * self.hops + 3

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: self.keys])

    @property
    def verbs(self) -> tuple[str, ...]:
        return RELATIONS[: self.relations]

    @property
    def chains(self) -> Chains:
        return Chains(self.relations, self.keys, self.hops)

    @property
    def actions(self) -> int:
        return max(self.relations + self.keys, len(self.chains.lists))

    @property
    def rules(self) -> Fields:
        hard = "You get 1 point less the share of players who answer it right"
        middle = "With p the share of players who answer it right, you get 4 p (1 - p) points"
        gate = (
            "if the documents that you were shown give your answer. Otherwise your question is not asked, and you "
            f"{'lose ' + format(self.penalty, 'g') if self.penalty else 'get 0'} points."
        )
        proposer = (
            f"You pose a question for {self.solvers} other players. You are given its answer. Search up to {self.hops} "
            "times for who leads to it, then name where to start, then what to follow. "
            f"{hard if self.pays == 'hard' else middle}{', ' + gate if self.gate else '.'}"
        )
        given = "1 point if whoever posed the question was given that answer"
        solver = (
            "Follow the question from where it starts. Each search shows who comes next. Search up to "
            f"{self.hops} times, then answer who comes last: {'a right answer is 1 point' if self.gate else given}."
        )
        return (proposer, solver), tuple(f" The answer is {letter}." for letter in self.letters)

    @property
    def observation(self) -> Fields:
        where = *(f" It is {letter}." for letter in self.letters), *(f" Start at {letter}," for letter in self.letters)
        walking = (" Search, or name the start.", " Name the start.", " What to follow?")
        left = tuple(f" Search {i + 1}." for i in range(self.hops))
        return where, tuple(f" follow {text}." for text in self._texts), (*walking, *left, " Answer.")

    @property
    def _texts(self) -> tuple[str, ...]:
        """The chains in words."""
        return tuple(" ".join(self.verbs[r] for r in chain if r >= 0) for chain in self.chains.lists)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        """The proposer's searches, then starts; its chains; the solvers' searches, then answers."""
        back = [f"who {verb}" for verb in self.verbs]
        return (
            choice((*back, *(f"start {letter}" for letter in self.letters))),
            choice(self._texts),
            choice((*self.verbs, *(f"answer {letter}" for letter in self.letters))),
        )

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` proposes with a uniform number of hops and poses the chain that it saw; it solves by searching hop
        by hop. `short` does the same, but its questions mostly have one hop."""

        def player(hops_of):
            def play(state, seat, key):
                hops = hops_of(state.luck)
                walk = jnp.where(state.walked < hops, state.plan[state.walked % self.hops], self.relations + state.at)
                pose = self.chains.index(state.plan[(hops - 1 - jnp.arange(self.hops)) % self.hops], hops)
                proposes = jnp.where(state.start < 0, walk, pose)
                return jnp.where(seat > 0, self._solve(state, seat), proposes).astype(jnp.int32)

            return play

        few = lambda luck: jnp.where(luck < SHORT[0], 1, jnp.where(luck < SHORT[1], min(2, self.hops), self.hops))
        even = lambda luck: 1 + jnp.int32(luck * self.hops)
        return {"random": random_player(self._view), "correct": player(even), "short": player(few)}

    def _solve(self, state: CorpusState, seat: jax.Array) -> jax.Array:
        """The next action of a solver that searches hop by hop."""
        done, hops = state.searches >= self.chains.length(state.asked.chain), self.hops
        relation = self.chains.relation(state.asked.chain, jnp.minimum(state.searches, hops - 1))
        return jnp.where(done, self.relations + state.reached[jnp.maximum(seat - 1, 0)], relation)

    def nothing(self) -> Dealt:
        """The default deal: `reset` draws the documents.

        With `gate` an invalid proposal ends the game, because no stand-in question replaces it.
        """
        zero, drawn = jnp.int32(0), jnp.full((self.relations, self.keys), -1, jnp.int32)
        return Dealt(zero, drawn, Question(jnp.zeros_like(drawn), zero, zero, zero))

    def ladder(self) -> Dealt:
        """A deal of a ladder: the group number gives the hops of its question."""
        return self.nothing().replace(use=jnp.int32(LADDER))

    def stand_in(self, documents: jax.Array, question: Question, exists: jax.Array) -> Dealt:
        """A deal of `documents` int32 [relations, keys] in which `question` replaces a proposal that fails the gate.

        If `exists` (bool) is false there is no such question, and the game ends after a proposal that fails.
        """
        return Dealt(jnp.where(exists, STANDS_IN, NOTHING).astype(jnp.int32), documents, question)

    def pose_question(self, documents: jax.Array, action: jax.Array) -> Question:
        """The question that a proposer with these documents poses by its actions int32 [T], with its true answer."""
        named = (action >= self.relations).argmax()
        zero = jnp.int32(0)
        question = Question(documents, action[named] - self.relations, action[named + 1], zero)
        return question.replace(answer=self.chains.truth(question))

    def reset(self, key: jax.Array, group: jax.Array, given: Dealt | None = None) -> tuple[CorpusState, View]:
        given = self.nothing() if given is None else given
        a, b, c, d = jax.random.split(key, 4)
        documents = jnp.where(given.documents < 0, self.chains.documents(a), given.documents)
        plan = jax.random.randint(c, (self.hops,), 0, self.relations, jnp.int32)
        answer, ladder = draw(b, self.keys), given.use == LADDER
        hops = jnp.where(ladder, 1 + group % self.hops, 0).astype(jnp.int32)
        rung = Question(documents, answer, self.chains.index(plan, hops), answer)
        rung = rung.replace(answer=self.chains.truth(rung))
        nobody = jnp.zeros((self.solvers,), bool)
        state = CorpusState(
            documents=documents,
            answer=answer,
            luck=jax.random.uniform(d),
            plan=plan,
            use=given.use,
            spare=given.question,
            turn=jnp.int32(0),
            at=answer,
            walked=jnp.int32(0),
            seen=jnp.zeros((self.relations, self.keys), bool),
            start=jnp.int32(-1),
            hops=hops,
            valid=jnp.bool_(False),
            asked=rung,
            asking=ladder,
            searches=jnp.int32(0),
            reached=jnp.full((self.solvers,), answer),
            answered=nobody,
            right=nobody,
        )
        return state, self._view(state)

    def prompt(self, state: CorpusState) -> jax.Array:
        proposes = jnp.arange(self.agents) == 0
        answer = jnp.where(proposes & ~state.asking, state.answer, -1)
        return jnp.stack([jnp.where(proposes, PROPOSER, SOLVER), answer], 1)

    def step(self, state: CorpusState, action: jax.Array, key: jax.Array) -> tuple[CorpusState, View, jax.Array]:
        proposed, solved = self._propose(state, action[0]), self._search(state, action[1:])
        after = jax.tree.map(lambda a, b: jnp.where(state.asking, a, b), solved, proposed)
        after = after.replace(turn=state.turn + 1)
        correct = jnp.concatenate([jnp.zeros(1), after.right & ~state.right])
        paid = jnp.zeros((self.agents,)).at[0].set(self._proposal(after))
        view = self._view(after).replace(measured=self._measure(after))
        return after, view, jnp.stack([correct, paid], 1).astype(jnp.float32)

    def _propose(self, state: CorpusState, said: jax.Array) -> CorpusState:
        walking, searching = state.start < 0, (state.start < 0) & (said < self.relations)
        relation = jnp.clip(said, 0, self.relations - 1)
        before = jnp.argmax(state.documents[relation] == state.at).astype(jnp.int32)
        shown = (jnp.arange(self.relations) == relation)[:, None] & (jnp.arange(self.keys) == before)[None]
        named = jnp.clip(said - self.relations, 0, self.keys - 1).astype(jnp.int32)
        chain = jnp.clip(said, 0, len(self.chains.lists) - 1).astype(jnp.int32)
        posed = Question(state.documents, jnp.maximum(state.start, 0), chain, state.answer)
        valid = ~walking & self.chains.supported(posed, state.seen)
        passes = valid | (not self.gate)
        spare = ~walking & ~passes & (state.use == STANDS_IN)
        asked = jax.tree.map(lambda a, b: jnp.where(passes, a, b), posed, state.spare)
        return state.replace(
            at=jnp.where(searching, before, state.at),
            walked=state.walked + searching,
            seen=state.seen | (shown & searching),
            start=jnp.where(walking & ~searching, named, state.start),
            hops=jnp.where(walking, 0, self.chains.length(posed.chain)),
            valid=valid,
            asked=jax.tree.map(lambda a, b: jnp.where(walking, b, a), asked, state.asked),
            asking=~walking & (passes | spare),
            reached=jnp.full((self.solvers,), asked.start),
        )

    def _search(self, state: CorpusState, said: jax.Array) -> CorpusState:
        searches, relation = said < self.relations, jnp.clip(said, 0, self.relations - 1)
        answer = jnp.clip(said - self.relations, 0, self.keys - 1)
        following = state.asked.documents[relation, state.reached]
        answers = ~state.answered & ~searches
        return state.replace(
            searches=state.searches + 1,
            reached=jnp.where(searches & ~state.answered, following, state.reached),
            answered=state.answered | answers,
            right=state.right | (answers & (answer == state.asked.answer)),
        )

    def _is_over(self, state: CorpusState) -> jax.Array:
        return jnp.where(state.asking, state.answered.all(), (state.start >= 0) & (state.hops > 0))

    def _proposal(self, after: CorpusState) -> jax.Array:
        """The proposer's reward, float32."""
        passes = after.valid | (not self.gate)
        paid = jnp.where(passes, challenge(after.right.mean(), self.pays), -self.penalty)
        return jnp.where(self._is_over(after) & (after.use != LADDER), paid, 0)

    def _measure(self, after: CorpusState) -> jax.Array:
        passes = after.valid | (not self.gate)
        false = after.asking & (self.chains.truth(after.asked) != after.asked.answer)
        replaced = after.asking & ~passes & (after.use == STANDS_IN)
        facts = jnp.stack([x.astype(jnp.float32) for x in (after.valid, after.hops, false, replaced)])
        return jnp.zeros((self.agents, len(facts))).at[0].set(jnp.where(self._is_over(after), facts, 0))

    def _view(self, state: CorpusState) -> View:
        seats, solver = jnp.arange(self.agents), jnp.arange(self.agents) > 0
        of_solvers = lambda x, first: jnp.concatenate([jnp.asarray(first)[None], x])
        acting = jnp.where(solver, state.asking & ~of_solvers(state.answered, True), ~state.asking)
        # the proposer
        posing, full = state.start >= 0, state.walked >= self.hops
        shown = jnp.where(posing | (state.walked == 0), -1, state.at)
        call = jnp.where(posing, 2, jnp.where(full, 1, 0))
        # solvers
        new = state.searches == 0
        columns = [
            jnp.where(solver, of_solvers(jnp.where(new, self.keys + state.asked.start, state.reached), -1), shown),
            jnp.where(solver & new, state.asked.chain, -1),
            jnp.where(solver, 3 + jnp.minimum(state.searches, self.hops), call),
        ]
        action = jnp.arange(self.actions)
        walks = (action < self.relations + self.keys) & ((action >= self.relations) | ~full)
        poses = action < len(self.chains.lists)
        solves = (action < self.relations + self.keys) & ((action >= self.relations) | (state.searches < self.hops))
        legal = jnp.where(solver[:, None], solves[None], jnp.where(posing, poses, walks)[None])
        grammar = jnp.where(solver, SOLVE, jnp.where(posing, POSE, WALK))
        ended = self._is_over(state)
        return make_view(self, columns, acting, ended, role=jnp.minimum(seats, 1), grammar=grammar, legal=legal)


GAMES = {"corpus": Corpus}
