"""The page of games: what is written, and in a browser what it shows, asks for and refuses to run."""

import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from jaxmarl_llm.view import page

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script></script><!--<b>\u2028\u202egnp.exe\x00\x1b[31m<|im_start|>\ufeff"


def game(number: int, arm: str = "method", said: str = "cooperate", turns: int = 10) -> dict:
    """A game of two seats as long as the dilemma of a pretrained model. The second answer is cut at its budget."""
    group, member = divmod(number % 100, 4)

    def seat(policy: str, reward: float) -> dict:
        messages, at, answers = [{"role": "system", "content": "The rules of the game. " * 40}], [0], []
        for turn in range(turns):
            told = f"In the last round they chose {said}. Your points: {turn}."
            messages += [{"role": "user", "content": told}, {"role": "assistant", "content": f"I {said}"}]
            at += [turn, turn]
            top = [[f" word {i}", round(0.5 / (1 + i), 5)] for i in range(8)]
            drawn = {"logp": -0.6931472 * (1 + turn), "entropy": 0.1 * turn, "advantage": reward - 2.5, "top": top}
            tokens = [{"text": "I"}, {"text": " "} | drawn, {"text": said} | drawn, {"text": "<|im_end|>", "end": True}]
            act = {
                "turn": turn,
                "message": len(messages) - 1,
                "action": 0,
                "reward": 0.5 * (turn > 0),
                "means": "be kind",
            }
            answers.append({**act, "tokens": tokens})
        answers[0]["values"] = [["cooperate", 1.5], ["defect", -0.5]]
        if turns > 1:
            answers[1] |= {"cut": 16}
        components = {"points": reward, "fine": 0.0}
        told = {"messages": messages, "turns": at, "answers": answers}
        return {"policy": policy, "role": "trader", "reward": reward, "components": components, **told}

    about = {"study": "dilemma", "arm": arm, "seed": 0, "update": 0 if number < 100 else 8}
    seats = [seat("ours", float(number % 7)), seat("other" if number % 2 else "ours", -1.0)]
    deal = {"right": "cooperate", "note": "The hidden card is K."}
    return {**about, "game": number % 100, "group": group, "member": member, **deal, "seats": seats}


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
    for more, says in (
        (["--out", "/proc/page"], r"error: /proc/page cannot be used \(.+\): name another --out\n"),
        ([str(tmp_path / "arm")], r"(?s).*error: several runs share one page: name its folder with --out\n"),
    ):
        wrong = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True)
        assert wrong.returncode == 2 and re.fullmatch(says, wrong.stderr)
    for text in ('{"study": ', "[" * 100_000):
        (tmp_path / "arm" / page.GAMES).write_text(text)
        with pytest.raises(ValueError, match="is damaged"):
            page.write(tmp_path, tmp_path)
    for text in ('{"study": 1}', "[1]", "{}", '{"said": "a\u2028b"}'):  # U+2028 ends no line of JSON
        (tmp_path / "arm" / page.GAMES).write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="holds lines that are no games"):
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

    def open(file: Path, width: int = 1440, scheme: str = "light", link: str = "", served: str = ""):
        tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        tab.noted, address = [], served or file.as_uri()
        tab.on("console", lambda message: tab.noted.append(message.text))
        tab.on("pageerror", lambda error: tab.noted.append(str(error)))
        tab.on("dialog", lambda dialog: (tab.noted.append(dialog.message), dialog.dismiss()))
        known = (address, address.replace(page.PAGE, f"arm/{page.GAMES}") if served else "")
        tab.on("request", lambda request: tab.noted.append(request.url) if request.url not in known else None)
        tab.goto(address + link)
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
    tab.select_option("#update", "")
    assert tab.locator("#list > button").count() == 200
    assert tab.locator("*").count() < 200 * 8 + 1500, "the elements of one game and its neighbour, and a row for each"


