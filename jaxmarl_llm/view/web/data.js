// the games of the page, and how their texts and numbers are written
const page = JSON.parse(document.getElementById("data").textContent);
const { title } = page;
let { total, games } = page;
const $ = id => document.getElementById(id);
// control characters, and those that are invisible or turn the direction of text, are shown by number
const HIDDEN = /([\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udfff])/;

function element(tag, name, text, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) show(made, text);
  made.append(...children);
  return made;
}
const number = piece => "U+" + piece.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
const pieces = text => String(text).split(HIDDEN).map((piece, i) => i % 2 ? number(piece) : piece);
function show(into, text) {
  for (const [i, piece] of pieces(text).entries()) {
    if (!piece) continue;
    const mark = document.createElement("span");
    mark.className = "control";
    mark.textContent = piece;
    into.append(i % 2 ? mark : piece);
  }
}
const plain = text => pieces(text).join("");
const round = x => x === null || x === undefined ? "–" : String(+x.toPrecision(4));
const sign = x => x > 0 ? "+" + round(x) : round(x);
const rewards = game => game.seats.map(seat => round(seat.reward)).join(" · ");

// names of games: of one in a link, of its batch, of its deal
const join = (...parts) => parts.map(part => encodeURIComponent(part ?? "")).join("/");
const keyOf = game => join(...(game.run ? [game.run] : []), game.arm, game.seed, game.update, game.game);
const batchOf = game => JSON.stringify([game.run, game.study, game.arm, game.seed, game.update]);
const groupOf = game => batchOf(game) + game.group;
const dealOf = game => JSON.stringify([game.study, game.seed, game.group]);
const seriesOf = game => JSON.stringify([game.run, game.arm]);
let byKey, byGroup, byDeal, last, scale;

function index() {
  byKey = new Map(games.map(game => [keyOf(game), game]));
  byGroup = groups(games, groupOf);
  byDeal = groups(games, dealOf);
  last = new Map();
  for (const game of games) last.set(seriesOf(game), Math.max(game.update, last.get(seriesOf(game)) ?? 0));
  scale = { probability: quantile(x => 1 - Math.exp(x.logp)), entropy: quantile(x => x.entropy), advantage: quantile(x => Math.abs(x.advantage)) };
}
function groups(values, key) {
  const made = new Map();
  for (const value of values) {
    if (!made.has(key(value))) made.set(key(value), []);
    made.get(key(value)).push(value);
  }
  return made;
}
// the 95th percentile over all sampled tokens: one outlier makes nothing else pale
function quantile(of) {
  const values = [];
  for (const game of games) for (const seat of game.seats) for (const answer of seat.answers) for (const token of answer.tokens)
    if ("logp" in token && Number.isFinite(of(token))) values.push(of(token));
  return Math.max(Float64Array.from(values).sort()[Math.ceil(0.95 * values.length) - 1] ?? 0, 1e-9);
}

// a colour: the value of a token, and its share of the scale from 0 to 1
const value = { probability: x => Math.exp(x.logp), entropy: x => x.entropy, advantage: x => x.advantage };
function colour(kind, x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "";
  const size = kind === "probability" ? 1 - x : Math.abs(x); // a surprise stands out
  const share = Math.min(1, size / scale[kind]);
  return `rgba(var(--${kind === "probability" || x < 0 ? "low" : "high"}), calc(${share.toFixed(3)} * var(--strength)))`;
}

// all that was said and told in a game, for the search
const texts = new WeakMap();
function textOf(game) {
  if (!texts.has(game)) {
    const said = game.seats.flatMap(seat => [seat.policy, seat.role ?? "", ...seat.messages.map(message => message.content)]);
    texts.set(game, [...said, game.right ?? "", game.note ?? ""].join("\n").toLowerCase());
  }
  return texts.get(game);
}
