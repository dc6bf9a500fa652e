"""The page of games: what is written, and in a browser what it shows, asks for and refuses to run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxmarl_llm.view import page

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script></script><!--<b>\u2028\u202egnp.exe\x00\x1b[31m<|im_start|>\ufeff"


def game(number: int, arm: str = "method", said: str = "cooperate", turns: int = 10) -> dict:
    """A game of two seats as long as the dilemma of a pretrained model."""
    group, member = divmod(number, 4)

    def seat(policy: str, reward: float) -> dict:
        messages, at, answers = [{"role": "system", "content": "The rules of the game. " * 40}], [0], []
        for turn in range(turns):
            told = f"In the last round they chose {said}. Your points: {turn}."
            messages += [{"role": "user", "content": told}, {"role": "assistant", "content": f"I {said}"}]
            at += [turn, turn]
            top = [[f" word {i}", round(0.5 / (1 + i), 5)] for i in range(8)]
            drawn = {"logp": -0.6931472 * (1 + turn), "entropy": 0.1 * turn, "advantage": reward - 2.5, "top": top}
            tokens = [{"text": "I"}, {"text": " "} | drawn, {"text": said} | drawn, {"text": "<|im_end|>"}]
            answers.append({"turn": turn, "action": 0, "reward": 0.5, "tokens": tokens})
        answers[0]["values"] = [["cooperate", 1.5], ["defect", -0.5]]
        components = {"points": reward, "fine": 0.0}
        return {"policy": policy, "reward": reward, "components": components, "messages": messages, "turns": at} | {
            "answers": answers
        }

    about = {"study": "dilemma", "arm": arm, "seed": 0, "update": 0 if number < 100 else 8}
    seats = [seat("ours", float(number % 7)), seat("other" if number % 2 else "ours", -1.0)]
    return {**about, "game": number, "group": group, "member": member, "seats": seats}


def written(run: Path, games: list[dict]) -> Path:
    (run / "arm").mkdir(parents=True)
    (run / "arm" / page.GAMES).write_bytes(page.lines_of(games))
    return page.write(run, run)[0]


def test_games_in_the_page_are_those_of_the_lines_and_no_text_ends_the_script(tmp_path):
    games = [game(0, said=HOSTILE), game(1)]
    whole = written(tmp_path, games).read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', whole, re.DOTALL)[1]
    assert json.loads(data)["games"] == games == page.read(tmp_path / "arm" / page.GAMES)
    assert data.isascii() and not set(data) & set("<>&")
    assert (tmp_path / "arm" / page.GAMES).read_bytes().isascii(), "a terminal shows it unharmed"
    assert "http" not in whole.replace("http-equiv", ""), "nothing to fetch is named"


def test_the_command_renders_a_run_anew_up_to_a_cap(tmp_path):
    command = [sys.executable, "-m", "jaxmarl_llm.view", str(tmp_path)]
    none = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert none.returncode == 2 and re.fullmatch(
        r"error: There is no games\.jsonl with games below .*: .*\.\n", none.stderr
    )
    written(tmp_path, [game(i) for i in range(5)]).unlink()
    done = subprocess.run([*command, "--games", "3"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "3 of 5 games" in done.stdout, done.stderr
    assert (tmp_path / page.PAGE).read_text().count('"group":') == 3
    (tmp_path / "arm" / page.GAMES).write_text('{"study": ')
    with pytest.raises(ValueError, match="is damaged"):
        page.write(tmp_path, tmp_path)
    with pytest.raises(ValueError, match="at least 1 game"):
        page.write(tmp_path, tmp_path, 0)


@pytest.fixture(scope="module")
def browser():
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])  # root may start it
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """open(file) -> the page in a tab, which notes what it says on the console, asks for and pops up."""
    tabs = []

    def open(file: Path):
        tab = browser.new_page()
        tab.noted = []
        tab.on("console", lambda message: tab.noted.append(message.text))
        tab.on("pageerror", lambda error: tab.noted.append(str(error)))
        tab.on("dialog", lambda dialog: (tab.noted.append(dialog.message), dialog.dismiss()))
        tab.on("request", lambda request: tab.noted.append(request.url) if request.url != file.as_uri() else None)
        tab.goto(file.as_uri())
        tabs.append(tab)
        return tab

    yield open
    for tab in tabs:
        assert not tab.noted, "no error, no request, no script"
        tab.close()


@pytest.mark.commands
def test_two_hundred_games_are_small_and_soon_there(opened, tmp_path):
    file = written(tmp_path, [game(i) for i in range(200)])
    assert file.stat().st_size < 5e6
    tab = opened(file)
    assert tab.locator("#list > button").count() == 200
    assert int(tab.evaluate("document.body.dataset.ready")) < 1000, "milliseconds until it can be used"


@pytest.mark.commands
def test_games_are_filtered_sorted_and_switched(opened, tmp_path):
    tab = opened(written(tmp_path, [game(i, "method" if i < 150 else "control") for i in range(200)]))
    rows, count = tab.locator("#list > button"), tab.locator("#count")
    numbers = lambda: [int(text) for text in re.findall(r"\n(-?\d+) · -1", tab.locator("#list").inner_text())]
    tab.select_option("#arm", "control")
    assert rows.count() == 50 and count.inner_text() == "50 of 200 games"
    tab.select_option("#arm", "")
    tab.select_option("#update", "8")
    assert rows.count() == 100
    tab.select_option("#seat", "1")
    tab.select_option("#policy", "other")
    assert rows.count() == 50
    for name in ("update", "seat", "policy"):
        tab.select_option(f"#{name}", "")
    tab.select_option("#seat", "0")
    tab.fill("#least", "2")
    tab.fill("#most", "4")
    assert rows.count() == len([i for i in range(200) if 2 <= i % 7 <= 4]) == len(numbers())
    tab.select_option("#sort", "best")
    assert numbers() == sorted(numbers(), reverse=True) and set(numbers()) == {2, 3, 4}
    tab.select_option("#sort", "worst")
    assert numbers() == sorted(numbers())
    rows.nth(30).click()
    assert rows.nth(30).get_attribute("aria-current") == "true"
    siblings = tab.locator("#siblings button")
    assert siblings.count() == 4
    siblings.nth(3).click()
    assert siblings.nth(3).get_attribute("aria-current") == "true" and tab.locator(".seat").count() == 2
    assert tab.locator(".system").count() == 2 and tab.locator(".assistant").count() == 20


@pytest.mark.commands
def test_tokens_are_coloured_and_tell_what_is_known_of_them(opened, tmp_path):
    tab = opened(written(tmp_path, [game(3), game(1)]))
    colours = set()
    for kind in ("probability", "entropy", "advantage"):
        tab.select_option("#colour", kind)
        painted = tab.locator(".sampled").evaluate_all("all => all.map(x => x.style.backgroundColor)")
        assert len(painted) == 40 and all(painted)
        colours.add(tuple(painted))
        assert len(set(painted)) > 1
    assert len(colours) == 3
    assert not any(tab.locator(".forced").evaluate_all("all => all.map(x => x.style.backgroundColor)"))
    tab.locator(".sampled").nth(1).click()
    told = re.sub(r"\s+", " ", tab.locator("#detail").inner_text())
    for part in ("probability 0.5", "advantage 0.5", "word 7", "exact value", "cooperate 1.5", "defect -0.5"):
        assert part in told, part


@pytest.mark.commands
def test_hostile_text_stays_text_and_hidden_characters_are_seen(opened, tmp_path):
    hostile = game(0, said=HOSTILE, turns=1)
    hostile["arm"] = hostile["seats"][0]["policy"] = HOSTILE
    tab = opened(written(tmp_path, [hostile]))
    assert tab.locator("script").count() == 2 and tab.locator("main b b").count() == 0
    shown = tab.locator(".assistant").first.inner_text()
    assert "<script>alert(1)</script></script><!--<b>" in shown
    for number in ("U+202E", "U+2028", "U+0000", "U+001B", "U+FEFF"):
        assert number in shown, number
    assert "\u202e" not in tab.evaluate("document.body.textContent.replace(data.textContent, '')")
    assert "<|im_start|>" in shown
