// links to games, and games that arrive while the run lasts
function follow() {
  const game = byKey.get(location.hash.startsWith("#game=") ? location.hash.slice(6) : "");
  if (!game) return false;
  if (!fits(game)) {
    for (const [id, x] of Object.entries(standing)) $(id).value = x;
    if (!fits(game)) $("update").value = game.update;
  }
  chosen = game;
  list();
  choose(game);
  return true;
}

const SECONDS = 3, read = new Map();
let arrived = new Map();

async function poll() {
  for (const file of document.hidden ? [] : page.files) {
    const answer = await fetch(file.path.split("/").map(encodeURIComponent).join("/"), { cache: "no-cache" }).catch(() => null);
    if (!answer?.ok) continue;
    const stamp = [answer.headers.get("last-modified"), answer.headers.get("content-length"), answer.headers.get("etag")].join();
    if (read.get(file.path) === stamp) continue;
    read.set(file.path, stamp);
    try {
      for (const line of (await answer.text()).split("\n")) {
        if (!line) continue;
        const game = { ...(file.run ? { run: file.run } : {}), ...JSON.parse(line) };
        if (JSON.stringify(game) !== JSON.stringify(byKey.get(keyOf(game)))) arrived.set(keyOf(game), game);
      }
    } catch { read.delete(file.path); } // it is being written
  }
  const newer = [...arrived.values()].filter(game => total === games.length || !byKey.has(keyOf(game)) && game.update > last.get(seriesOf(game)));
  $("news").hidden = !newer.length;
  if (newer.length) $("news").textContent = `${newer.length} new games, update ${Math.max(...newer.map(game => game.update))}: show`;
  setTimeout(poll, SECONDS * 1000);
}
$("news").onclick = () => {
  const before = chosen;
  total += [...arrived.keys()].filter(key => !byKey.has(key)).length;
  games = [...new Map([...games.map(game => [keyOf(game), game]), ...arrived]).values()];
  arrived = new Map();
  $("news").hidden = true;
  index();
  fill();
  const next = before && games.find(game => seriesOf(game) === seriesOf(before) && game.update === last.get(seriesOf(game))
    && game.group === before.group && game.member === before.member);
  if (next && $("update").value === "last") chosen = next;
  list();
  if (chosen) choose(chosen);
};

show($("title"), title);
document.title = `Games of ${plain(title)}`;
index();
fill();
const wide = matchMedia("(min-width: 901px)");
const fold = () => { document.body.classList.toggle("wide", wide.matches); $("filters").open = wide.matches; };
wide.addEventListener("change", fold);
fold();
if (!follow()) list();
addEventListener("hashchange", follow);
if (page.files?.length && location.protocol !== "file:") setTimeout(poll, SECONDS * 1000);
document.body.dataset.ready = Math.round(performance.now());
