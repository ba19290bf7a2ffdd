// The rollout browser: filters, a list that draws only what is in view, and one rollout in detail. Text is only text.

const ROW = 32;
const browser = { samples: null, found: [], at: 0, filter: null, shade: "probability" };
const WHOLE = { step: [null, null], verdict: "", truncated: "", kept: "", reward: [null, null], length: [null, null], search: "", shaded: "", sort: "step" };

/** Unpacks the sample: base64, deflate, JSON, by the browser's own means. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** right, wrong or undecided. */
function side(row) {
  return row.v === "correct" ? "right" : row.v === "graded" ? "undecided" : "wrong";
}

function within(value, [low, high]) {
  return (low === null || (value !== null && value >= low)) && (high === null || (value !== null && value <= high));
}

/** The rows of the shown run that match, in order. */
function matching() {
  const f = browser.filter, sample = browser.samples[shownRun], needle = f.search.toLowerCase();
  const hit = (row) => !needle || (row.lower ??= `${row.t}\n${sample.prompts[row.p].join("\n")}\n${row.x ?? ""}`.toLowerCase()).includes(needle);
  const found = sample.rows.filter((row) => within(row.s, f.step) && (!f.verdict || (f.verdict === "right" || f.verdict === "wrong" ? side(row) === f.verdict : row.v === f.verdict))
    && (!f.truncated || row.f === (f.truncated === "yes")) && (!f.kept || row.k === (f.kept === "yes")) && within(row.r, f.reward)
    && within(row.n, f.length) && (!f.shaded || Boolean(row.w)) && hit(row));
  const by = { longest: (a, b) => b.n - a.n, shortest: (a, b) => a.n - b.n, reward: (a, b) => b.r - a.r, advantage: (a, b) => (b.a ?? -Infinity) - (a.a ?? -Infinity), newest: (a, b) => b.s - a.s }[f.sort];
  return by ? found.sort(by) : found;
}

/** The panel; filled when the sample has been unpacked. */
function rolloutPanel() {
  const count_ = el("p", { class: "count quietly", role: "status", id: "rollout-count" });
  const list = el("div", { class: "list", role: "listbox", tabindex: "0", "aria-label": "Rollouts; arrow keys or j and k move", id: "rollout-list" });
  const detail = el("div", { class: "detail", tabindex: "0", "aria-label": "The chosen rollout", id: "rollout-detail" });
  browser.filter = { ...WHOLE };
  Object.assign(browser, { list, detail, count: count_ });
  list.addEventListener("scroll", () => requestAnimationFrame(drawList));
  list.addEventListener("keydown", listKeys);
  return [filterBar(), count_, el("div", { class: "browser" }, list, detail)];
}

function filterBar() {
  const bar = el("div", { class: "filters", role: "search" }), f = browser.filter;
  const pick = (name, words, options) => el("label", {}, words, choice(options, f[name], (value) => { f[name] = value; refilter(); }, { id: `filter-${name}` }));
  const range = (name, words) => el("label", {}, words, el("span", { class: "range" }, ["from", "to"].map((end, i) => {
    const input = el("input", { type: "number", step: "any", placeholder: end, "aria-label": `${words}, ${end}`, id: `filter-${name}-${end}` });
    input.addEventListener("input", () => { f[name] = f[name].map((old, j) => (i === j ? (input.value === "" ? null : Number(input.value)) : old)); refilter(); });
    return input;
  })));
  const search = el("input", { type: "search", id: "filter-search", placeholder: "text of prompt, response, answer" });
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => { f.search = search.value; refilter(); }, 120); });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" && event.key !== "Enter") return;
    event.preventDefault();
    clearTimeout(waiting);
    if (f.search !== search.value) { f.search = search.value; refilter(); }
    browser.list.focus();
  });
  const clear = () => { browser.filter = { ...WHOLE }; bar.replaceWith(filterBar()); refilter(); };
  const yes = (a, b) => [["", "all"], ["yes", a], ["no", b]];
  bar.append(...[runChooser(), el("label", {}, el("span", {}, "search ", el("kbd", {}, "/")), search),
    pick("verdict", "verdict", [["", "all"], ["right", "right"], ["wrong", "wrong, all kinds"], ["unparsed", "no answer found"], ["timeout", "timed out"], ["error", "error"], ["graded", "undecided"]]),
    pick("kept", "group", yes("kept", "dropped")), pick("truncated", "end", yes("truncated", "complete")), range("step", "step"), range("reward", "reward"), range("length", "length, tokens"),
    pick("shaded", "token data", [["", "all"], ["yes", "with token data"]]),
    pick("sort", "order", [["step", "by step"], ["newest", "newest first"], ["longest", "longest first"], ["shortest", "shortest first"], ["reward", "highest reward"], ["advantage", "highest advantage"]]),
    el("button", { type: "button", onclick: clear }, "Clear")].filter(Boolean));
  return bar;
}