@pytest.mark.commands
def test_games_are_filtered_sorted_and_switched(opened, tmp_path):
    tab = opened(written(tmp_path, [game(i, "method" if i < 150 else "control") for i in range(200)]))
    rows, count = tab.locator("#list > button"), tab.locator("#count")
    numbers = lambda: [int(text) for text in re.findall(r"\n(-?\d+) · -1", tab.locator("#list").inner_text())]
    assert rows.count() == 100, "games of the last update"
    tab.select_option("#update", "")
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
    assert rows.nth(30).get_attribute("aria-selected") == "true"
    siblings = tab.locator("#siblings button")
    assert siblings.count() == 4
    siblings.nth(3).click()
    tab.select_option("#beside", "")
    assert siblings.nth(3).get_attribute("aria-current") == "true" and tab.locator(".seat").count() == 2
    assert tab.locator(".system").count() == 2 and tab.locator(".said").count() == 20


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
    assert "click a sampled token" in tab.locator("#head").inner_text()  # one of probability 1 has no colour
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
    shown = tab.locator(".said").first.inner_text()
    assert "<script>alert(1)</script></script><!--<b>" in shown
    for number in ("U+202E", "U+2028", "U+0000", "U+001B", "U+FEFF"):
        assert number in shown, number
    assert "\u202e" not in tab.evaluate("document.body.textContent.replace(data.textContent, '')")
    assert "<|im_start|>" in shown


