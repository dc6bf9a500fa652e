"""All games by name, each with its default settings: what `play` offers and the contract test holds to the contract."""

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxmarl_llm.environments.board_games import ConnectFour, TicTacToe
from jaxmarl_llm.environments.card_games import KuhnPoker, LeducPoker, LiarsDice
from jaxmarl_llm.environments.commons import DonorGame, Harvest
from jaxmarl_llm.environments.deal_or_no_deal import DealOrNoDeal
from jaxmarl_llm.environments.discussion import Discussion
from jaxmarl_llm.environments.hanabi import SIZES, Hanabi
from jaxmarl_llm.environments.matrix_games import GAMES, MatrixGame
from jaxmarl_llm.environments.public_goods import PublicGoods
from jaxmarl_llm.environments.team_search import RouterSearch, TwentyQuestions
from jaxmarl_llm.environments.team_signals import Halves, Relay, SixTurns
from jaxmarl_llm.environments.team_tasks import PioneerObserver, SolverVerifier
from jaxmarl_llm.environments.trading import SimpleNegotiation
from jaxmarl_llm.environments.trust_and_split import TrustAndSplit
from jaxmarl_llm.environments.whispers import Whispers

REGISTRY: dict[str, Callable[[], Any]] = {
    **{name: partial(MatrixGame, **settings) for name, settings in GAMES.items()},
    "prisoners_dilemma_talk": partial(MatrixGame, talk=True),
    "public_goods": PublicGoods,
    "public_goods_fines": partial(PublicGoods, fine=3.0),
    "public_goods_sequential": partial(PublicGoods, sequential=True),
    "public_goods_partial": partial(PublicGoods, sequential=True, partial=True),
    "harvest": Harvest,
    "harvest_fines": partial(Harvest, fine=2.0),
    "harvest_unmonitored": partial(Harvest, monitoring=False),
    "donor_game": DonorGame,
    "trust_and_split": TrustAndSplit,
    "deal_or_no_deal": DealOrNoDeal,
    "simple_negotiation": SimpleNegotiation,
    "simple_negotiation_talk": partial(SimpleNegotiation, talk=True),
    "tic_tac_toe": TicTacToe,
    "connect_four": ConnectFour,
    "kuhn_poker": KuhnPoker,
    "leduc_poker": LeducPoker,
    "liars_dice": LiarsDice,
    **{f"{name}_hanabi": partial(Hanabi, **size) for name, size in SIZES.items()},
    "solver_verifier": SolverVerifier,
    "pioneer_observer": PioneerObserver,
    "relay": Relay,
    "halves": Halves,
    "six_turns": SixTurns,
    "router_search": RouterSearch,
    "twenty_questions": TwentyQuestions,
    "discussion": Discussion,
    "whispers": Whispers,
}
