// the list of games: filters, search, keys
let chosen = null, shown = [];

const FILTERS = { run: game => game.run ?? "", arm: game => game.arm, update: game => game.update };
const standing = { run: "", arm: "", update: "last", seat: "", policy: "", least: "", most: "", search: "" };

function choices(id, values, first) {
  const kept = $(id).value || (id in standing ? standing[id] : "");
  $(id).replaceChildren(...first.map(([label, x]) => new Option(label, x)),
    ...[...new Set(values)].map(x => new Option(plain(x), x)));
  $(id).value = kept;
  if ($(id).selectedIndex < 0) $(id).selectedIndex = 0;
}
function fill() {
  const updates = [...new Set(games.map(game => game.update))].sort((a, b) => a - b), all = [["all", ""]];
  choices("run", games.map(game => game.run ?? ""), all);
  $("run").parentElement.hidden = !games.some(game => game.run);
  choices("arm", games.map(game => game.arm), all);
  choices("update", updates, [["last", "last"], ...all]);
  choices("seat", games.flatMap(game => game.seats.map((_, i) => i)), all);
  choices("policy", games.flatMap(game => game.seats.map(seat => seat.policy)), all);
}
function seatsAsked(game) {
  const at = $("seat").value;
  return at === "" ? game.seats : game.seats.filter((_, i) => i === +at);
}
const paid = game => seatsAsked(game).reduce((sum, seat) => sum + seat.reward, 0);
function fits(game) {
  const least = $("least").value, most = $("most").value, update = $("update").value, sought = $("search").value.toLowerCase();
  return ["run", "arm"].every(id => $(id).value === "" || FILTERS[id](game) === $(id).value)
    && (update === "" || game.update === (update === "last" ? last.get(seriesOf(game)) : +update))
    && ($("policy").value === "" || seatsAsked(game).some(seat => seat.policy === $("policy").value))
    && seatsAsked(game).length > 0
    && (least === "" || paid(game) >= +least) && (most === "" || paid(game) <= +most)
    && (!sought || textOf(game).includes(sought));
}
function list() {
  const sort = $("sort").value;
  const by = { best: (a, b) => paid(b) - paid(a), worst: (a, b) => paid(a) - paid(b), late: (a, b) => b.update - a.update };
  shown = games.filter(fits);
  if (sort) shown.sort(by[sort]);
  $("count").textContent = `${shown.length} of ${games.length} games` + (total > games.length ? ` (${total} recorded)` : "");
  $("list").replaceChildren(...shown.map(row));
  const active = Object.keys(standing).filter(id => id !== "search" && $(id).value !== standing[id]);
  $("active").textContent = active.length;
  $("active").hidden = $("clear").hidden = !active.length;
  $("empty").hidden = shown.length > 0;
  $("game").hidden = !shown.length;
  if (!shown.length) {
    chosen = null;
    detail(null);
    $("why").textContent = "";
    const named = [...active.map(id => `${id} ${$(id).value}`), ...($("search").value ? [`“${plain($("search").value)}”`] : [])];
    show($("why"), `${games.length} games are here, none with ${named.join(", ")}.`);
  } else if (!shown.includes(chosen)) choose(shown[0]);
  else mark();
  highlight();
}
function row(game) {
  const made = element("button", "", undefined, element("span", "", game.run ? `${game.run}, ${game.arm}` : game.arm),
    element("span", "number", rewards(game), ...(game.cut_off ? [element("span", "cut", " cut off")] : [])),
    element("small", "", `update ${game.update}, seed ${game.seed}, group ${game.group}, game ${game.member}`));
  made.setAttribute("role", "option");
  made.onclick = () => choose(game);
  made.game = game;
  return made;
}
// one stop for the Tab key: the chosen game
function mark() {
  for (const item of $("list").children) {
    item.setAttribute("aria-selected", item.game === chosen);
    item.tabIndex = item.game === chosen ? 0 : -1;
    if (item.game === chosen) item.scrollIntoView({ block: "nearest" });
  }
  const at = shown.indexOf(chosen);
  $("place").textContent = at < 0 ? "" : `${at + 1} of ${shown.length}`;
  $("previous").disabled = at <= 0;
  $("next").disabled = at < 0 || at === shown.length - 1;
}
function step(by) {
  const to = shown[Math.min(Math.max(shown.indexOf(chosen) + by, 0), shown.length - 1)];
  if (to && to !== chosen) choose(to);
}
function clearFilters() {
  for (const [id, x] of Object.entries(standing)) $(id).value = x;
  list();
}

for (const id of ["run", "arm", "update", "seat", "policy", "sort"]) $(id).addEventListener("change", list);
for (const id of ["least", "most", "search"]) $(id).addEventListener("input", list);
$("clear").onclick = clearFilters;
$("reset").onclick = () => { clearFilters(); if (!shown.length) { $("update").value = ""; list(); } };
$("previous").onclick = () => step(-1);
$("next").onclick = () => step(1);
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return detail(null);
  if (event.target.closest("input, select")) return;
  const inList = event.target.closest("#list"), free = inList || event.target === document.body || event.target === $("game");
  const by = { j: 1, k: -1, ...(free ? { ArrowDown: 1, ArrowUp: -1 } : {}), ...(inList ? { Home: -1e9, End: 1e9 } : {}) }[event.key];
  if (event.key === "/") { event.preventDefault(); $("search").focus(); }
  if (!by) return;
  event.preventDefault();
  step(by);
  if (inList) [...$("list").children].find(item => item.game === chosen)?.focus({ preventScroll: true });
});