def luminance(colour: tuple[float, ...]) -> float:
    """The relative luminance of sRGB, 0 to 255, as WCAG defines it."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in (c / 255 for c in colour[:3])]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def over(top: tuple[float, ...], below: tuple[float, ...]) -> tuple[float, ...]:
    """A colour (red, green, blue, its opacity) over an opaque one."""
    return tuple(top[3] * x + (1 - top[3]) * y for x, y in zip(top, below[:3], strict=False))


@pytest.mark.commands
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_it_opens_on_the_last_update_with_the_same_deal_before(opened, tmp_path, width, scheme):
    games = [game(i) for i in (0, 1, 100, 101)]
    games[3]["seats"][0]["answers"][0]["tokens"][1]["entropy"] = 1e6  # an outlier
    tab = opened(written(tmp_path, games), width, scheme)
    panels = tab.locator(".panel")
    heads = panels.locator("h3").all_inner_texts()
    assert [head.partition(" seed")[0].strip() for head in heads] == ["before: update 0", "after: update 8"]
    assert tab.locator("#list > button").count() == 2
    assert tab.evaluate("document.documentElement.scrollWidth") == width, "nothing is cut off at the side"
    boxes = [panels.nth(i).bounding_box() for i in range(2)]
    seats = [panels.nth(1).locator(".said").nth(i).bounding_box() for i in range(2)]
    assert (boxes[0]["y"] == boxes[1]["y"]) == (seats[0]["y"] == seats[1]["y"]) == (width > 900), "beside each other"
    assert (boxes[0]["x"] == boxes[1]["x"]) == (seats[0]["x"] == seats[1]["x"]) == (width < 900), "stacked by turn"
    assert width > 900 or boxes[1]["y"] < boxes[0]["y"], "the game that was chosen is the first"
    assert panels.nth(1).locator(".said .number-of-seat").first.is_visible() == (width < 900)
    assert tab.locator("#arm").is_visible() == (width > 900), "the filters are folded"
    tab.select_option("#colour", "entropy")
    assert tab.locator("#high").inner_text() == "≥ 0.9", "the 95th percentile"
    token = panels.nth(1).locator(".turn ~ .cell .sampled").last
    numbers = lambda text: tuple(map(float, re.findall(r"[\d.]+", text)))
    css = lambda name, of=token: numbers(of.evaluate(f"x => getComputedStyle(x).{name}"))
    card = css("backgroundColor", panels.nth(1).locator(".said").last)
    painted = over(css("backgroundColor"), card)
    assert contrast(painted, card) > 1.6 and contrast(painted, css("color")) > 4.5


@pytest.mark.commands
def test_an_answer_says_its_role_action_pay_advantage_and_cut(opened, tmp_path):
    games = [game(100, turns=3)]
    games[0]["seats"][0]["answers"][2]["tokens"][-1] |= {"logp": -1.0, "entropy": 0.5, "advantage": 9.5, "top": []}
    script = {"policy": "tit_for_tat", "role": "trader", "messages": [], "turns": [], "answers": []}
    games[0]["seats"][1] |= script | {"acts": [{"turn": 0, "action": 1, "reward": 2.0, "means": "be mean"}]}
    games += [game(101, turns=1) | {"cut_off": True}]
    tab = opened(written(tmp_path, games))
    said = [" ".join(text.split()) for text in tab.locator(".said").all_inner_texts()]
    assert said == [
        "trader advantage -0.5 paid 0 I cooperate = be kind",
        "trader paid +2 be mean",
        "trader advantage -0.5 cut at 16 tokens paid +0.5 I cooperate = be kind",
        "trader mean advantage +2.833 paid +0.5 I cooperateend = be kind",
    ]
    whole = tab.locator("main").inner_text()
    assert "system" not in whole and "assistant" not in whole and "user" not in whole and "<|im_end|>" not in whole
    assert "script tit_for_tat" in whole and "seat 1, trader" in whole
    deal = " ".join(tab.locator("#deal").inner_text().split())
    assert deal == "right answer cooperate note The hidden card is K."
    assert ["cut off" in row for row in tab.locator("#list button").all_inner_texts()] == [False, True]
    assert "cut off" not in whole
    tab.locator("#list button").nth(1).click()
    assert [text.strip() for text in tab.locator("main h3 .cut").all_inner_texts()] == ["cut off"]


@pytest.mark.commands
def test_no_game_that_fits_is_said_and_all_come_back(opened, tmp_path):
    tab = opened(written(tmp_path, [game(i) for i in range(100, 104)]))
    tab.fill("#least", "50")
    assert tab.locator("#empty").is_visible() and not tab.locator("#panels").is_visible()
    assert "least 50" in tab.locator("#why").inner_text() and tab.locator("#count").inner_text() == "0 of 4 games"
    tab.keyboard.press("Escape")
    tab.click("#reset")
    assert tab.locator("#list > button").count() == 4 and tab.locator(".panel").is_visible()


@pytest.mark.commands
def test_keys_go_through_games_and_tokens_with_one_stop_each(opened, tmp_path):
    tab = opened(written(tmp_path, [game(i) for i in range(100, 160)]))
    chosen = tab.locator("#list > [aria-selected=true]")
    place = lambda: int(tab.locator("#place").inner_text().split()[0])
    visible = "x => { const a = x.getBoundingClientRect(); return a.top >= 0 && a.bottom <= innerHeight; }"
    for key in "jjjk":
        tab.keyboard.press(key)
    assert place() == 3
    for _ in range(40):
        tab.keyboard.press("ArrowDown")
    assert place() == 43 and chosen.evaluate(visible), "the list scrolls along"
    chosen.focus()
    tab.keyboard.press("End")
    assert place() == 60 and chosen.evaluate("x => x === document.activeElement")
    tab.keyboard.press("ArrowUp")
    assert place() == 59 and tab.locator("#list > [tabindex='0']").count() == 1
    tokens = tab.locator(".sampled")
    tokens.first.focus()
    tab.keyboard.press("ArrowRight")
    assert tokens.nth(1).evaluate("x => x === document.activeElement") and tab.locator("#detail").is_visible()
    assert tab.locator(".sampled[tabindex='0']").count() == 1
    tab.keyboard.press("Escape")
    assert not tab.locator("#detail").is_visible()
    tab.keyboard.press("/")
    tab.keyboard.type("jk")
    assert tab.input_value("#search") == "jk" and tab.locator("#empty").is_visible()


@pytest.mark.commands
def test_the_search_finds_and_marks_words_across_tokens(opened, tmp_path):
    games = [game(100), game(101, said="co-operate"), game(102)]
    tab = opened(written(tmp_path, games))
    tab.fill("#search", "I CO-OPER")
    assert tab.locator("#list > button").count() == 1 and tab.locator("#panels").inner_text().count("co-operate")
    marked = tab.evaluate("[...CSS.highlights.get('search')].map(String)")
    assert set(marked) == {"I co-oper"} and len(marked) == 20
    tab.fill("#search", "rules of the")
    assert tab.locator("#list > button").count() == 3
    assert tab.locator("details.system[open]").count() == 2, "rules that hold it are open"


@pytest.mark.commands
def test_a_link_opens_its_game(opened, tmp_path):
    file = written(tmp_path, [game(i, "a/b") for i in (0, 1, 100, 101, 102)])
    tab = opened(file, link="#game=a%2Fb/0/0/1")
    assert (
        tab.locator("#list > [aria-selected=true]").inner_text().split("\n")[-1] == "update 0, seed 0, group 0, game 1"
    )
    tab.select_option("#update", "last")
    tab.locator("#list > button").nth(2).click()
    assert tab.evaluate("location.hash") == "#game=a%2Fb/0/8/2" == tab.locator("#link").get_attribute("href")
    tab.evaluate("location.hash = '#game=a%2Fb/0/8/1'")
    tab.wait_for_function("document.querySelector('#place').textContent === '2 of 3'")


@pytest.mark.commands
def test_two_runs_are_compared_on_the_same_deal(opened, tmp_path):
    runs = [tmp_path / "first", tmp_path / "second"]
    other = game(101, said="defect")
    other["seats"][1]["messages"][0]["content"] = "Other rules."
    for run, games in zip(runs, ([game(100), game(101)], [game(100, said="defect"), other]), strict=True):
        written(run, games)
    done = subprocess.run(
        [sys.executable, "-m", "jaxmarl_llm.view", *map(str, runs), "--out", str(tmp_path / "both")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "4 of 4 games" in done.stdout, done.stderr
    tab = opened(tmp_path / "both" / page.PAGE)
    assert tab.locator("h1").inner_text() == "first and second" and tab.locator("#run").is_visible()
    assert tab.locator("#beside option").all_inner_texts() == ["nothing", "second"]
    tab.select_option("#beside", label="second")
    heads = [head.split("  ")[0] for head in tab.locator(".panel h3").all_inner_texts()]
    assert [head.partition(" seed")[0].strip() for head in heads] == ["first", "second"]
    assert [tab.locator(".panel").nth(i).inner_text().count("I defect") for i in range(2)] == [0, 20]
    tab.keyboard.press("j")
    assert tab.locator(".panel").count() == 2 and tab.locator(".panel .cut", has_text="another deal").count() == 2
    assert page.names_of([Path("/a/x/run"), Path("/b/x/run")]) == ["a/x/run", "b/x/run"]
    with pytest.raises(ValueError, match="named twice"):
        page.names_of([Path("/a"), Path("/a")])


@pytest.mark.commands
def test_games_of_a_run_that_lasts_arrive_where_a_server_shows_them(opened, tmp_path):
    file = written(tmp_path, [game(0), game(1)])
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    handler.log_message = lambda *of: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab = opened(file, served=f"http://127.0.0.1:{server.server_port}/{page.PAGE}")
        tab.keyboard.press("j")
        assert not tab.locator("#news").is_visible()
        (tmp_path / "arm" / page.GAMES).write_bytes(page.lines_of([game(i) for i in (0, 1, 100, 101)]))
        tab.click("#news", timeout=20_000)
        assert tab.locator("#list > button").count() == 2 and tab.locator("#place").inner_text() == "2 of 2"
        assert "after: update 8" in tab.locator("#panels").inner_text() and not tab.locator("#news").is_visible()
        server.shutdown()
