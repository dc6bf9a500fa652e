// a game, with another one beside it
let wanted = "before"; // the batch that is asked for beside a game: "", "before", or a batch

function choose(game) {
  chosen = game;
  detail(null);
  $("name").textContent = "";
  show($("name"), `${game.run ? game.run + ": " : ""}${game.study}, ${game.arm}`);
  facts(game);
  const same = byGroup.get(groupOf(game));
  $("siblings").replaceChildren(element("span", "soft", `group ${game.group}, ${same.length} of a deal, rewards by seat:`),
    ...same.map(other => {
      const made = element("button", "number", rewards(other));
      made.title = `game ${other.member}`;
      made.setAttribute("aria-current", other === game);
      made.onclick = () => choose(other);
      return made;
    }));
  const other = offer(game);
  $("panels").replaceChildren(...(other ? [game, other].sort((a, b) => a.update - b.update) : [game]).map(x => panel(x, game, other)));
  roving();
  paint();
  mark();
  highlight();
  $("link").href = "#game=" + keyOf(game);
  history.replaceState(null, "", "#game=" + keyOf(game));
  document.querySelector("main").scrollTop = 0;
}
function facts(game) {
  const named = [["right answer", game.right], ["note", game.note]].filter(([, text]) => text);
  $("deal").replaceChildren(...named.flatMap(([name, text]) => [element("span", "soft", `${name} `), element("b", "", text), "  "]));
}
// the game of the same deal in the batch that is wanted
function offer(game) {
  const batches = groups(byDeal.get(dealOf(game)).filter(other => batchOf(other) !== batchOf(game)), batchOf);
  const picks = [...batches].map(([batch, others]) => [batch, others.find(x => x.member === game.member) ?? others[0]]);
  const first = picks.filter(([, x]) => seriesOf(x) === seriesOf(game) && x.update < game.update).sort(([, a], [, b]) => a.update - b.update)[0];
  $("beside").replaceChildren(new Option("nothing", ""), ...picks.map(([batch, x]) => new Option(plain(difference(x, game)), batch)));
  $("beside").parentElement.hidden = !picks.length;
  const pick = wanted === "before" ? first : picks.find(([batch]) => batch === wanted);
  $("beside").value = pick ? pick[0] : "";
  return pick?.[1];
}
function difference(other, game) {
  const parts = [other.run !== game.run && other.run, other.arm !== game.arm && other.arm].filter(Boolean);
  if (other.update !== game.update || !parts.length) parts.push(`update ${other.update}`);
  return parts.join(", ") + (sameDeal(other, game) ? "" : " (another deal)");
}
const rules = seat => seat.messages[0]?.content;
function sameDeal(a, b) {
  return a.seats.every((seat, i) => !b.seats[i] || !rules(seat) || !rules(b.seats[i]) || rules(seat) === rules(b.seats[i]));
}
function panel(game, main, other) {
  const made = element("section", `panel${game === main ? " chosen" : ""}`), count = game.seats.length;
  const grid = element("div", "seats " + (["one", "two"][count - 1] ?? "many"));
  grid.style.setProperty("--seats", count);
  const name = other ? difference(game, game === main ? other : main).replace(" (another deal)", "") : `update ${game.update}`;
  const when = !other || other.arm !== main.arm || other.run !== main.run ? "" : game.update < Math.max(main.update, other.update) ? "before: " : "after: ";
  const head = element("h3", "", when + name, element("span", "soft", `  seed ${game.seed}, game ${game.member}, rewards ${rewards(game)}`));
  if (other && !sameDeal(main, other)) head.append(element("span", "cut", "  another deal"));
  if (game.cut_off) head.append(element("span", "cut", "  cut off"));
  grid.append(...game.seats.map(seatHead));
  const turns = new Set(game.seats.flatMap(seat => [...seat.turns, ...(seat.acts ?? []).map(act => act.turn)]));
  for (const turn of [...turns].sort((a, b) => a - b)) {
    grid.append(element("div", "turn", `turn ${turn}`));
    game.seats.forEach((seat, i) => grid.append(cell(seat, i, turn)));
  }
  made.append(head, grid);
  return made;
}
function seatHead(seat, i) {
  const parts = Object.entries(seat.components), measured = Object.entries(seat.measured ?? {});
  const listed = parts => parts.map(([name, x]) => `${name} ${round(x)}`).join(", ");
  const more = (parts.length > 1 ? ` (${listed(parts)})` : "") + (measured.length ? `; measured: ${listed(measured)}` : "");
  return element("div", "seat", seat.role ? `seat ${i}, ${seat.role}` : `seat ${i}`,
    element("span", "soft", `${seat.acts ? "script" : "policy"} ${seat.policy}, reward ${round(seat.reward)}${more}`));
}
function cell(seat, i, turn) {
  const made = element("div", "cell"), answers = new Map(seat.answers.map(answer => [answer.message, answer]));
  seat.turns.forEach((at, j) => {
    if (at === turn) made.append(answers.has(j) ? said(seat, i, answers.get(j)) : told(seat, i, j));
  });
  for (const act of seat.acts ?? []) if (act.turn === turn) made.append(played(seat, i, act));
  if (!made.childElementCount) made.classList.add("nothing");
  return made;
}
const numberOf = i => element("span", "number-of-seat", `seat ${i}, `);
const NAMES = { system: "rules", user: "told", tool: "a tool's result", assistant: "said before" };
function told(seat, i, j) {
  const { role, content } = seat.messages[j], dialogue = seat.dialogues?.indexOf(j) ?? -1;
  const name = (dialogue > 0 ? `dialogue ${dialogue + 1}, ` : "") + NAMES[role];
  if (role !== "system" || content.length < 240)
    return element("div", `message told ${role}`, undefined, element("div", "by", undefined, element("b", "", undefined, numberOf(i), name)), element("bdi", "", content));
  const made = element("details", `message told ${role}`, undefined, element("summary", "", undefined, numberOf(i), `${name} `, element("span", "start", `${content.slice(0, 60)}…`)), element("bdi", "", content));
  return made;
}
function by(seat, i, act, ...more) {
  const made = element("div", "by", undefined, element("b", "", undefined, numberOf(i), act.role ?? seat.role ?? "says"), ...more);
  if (act.action < 0) made.append(element("span", "cut", "no legal answer"));
  if (act.cut) {
    made.append(element("span", "cut", `cut at ${act.cut} tokens`));
    made.lastChild.title = "the budget of an answer, its end token included";
  }
  made.append(element("span", "number", `paid ${act.reward > 0 ? sign(act.reward) : round(act.reward)}`));
  return made;
}
function played(seat, i, act) {
  return element("div", "message said", undefined, by(seat, i, act), element("span", "", act.means ?? `action ${act.action}`));
}
function said(seat, i, answer) {
  const values = answer.tokens.filter(token => Number.isFinite(token.advantage)).map(token => token.advantage);
  const mean = values.reduce((sum, x) => sum + x, 0) / values.length, alike = values.every(x => x === values[0]);
  const worth = values.length ? [element("span", "number", `${alike ? "advantage" : "mean advantage"} ${sign(mean)}`)] : [];
  const made = element("div", "message said", undefined, by(seat, i, answer, ...worth));
  for (const token of answer.tokens) {
    const free = "logp" in token;
    if (token.end && !free) continue; // nobody said it
    const span = element("span", `token ${free ? "sampled" : "forced"}${token.end ? " end" : ""}`, token.end ? "end" : token.text || (free ? "·" : ""));
    if (free) {
      span.token = token;
      span.tabIndex = -1;
      span.setAttribute("role", "button");
      span.title = "show its alternatives and their probabilities";
      span.onclick = span.onfocus = () => detail(span, token, answer);
    }
    made.append(span);
  }
  if (answer.means) made.append(element("span", "means", ` = ${answer.means}`));
  return made;
}