/** Filters anew and shows the first that matches. */
function refilter() {
  if (!browser.samples) return;
  const sample = browser.samples[shownRun];
  browser.found = matching();
  browser.at = 0;
  const sampled = sample.shown < sample.total ? `, a sample of ${count(sample.total)}` : "";
  const steps = sample.chosen_steps < sample.steps ? ` (of ${count(sample.chosen_steps)} of ${count(sample.steps)} steps)` : "";
  const shaded = sample.rows.filter((row) => row.w).length;
  browser.count.textContent = `${count(browser.found.length)} match, of ${count(sample.shown)} shown${sampled}${steps}. ` + (shaded ? `${count(shaded)} have token data.` : "No token data in this run: text is not shaded.");
  browser.list.scrollTop = 0;
  drawList();
  drawDetail();
}

const HEADS = ["step", "", "tokens", "reward", "adv.", "extracted answer, response"];

/** The part of the list that is in view. */
function drawList() {
  const { list, found, at } = browser, first = Math.max(0, Math.floor(list.scrollTop / ROW) - 8), last = Math.min(found.length, first + Math.ceil(list.clientHeight / ROW) + 18);
  const items = [];
  for (let place = first; place < last; place++) items.push(listItem(found[place], place, place === at));
  const spacer = el("div", { style: { position: "relative", height: `${found.length * ROW}px` }, role: "presentation" }, items);
  const heads = el("div", { class: "heads", "aria-hidden": "true" }, HEADS.map((words) => el("span", {}, words)));
  list.replaceChildren(heads, found.length ? spacer : el("p", { class: "empty" }, "Nothing matches. Widen a filter, or clear them all."));
  if (found.length) list.setAttribute("aria-activedescendant", `rollout-${at}`); else list.removeAttribute("aria-activedescendant");
}

function listItem(row, place, chosen) {
  const kind = side(row), sign = { right: "✓", wrong: "✗", undecided: "·" }[kind];
  const shaped = row.r === null ? null : row.r + (row.o || 0);
  const item = el("div", { class: "item", role: "option", id: `rollout-${place}`, "aria-selected": String(chosen), "aria-posinset": place + 1, "aria-setsize": browser.found.length, style: { top: `${place * ROW}px` } },
    el("span", {}, row.s), el("span", { class: kind, title: row.v }, sign), el("span", { title: row.f ? "cut off at the limit" : null }, count(row.n) + (row.f ? "…" : "")), el("span", {}, signed(shaped)),
    el("span", {}, row.k ? signed(row.a) : "–"), el("span", { class: "text" }, `${row.x === null ? "no answer" : row.x} · ${row.t.slice(0, 120)}`));
  item.addEventListener("click", () => choose(place));
  return item;
}

/** Shows the rollout at a place of the list and keeps it in view. */
function choose(place) {
  browser.at = Math.max(0, Math.min(browser.found.length - 1, place));
  const top = browser.at * ROW, { list } = browser;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + 2 * ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + 2 * ROW - list.clientHeight;
  drawList();
  drawDetail();
}

function listKeys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const page = Math.max(1, Math.floor(browser.list.clientHeight / ROW) - 2);
  const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (!(event.key in moves)) return;
  event.preventDefault();
  choose(browser.at + moves[event.key]);
}

