// a token: its numbers, what else could have been said, what the answers are worth
let picked = null;

function table(rows) {
  const made = element("table"), most = Math.max(...rows.map(([, x]) => Math.abs(x || 0)), 1e-9);
  for (const [text, x] of rows) {
    const bar = element("i");
    bar.style.width = `${Math.abs(x || 0) / most * 100}%`;
    if (x < 0) bar.style.background = "rgb(var(--low))";
    made.append(element("tr", "", undefined, element("td", "", JSON.stringify(text).slice(1, -1)), element("td", "bar", undefined, bar), element("td", "", round(x))));
  }
  return made;
}
function detail(span, token, answer) {
  if (picked) picked.classList.remove("picked");
  picked = span;
  $("detail").hidden = !span;
  if (!span) return $("detail").replaceChildren();
  span.classList.add("picked");
  roving(span);
  const rest = 1 - token.top.reduce((sum, [, p]) => sum + p, 0);
  const facts = [["probability", Math.exp(token.logp)], ["entropy (nats)", token.entropy]];
  if ("advantage" in token) facts.push(["advantage", token.advantage]);
  const numbers = element("table");
  for (const [name, x] of facts) numbers.append(element("tr", "", undefined, element("td", "", name), element("td", "", round(x))));
  const close = element("button", "", "×");
  close.setAttribute("aria-label", "close");
  close.onclick = () => detail(null);
  $("detail").replaceChildren(close, element("b", "", token.end ? "the end of the answer" : JSON.stringify(token.text)), numbers,
    element("h3", "", "what could have been said here"), table(rest > 1e-4 ? [...token.top, ["… all others", rest]] : token.top));
  span.scrollIntoView({ block: "nearest" });
  if (answer.values) $("detail").append(element("h3", "", "exact value of each answer, if all play on as now"), table(answer.values));
}