// one stop for the Tab key among the tokens; arrows go on from there
function roving(to) {
  const tokens = [...document.querySelectorAll(".sampled")], at = to ?? tokens[0];
  for (const token of tokens) token.tabIndex = token === at ? 0 : -1;
}
$("panels").addEventListener("keydown", event => {
  const tokens = [...document.querySelectorAll(".sampled")], at = tokens.indexOf(event.target);
  const to = at < 0 ? null : { ArrowRight: tokens[at + 1], ArrowLeft: tokens[at - 1], Home: tokens[0], End: tokens.at(-1) }[event.key];
  if (!to) return;
  event.preventDefault();
  to.focus();
});
$("beside").addEventListener("change", () => { wanted = $("beside").value; choose(chosen); });
$("colour").addEventListener("change", paint);

function paint() {
  const kind = $("colour").value;
  for (const span of document.querySelectorAll(".sampled")) span.style.backgroundColor = colour(kind, value[kind](span.token));
  const most = +scale[kind].toPrecision(2), ends = { probability: [1, 1 - most], entropy: [0, most], advantage: [-most, most] }[kind];
  const bounds = { probability: ["1", `≤ ${round(ends[1])}`], entropy: ["0", `≥ ${round(most)}`], advantage: [`≤ ${round(-most)}`, `≥ +${round(most)}`] }[kind];
  [$("low").textContent, $("high").textContent] = bounds;
  const stops = [0, 0.25, 0.5, 0.75, 1].map(x => colour(kind, ends[0] + x * (ends[1] - ends[0])));
  $("legend").style.background = `linear-gradient(to right, ${stops.join(", ")})`;
}
// marks what is searched for, also across tokens
function highlight() {
  const sought = $("search").value.toLowerCase();
  if (!globalThis.CSS?.highlights) return;
  CSS.highlights.clear();
  if (!sought) return;
  const ranges = [];
  for (const message of document.querySelectorAll(".message")) {
    const walker = document.createTreeWalker(message, NodeFilter.SHOW_TEXT), nodes = [];
    while (walker.nextNode()) if (!walker.currentNode.parentElement.closest(".by, summary")) nodes.push(walker.currentNode);
    const whole = nodes.map(node => node.data).join("").toLowerCase();
    const place = at => { let i = 0; while (at > nodes[i].length) at -= nodes[i++].length; return [nodes[i], at]; };
    for (let at = whole.indexOf(sought); at >= 0; at = whole.indexOf(sought, at + sought.length)) {
      const range = new Range();
      range.setStart(...place(at));
      range.setEnd(...place(at + sought.length));
      ranges.push(range);
      if (message.tagName === "DETAILS") message.open = true;
    }
  }
  CSS.highlights.set("search", new Highlight(...ranges));
}