/** The chosen rollout in full. */
function drawDetail() {
  const { detail } = browser;
  if (!detail || !browser.samples) return;
  const row = browser.found[browser.at];
  if (!row) { detail.replaceChildren(el("p", { class: "empty" }, "No rollout is chosen.")); return; }
  const [question, prompt, gold] = browser.samples[shownRun].prompts[row.p], kind = side(row);
  const fact = (words, value, more) => el("div", more, el("dt", {}, words), el("dd", {}, value));
  const parts = row.parts ? [fact("parts of the reward", Object.entries(row.parts).map(([name, value]) => `${name} ${signed(value)}`).join(", "), { class: "two" })] : [];
  detail.replaceChildren(el("h3", {}, `Step ${row.s}, draw ${row.d}, response ${row.g}`),
    el("dl", { class: "facts" }, fact("verdict", el("span", { class: kind }, row.v === "correct" ? "✓ right" : row.v === "graded" ? "undecided" : `✗ ${row.v}`)), fact("grading stage", row.e || "–", { class: "two" }),
      fact("group", row.k ? "kept" : "dropped"), fact("extracted answer", row.x === null ? "none" : row.x, { class: "two code" }), fact("gold answer", gold || "–", { class: "two code" }),
      fact("reward", signed(row.r)), fact("overlong penalty", signed(row.o)), fact("advantage", row.a === null ? "–" : signed(row.a, 3)), fact("length", `${count(row.n)} tokens${row.f ? ", cut off" : ""}`), ...parts),
    el("h3", {}, "Response"), ...responseParts(row), el("h3", {}, "Prompt"), el("pre", {}, marked(prompt || question)));
  detail.scrollTop = 0;
}

/** The response: shaded by token where there is token data. */
function responseParts(row) {
  const cut = row.c ? el("p", { class: "quietly" }, `${count(row.c)} characters in the middle are left out of this page.`) : null;
  if (!row.w) return [cut, el("pre", {}, marked(row.t)), el("p", { class: "quietly" }, "Not shaded: no token data were kept of this response.")].filter(Boolean);
  const options = [["probability", "probability at sampling"], ["ratio", "ratio at the update"], ["clipped", "clipped"], ["none", "nothing"]];
  const chooser = choice(options, browser.shade, (value) => { browser.shade = value; drawDetail(); document.getElementById("shade").focus({ preventScroll: true }); }, { id: "shade" });
  const words = { probability: "The stronger, the less probable when it was sampled.", ratio: "Blue: became more probable by the update; red: less.", clipped: "Violet: clipped high; teal: clipped low.", none: "" }[browser.shade];
  const tokens = row.w.t.map((piece, i) => {
    const background = shadeOf(row.w, i);
    return el("span", { class: "token", title: `p ${figure(row.w.p[i])}, ratio ${figure(row.w.r[i], 4)}${row.w.c[i] ? (row.w.c[i] > 0 ? ", clipped high" : ", clipped low") : ""}`, style: background ? { background } : {} }, piece);
  });
  return [el("div", { class: "tools" }, el("label", {}, "shaded by", chooser), words), el("pre", {}, tokens)];
}

function shadeOf(data, i) {
  const ratio = data.r[i], p = data.p[i];
  if (browser.shade === "probability") return p === null || p > 0.995 ? "" : faded(colour("c-wrong"), Math.min(0.7, 0.15 + 0.6 * (1 - p)));
  if (browser.shade === "ratio") return !ratio ? "" : faded(colour(ratio > 1 ? "c-after" : "c-wrong"), Math.min(0.7, (0.7 * Math.abs(Math.log(ratio))) / Math.log(1.4)));
  if (browser.shade === "clipped" && data.c[i]) return faded(colour(data.c[i] > 0 ? "c-high" : "c-low"), 0.6);
  return "";
}

/** Text with what is searched for marked. */
function marked(text) {
  const needle = browser.filter.search.toLowerCase(), lower = text.toLowerCase();
  if (!needle || lower.length !== text.length) return [text];
  const parts = [];
  let from = 0;
  for (let at = lower.indexOf(needle); at >= 0 && parts.length < 2000; at = lower.indexOf(needle, from)) {
    parts.push(text.slice(from, at), el("mark", {}, text.slice(at, at + needle.length)));
    from = at + needle.length;
  }
  return [...parts, text.slice(from)];
}
