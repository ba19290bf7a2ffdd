// The sampling ledger as flows: three columns of bars, joined by ribbons as wide as what they carry.

const FLOW = { width: 980, height: 214, top: 26, bar: 10, gap: 15, columns: [0, 330, 652] };
const FLOW_ORDER = ["kept", "all right", "all wrong", "dropped otherwise", "wasted: graded, dropped", "surplus, past the cut", "carried to the next step", "carried", "cancelled in flight", "lost: cancelled, failed"];
const FLOW_COLOURS = { kept: "c-after", "all right": "c-right", "all wrong": "c-wrong", "wasted: graded, dropped": "c-wrong", "dropped otherwise": "c-dropped" };
const MIDDLE = ["graded, up to the cut", "sampled tokens"];

/** An SVG element. */
function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Nodes of the links with their place: [{name, column, through, y, height}], by name. */
function flowNodes(links) {
  const names = [...new Set(links.flatMap(([from, to]) => [from, to]))];
  const sum = (side, name) => links.filter((link) => link[side] === name).reduce((total, link) => total + link[2], 0);
  const nodes = names.map((name) => ({
    name, column: MIDDLE.includes(name) ? 1 : links.some((link) => link[1] === name) ? 2 : 0,
    through: Math.max(sum(0, name), sum(1, name)), order: FLOW_ORDER.indexOf(name),
  }));
  const whole = nodes.filter((node) => node.column === 0).reduce((total, node) => total + node.through, 0) || 1;
  const ends = nodes.filter((node) => node.column === 2).length;
  const scale = (FLOW.height - FLOW.top - 8 - FLOW.gap * Math.max(0, ends - 1)) / whole;
  for (const column of [0, 1, 2]) {
    let y = FLOW.top;
    for (const node of nodes.filter((one) => one.column === column).sort((a, b) => a.order - b.order)) {
      Object.assign(node, { y, height: Math.max(1, node.through * scale), out: 0, into: 0, share: node.through / whole });
      y += node.height + FLOW.gap;
    }
  }
  return [new Map(nodes.map((node) => [node.name, node])), scale];
}

/** The path of a ribbon between two bars. */
function ribbon(x0, y0, x1, y1, width) {
  const middle = (x0 + x1) / 2;
  return `M${x0},${y0}C${middle},${y0} ${middle},${y1} ${x1},${y1}V${y1 + width}C${middle},${y1 + width} ${middle},${y0 + width} ${x0},${y0 + width}Z`;
}

/** The picture of a flow. links: [[from, to, amount], ...]; words: what is counted. */
function flowPicture(links, words) {
  if (!links.length) return el("p", { class: "quietly" }, "Not told by this run.");
  const [nodes, scale] = flowNodes(links);
  const picture = svg("svg", { viewBox: `0 0 ${FLOW.width} ${FLOW.height}`, class: "flow", role: "img", "aria-label": `Flow of ${words}: ${links.map(([from, to, amount]) => `${from} to ${to} ${count(amount)}`).join("; ")}` });
  const ordered = [...links].sort((a, b) => nodes.get(a[1]).order - nodes.get(b[1]).order);
  for (const [from, to, amount] of ordered) {
    const a = nodes.get(from), b = nodes.get(to), width = Math.max(0.75, amount * scale);
    const path = svg("path", { d: ribbon(FLOW.columns[a.column] + FLOW.bar, a.y + a.out, FLOW.columns[b.column], b.y + b.into, width) }, svg("title", {}, `${from} → ${to}: ${count(amount)} ${words}`));
    path.style.fill = `var(--${FLOW_COLOURS[to] || "c-before"})`;
    a.out += width;
    b.into += width;
    picture.append(path);
  }
  for (const node of nodes.values()) {
    const x = FLOW.columns[node.column], bar = svg("rect", { x, y: node.y, width: FLOW.bar, height: node.height });
    bar.style.fill = `var(--${FLOW_COLOURS[node.name] || "c-before"})`;
    const end = node.column === 2;
    const text = svg("text", { x: end ? x + FLOW.bar + 8 : x, y: end ? node.y + node.height / 2 + 4 : node.y - 8 }, `${node.name} `);
    text.append(svg("tspan", { class: "amount" }, count(node.through)), svg("tspan", { class: "share" }, ` ${percent(node.share, node.share < 0.1 ? 1 : 0)}`));
    picture.append(bar, text);
  }
  return picture;
}

/** Both flows, of the whole run or of a step. */
function flowPanel() {
  const at = { place: -1 };
  const places = { draws: el("div"), tokens: el("div") };
  const steps = () => DATA.runs[shownRun].flow.steps;
  const slider = el("input", { type: "range", min: -1, max: steps().length - 1, value: -1, "aria-label": "Step of the flows; leftmost is the whole run" });
  const said = el("output", {}, "whole run");
  const change = () => {
    at.place = Math.min(Number(slider.value), steps().length - 1);
    said.textContent = at.place < 0 ? "whole run" : `step ${steps()[at.place].step}`;
    const flow = at.place < 0 ? DATA.runs[shownRun].flow.total : steps()[at.place];
    Object.entries(places).forEach(([name, place]) => place.replaceChildren(flowPicture(flow[name], name)));
  };
  const again = () => { slider.max = steps().length - 1; slider.value = -1; change(); };
  slider.addEventListener("input", change);
  runWatchers.push(again);
  dataWatchers.push(() => { slider.max = steps().length - 1; change(); });
  again();
  return el("div", { class: "panel wide", id: "flows" }, el("h3", {}, "What became of draws and tokens"),
    el("p", { class: "note" }, "A draw is a prompt with its group of responses. Groups all right or all wrong carry no gradient and are dropped. Surplus was graded after the batch was full; lost tokens belong to cancelled or failed draws. Shares are of all that came in."),
    el("div", { class: "tools" }, runChooser(), el("label", {}, "whole run, or a step", slider), said),
    el("h3", {}, "Draws"), places.draws, el("h3", {}, "Tokens"), places.tokens);
}
