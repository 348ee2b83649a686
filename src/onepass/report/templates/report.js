"use strict";
// Draws and filters; every number comes worked out in the page's data. Text enters as text nodes only, never as markup.
const page = JSON.parse(document.getElementById("data").textContent);
const chosen = { stream: new Set(page.streams), memory: new Set(page.memories), series: new Set(page.series.keys()) };
const sorting = { column: "", sign: 1 };
const DASHES = ["", "7 3", "1.5 3", "9 3 1.5 3"];
const CIRCLE = "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", DIAMOND = "M0-5L4.6 0L0 5L-4.6 0z";
const SHAPES = [CIRCLE, "M-3.6-3.6h7.2v7.2h-7.2z", "M0-4.6L4.4 3.4H-4.4z", DIAMOND];
const COLOURS = 6, STYLES = DASHES.length;
const DIRECT = 420, LONG = 22; // the width of a chart and the length of a name up to which curves carry their names
const CROWD = 8; // curves up to which bands are shown at rest
const LETTER = 6.7, LINE = 14; // of a chart's small print
const FIGURES = 20; // classes up to which a confusion is a table of figures, and beyond which it is a picture
const LEVELS = 16, WIDEST = 640, MISTAKES = 12; // of that picture, and of the list beside it

const byId = (id) => document.getElementById(id);
const maker = (create) => (tag, attributes = {}, ...children) => {
  const node = create(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
};
const html = maker((tag) => document.createElement(tag));
const svg = maker((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
const fill = (id, nodes) => {
  const none = html("p", { class: "empty" }, "Nothing is chosen. Choose at least one stream, memory and method.");
  document.querySelector(`#${id} .drawn`).replaceChildren(...(nodes.length ? nodes : [none]));
};
const percent = (value) => (100 * value).toFixed(1);
const named = (group) => page.series[group.series];
const titled = (panel) => panel.stream + (panel.memory ? `, memory ${panel.memory}` : "");
const final = (group) => group.summary.final_accuracy;
const charted = (group) => final(group) !== null; // others predict by weights that the rest of the page is not about
const style = (series) => Math.floor(series / COLOURS) % STYLES;
const layer = (series, ...children) => {
  const look = { class: "series", style: `color: var(--c${series % COLOURS})`, "data-series": series };
  return svg("g", look, ...children);
};
const mark = (series, x, y) => {
  const look = series < COLOURS * STYLES ? "mark" : "hollow";
  return svg("path", { class: look, d: SHAPES[style(series)], transform: `translate(${x} ${y})` });
};
const stroke = (series, d) => svg("path", { d, "stroke-dasharray": DASHES[style(series)] });
const swatch = (series) => {
  const size = { class: "swatch", width: 26, height: 12, "aria-hidden": "true" };
  return svg("svg", size, layer(series, stroke(series, "M0 6H26"), mark(series, 13, 6)));
};
const who = (group, after = "") =>
  html("th", { scope: "row" }, html("div", { class: "who" }, swatch(group.series), named(group) + after));
/** The best of the groups that train no network; all others that end below it are marked. */
const floor = (panel) => {
  const fixed = panel.groups.map((place) => page.groups[place]).filter((group) => !group.trains && charted(group));
  return fixed.sort((a, b) => final(b).mean - final(a).mean)[0];
};

/** The panels that are chosen, each with its chosen groups. */
function shown() {
  const filled = page.panels
    .filter((panel) => chosen.stream.has(panel.stream) && chosen.memory.has(panel.memory))
    .map((panel) => {
      const groups = panel.groups.map((place) => page.groups[place]).filter((group) => chosen.series.has(group.series));
      return { ...panel, groups, best: page.groups[panel.best], floor: floor(panel) };
    });
  return filled.filter((panel) => panel.groups.length);
}

function choice(title, kind, values, label) {
  const set = (some, on) => {
    for (const value of some) on ? chosen[kind].add(value) : chosen[kind].delete(value);
    values.forEach((value, place) => (boxes[place].checked = chosen[kind].has(value)));
    draw();
  };
  const boxes = values.map((value) =>
    html("input", { type: "checkbox", checked: true, change: (event) => set([value], event.target.checked) }));
  const every = (text, on) => {
    const spoken = `${text} ${title.toLowerCase()}`;
    return html("button", { type: "button", "aria-label": spoken, click: () => set(values, on) }, text);
  };
  const labels = values.map((value, place) => html("label", {}, boxes[place], ...label(value)));
  const buttons = html("div", {}, every("All", true), every("None", false));
  document.querySelector("#filter form").append(html("fieldset", {}, html("legend", {}, title), buttons, ...labels));
}

function summary() {
  const [first, ...rest] = page.columns;
  const paper = page.groups.some((group) => group.printed) ? [["paper", "paper"]] : [];
  const base = page.baseline ? [["difference", `minus ${page.baseline} (seeds)`]] : [];
  const held = page.groups.some((group) => group.megabytes !== "n/a") ? [["megabytes", "MB held"]] : [];
  const columns = [["", "method"], first, ["bar", ""], ...paper, ...base, ...rest, ...held, ["n", "runs"]];
  const heads = html("thead", {}, html("tr", {}, ...columns.map(head)));
  const bodies = shown().map((panel) => body(panel, columns));
  const table = html("table", { class: "wide" }, heads, ...bodies);
  fill("summary", bodies.length ? [scrolling("Summary table", table)] : []);
}

function head([column, text]) {
  if (column === "bar") return html("td");
  const now = sorting.column === column;
  const order = now ? (sorting.sign > 0 ? "ascending" : "descending") : null;
  const click = () => {
    Object.assign(sorting, { column, sign: now ? -sorting.sign : column ? -1 : 1 });
    summary();
    document.querySelector("#summary [aria-sort] button").focus();
  };
  return html("th", { scope: "col", "aria-sort": order }, html("button", { type: "button", click }, text));
}

function body(panel, columns) {
  const place = {
    "": (group) => group.series,
    n: (group) => group.n,
    megabytes: (group) => (group.megabytes === "n/a" ? null : Number(group.megabytes)),
    paper: (group) => group.printed?.mean,
    difference: (group) => difference(panel, group)?.mean,
  };
  const by = place[sorting.column] ?? ((group) => group.summary[sorting.column]?.mean);
  const rows = [...panel.groups].sort((a, b) => {
    const [u, v] = [by(a) ?? null, by(b) ?? null];
    return u === null || v === null ? (u === null) - (v === null) : sorting.sign * (u - v);
  });
  const ways = [...new Set(panel.groups.map((group) => group.printed?.differs.join(", ")).filter(Boolean))];
  const note = (way, number) => html("small", {}, html("sup", {}, letter(number)), ` not the paper’s: ${way}`);
  const marked = panel.floor && panel.groups.some((group) => below(group, panel));
  const mark = marked && html("small", {}, `† ends below ${named(panel.floor)}, which trains no network`);
  const title = html("div", {}, html("span", {}, titled(panel)), ...ways.map(note), mark || null);
  const heading = html("tr", { class: "head" }, html("th", { scope: "rowgroup", colspan: columns.length }, title));
  const means = panel.groups.flatMap((group) => [final(group), group.printed]).filter(Boolean);
  const top = Math.min(1, Math.max(0.01, ...means.map((one) => one.mean + one.interval)));
  const row = (group) => html("tr", {}, ...columns.map(([column]) => cell(group, column, panel, ways, top)));
  return html("tbody", {}, heading, ...rows.map(row));
}

const below = (group, panel) => panel.floor && group.trains && charted(group) && final(group).mean < final(panel.floor).mean;
const difference = (panel, group) => panel.differences[page.groups.indexOf(group)];
const letter = (number) => String.fromCharCode(97 + (number % 26));

function cell(group, column, panel, ways, top) {
  if (column === "") return who(group, below(group, panel) ? " †" : "");
  if (column === "bar") return html("td", {}, charted(group) ? bar(group, top) : null);
  if (column === "n") return html("td", {}, String(group.n));
  if (column === "megabytes") return html("td", {}, group.megabytes);
  const special = { paper: group.printed, difference: difference(panel, group) };
  const found = column in special ? special[column] : group.summary[column];
  if (!found) return html("td", { class: "none" }, "–");
  const way = ways.indexOf(found.differs?.join(", "));
  const best = found.real || (column === "final_accuracy" && group === panel.best);
  const note = way < 0 ? null : html("sup", {}, letter(way));
  return html("td", { class: best ? "best" : null }, found.text, note);
}

/** Ours and the paper's mean with their intervals, on one scale for the panel. */
function bar(group, top) {
  const width = 96, paper = group.printed;
  const x = (share) => (width * Math.max(0, Math.min(top, share))) / top;
  const reach = (one, y) => svg("path", { d: `M${x(one.mean - one.interval)} ${y}H${x(one.mean + one.interval)}` });
  const place = (one, y) => `translate(${x(one.mean)} ${y})`;
  const spot = (one, y, look, d) => [reach(one, y), svg("path", { class: look, d, transform: place(one, y) })];
  const theirs = paper ? spot(paper, 5, "hollow", DIAMOND) : [], ours = spot(final(group), 13, "mark", CIRCLE);
  const size = { class: "bar", width, height: 18, "aria-hidden": "true" };
  return svg("svg", size, svg("path", { class: "axis", d: "M0 0V18" }), layer(group.series, ...theirs, ...ours));
}

const ceiling = (values) => Math.min(1, Math.ceil(Math.max(...values) * 10 + 0.2) / 10);

function steps(low, high, most) {
  const raw = (high - low) / most, unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= raw * 0.999);
  const count = Math.floor(high / step + 1e-9) + 1;
  return Array.from({ length: count }, (_, place) => place * step).filter((tick) => tick >= low);
}

/** A figure for each panel. All are in place and measured before the first is painted. */
function figures(id, panels, paint) {
  const list = panels.map((panel) => html("figure", {}, html("h3", {}, titled(panel))));
  fill(id, list);
  const widths = list.map((figure) => figure.clientWidth);
  list.forEach((figure, place) => paint(figure, panels[place], widths[place]));
}

/** Axes, and between them what `layers` draws. Points are { x, y, series, text }: the places of the tooltip. */
function chart(figure, panel, { width, height, right, x, top, ticks, log, words, layers, points }) {
  const box = { left: 40, right: width - right, top: 8, bottom: height - 42 };
  const scale = log ? Math.log : Number, span = scale(x[1]) - scale(x[0]);
  const px = (at) => box.left + ((scale(at) - scale(x[0])) / span) * (box.right - box.left);
  const py = (at) => box.bottom - (at / top) * (box.bottom - box.top);
  const rules = steps(0, top, 5).flatMap((tick) => [
    svg("path", { class: tick ? "rule" : "axis", d: `M${box.left} ${py(tick)}H${box.right}` }),
    svg("text", { x: box.left - 8, y: py(tick) + 4, "text-anchor": "end" }, String(Math.round(100 * tick))),
  ]);
  const under = (at, y, text) => svg("text", { x: at, y, "text-anchor": "middle" }, text);
  const marks = ticks.map((tick) => under(px(tick), box.bottom + 18, tick.toLocaleString("en")));
  const below = under((box.left + box.right) / 2, height - 4, words);
  const size = { height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" };
  const image = svg("svg", size, ...rules, ...marks, below, ...layers(px, py, box));
  const spoken = `${titled(panel)}: accuracy in per cent by ${words}. Arrow keys move from point to point.`;
  const roles = { role: "application", "aria-roledescription": "chart", "aria-label": spoken };
  const plot = html("div", { class: "plot", tabindex: 0, ...roles }, image);
  figure.append(plot);
  pointing(plot, points.map((point, place) => ({ ...point, px: px(point.x), py: py(point.y) + place * 1e-6 })));
}

const nearest = (points, far) => points.reduce((best, point) => (best && far(best) <= far(point) ? best : point), null);
const KEYS = { ArrowRight: ["px", 1], ArrowLeft: ["px", -1], ArrowDown: ["py", 1], ArrowUp: ["py", -1] };

/** The point that an arrow key leads to: along the same curve first, or straight up and down. */
function next(points, current, key) {
  const [axis, sign] = KEYS[key], along = axis === "px";
  const ahead = points.filter((point) => sign * (point[axis] - current[axis]) > (along ? 0.5 : 0));
  const aside = (point) => (along ? 1e4 * (point.series !== current.series) : 4 * Math.abs(point.px - current.px));
  return nearest(ahead, (point) => Math.abs(point[axis] - current[axis]) + aside(point)) ?? current;
}

function pointing(plot, points, marked = () => {}) {
  let current = points[0];
  const show = (point) => {
    current = point ?? current;
    marked(point);
    for (const group of plot.querySelectorAll("[data-series]")) {
      const own = Number(group.dataset.series) === point?.series;
      group.classList.toggle("faint", Boolean(point) && !own);
      group.classList.toggle("on", own);
    }
    tell(plot, point);
  };
  const at = (event) => {
    const frame = plot.getBoundingClientRect(), x = event.clientX - frame.left, y = event.clientY - frame.top;
    show(nearest(points, (point) => Math.hypot(point.px - x, point.py - y)));
  };
  plot.addEventListener("pointermove", at);
  plot.addEventListener("pointerdown", at);
  plot.addEventListener("pointerleave", () => show(document.activeElement === plot ? current : null));
  plot.addEventListener("focus", () => show(current));
  plot.addEventListener("blur", () => show(null));
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") show(null);
    if (!KEYS[event.key]) return;
    event.preventDefault();
    show(next(points, current, event.key));
  });
}

function tell(plot, point) {
  const tip = byId("tip");
  tip.hidden = !point;
  if (!point) return;
  tip.textContent = point.text;
  const frame = plot.getBoundingClientRect(), room = document.documentElement.clientWidth - tip.offsetWidth - 6;
  const above = frame.top + point.py - tip.offsetHeight - 12;
  tip.style.left = `${Math.max(6, Math.min(room, frame.left + point.px - tip.offsetWidth / 2))}px`;
  tip.style.top = `${scrollY + (above < 4 ? frame.top + point.py + 14 : above)}px`;
}

function line(group, curve, px, py, box) {
  const spots = (values) => values.map((at, place) => `${px(curve.x[place]).toFixed(1)} ${py(at).toFixed(1)}`);
  const way = (values) =>
    curve.x.length > 1 ? `M${spots(values).join("L")}` : `M${box.left} ${py(values[0])}H${box.right}`;
  const low = curve.interval.map((spread, place) => Math.max(0, curve.mean[place] - spread));
  const high = curve.interval.map((spread, place) => Math.min(1, curve.mean[place] + spread));
  const band = `M${[...spots(high), ...spots(low).reverse()].join("L")}Z`;
  const marked = 1 < curve.x.length && curve.x.length <= 30 ? curve.mean : [];
  return layer(
    group.series,
    low.length > 1 ? svg("path", { class: "band", d: band }) : null,
    ...curve.runs.map((run) => svg("path", { class: "single", d: way(run) })),
    stroke(group.series, way(curve.mean)),
    ...marked.map((at, place) => mark(group.series, px(curve.x[place]), py(at))),
  );
}

/** Names at the ends of their curves, moved apart. */
function ends(groups, of, px, py, box) {
  const gap = Math.min(LINE, (box.bottom - box.top) / groups.length);
  const list = groups.map((group) => ({ group, from: py(of(group).mean.at(-1)) })).sort((a, b) => a.from - b.from);
  list.forEach((one, place) => (one.at = place ? Math.max(one.from, list[place - 1].at + gap) : one.from));
  list.reduceRight((limit, one) => (one.at = Math.min(one.at, limit)) - gap, box.bottom);
  return list.map(({ group, from, at }) => {
    const start = of(group).x.length > 1 ? px(of(group).x.at(-1)) + 6 : box.right;
    const lead = svg("path", { class: "lead", d: `M${start} ${from}L${box.right + 16} ${at}` });
    const text = svg("text", { class: "name", x: box.right + 31, y: at + 4 }, named(group));
    return layer(group.series, lead, mark(group.series, box.right + 22, at), text);
  });
}

function spots(group, curve, last, when) {
  return curve.mean.map((y, place) => {
    const lone = curve.x.length === 1, spread = curve.interval.length ? ` ± ${percent(curve.interval[place])}` : "";
    const text = `${named(group)}, ${lone ? "all classes at once" : when(curve.x[place])}: ${percent(y)}${spread}`;
    return { x: lone ? last : curve.x[place], y, series: group.series, text };
  });
}

function curves(id, of, words, when) {
  byId(id).hidden = !page.groups.some(of);
  const panels = shown().map((panel) => ({ ...panel, groups: panel.groups.filter(of) }));
  figures(id, panels.filter((panel) => panel.groups.length), (figure, panel, width) => {
    const { groups } = panel, all = groups.map(of), longest = Math.max(...groups.map((group) => named(group).length));
    const direct = width >= DIRECT && longest <= LONG;
    const height = Math.max(250, Math.min(420, width * 0.62), direct ? LINE * groups.length + 50 : 0);
    const x = [Math.min(...all.map((curve) => curve.x[0])), Math.max(2, ...all.map((curve) => curve.x.at(-1)))];
    if (x[0] === x[1]) x[0] = 0;
    const ticks = steps(x[0], x[1], Math.min(x[1] - x[0], width / 80));
    const top = ceiling(all.flatMap((curve) => [...curve.mean, ...curve.runs.flat()]));
    const points = groups.flatMap((group) => spots(group, of(group), x[1], when));
    const begins = all.find((curve) => curve.begins?.length)?.begins ?? [];
    const layers = (px, py, box) => [
      ...begins.map((at) => svg("path", { class: "begin", d: `M${px(at)} ${box.top}V${box.bottom}` })),
      ...groups.map((group) => line(group, of(group), px, py, box)),
      ...(direct ? ends(groups, of, px, py, box) : []),
    ];
    figure.classList.toggle("crowd", groups.length > CROWD);
    const right = direct ? 36 + LETTER * longest : 24;
    chart(figure, panel, { width, height, right, x, top, ticks, words, layers, points });
    if (!direct) legend(figure, groups, (group) => of(group).mean.at(-1));
  });
}

function legend(figure, groups, by) {
  const sorted = [...groups].sort((a, b) => by(b) - by(a));
  const items = sorted.map((group) => html("li", {}, swatch(group.series), `${named(group)} ${percent(by(group))}`));
  const long = groups.some((group) => named(group).length > LONG);
  figure.append(html("ul", { class: long ? "legend long" : "legend" }, ...items));
}

function cost() {
  byId("cost").hidden = !page.groups.some((group) => group.cost !== null);
  const panels = shown().map((panel) => ({ ...panel, groups: panel.groups.filter((group) => group.cost !== null) }));
  figures("cost", panels.filter((panel) => panel.groups.length), (figure, panel, width) => {
    const { groups } = panel, costs = groups.map((group) => group.cost);
    const x = [Math.min(...costs) / 1.4, Math.max(...costs) * 1.7];
    const ticks = [0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100].filter((tick) => x[0] < tick && tick < x[1]);
    const top = ceiling(groups.map((group) => final(group).mean + final(group).interval));
    const points = groups.map((group) => {
      const text = `${named(group)}: ${final(group).text} at ${group.cost} times ER’s FLOPs`;
      return { x: group.cost, y: final(group).mean, series: group.series, text };
    });
    let nameless = [];
    const layers = (px, py, box) => {
      const spot = (group) => [px(group.cost), py(final(group).mean), named(group)];
      const names = places(groups.map(spot), box);
      nameless = groups.filter((_, place) => !names[place]);
      return groups.map((group, place) => dot(group, px(group.cost), py, names[place]));
    };
    const height = Math.max(280, Math.min(460, width * 0.75));
    const words = "FLOPs of a step over ER’s, log scale";
    chart(figure, panel, { width, height, right: 14, x, top, ticks, log: true, words, layers, points });
    if (nameless.length) legend(figure, nameless, (group) => final(group).mean);
  });
}

function dot(group, x, py, at) {
  const { mean, interval } = final(group);
  const reach = `M${x} ${py(Math.max(0, mean - interval))}V${py(Math.min(1, mean + interval))}`;
  const text = at && svg("text", { class: "name", x: at[0], y: at[1] }, named(group));
  return layer(group.series, svg("path", { class: "single", d: reach }), mark(group.series, x, py(mean)), text);
}

/** Where each point's name has room beside all other names and points; null where nowhere. */
function places(points, box) {
  const taken = points.map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
  return points.map(([x, y, text]) => {
    const width = LETTER * text.length;
    const beside = [[8, 4], [-8 - width, 4], [7, -6], [7, 14], [-7 - width, -6], [-7 - width, 14]];
    for (const [right, down] of beside) {
      const [l, t, r, b] = [x + right, y + down - 9, x + right + width, y + down + 1];
      const free = taken.every((other) => r < other[0] || l > other[2] || b < other[1] || t > other[3]);
      if (!free || l < box.left || r > box.right + 12 || t < box.top || b > box.bottom) continue;
      taken.push([l, t, r, b]);
      return [x + right, y + down];
    }
    return null;
  });
}

const scrolling = (label, table) =>
  html("div", { class: "scroll", role: "region", "aria-label": label, tabindex: 0 }, table);
const heated = (share) => html("td", { style: `--share: ${Math.max(0, Math.min(100, 100 * share))}%` }, percent(share));

function heatMap(kind, caption, n, last, rows) {
  const texts = ["", ...Array.from({ length: n }, (_, task) => `task ${task + 1}`), ...last];
  const heads = html("tr", {}, ...texts.map((text) => html(text ? "th" : "td", text ? { scope: "col" } : {}, text)));
  const table = html("table", { class: `heat ${kind}` }, html("caption", {}, caption), html("thead", {}, heads));
  table.append(html("tbody", {}, ...rows));
  return scrolling(caption, table);
}

/** The group that is chosen in a list of those of the panels: if none is any more, the last of the first panel. */
function picked(id, panels) {
  const select = byId(id), before = select.value;
  const option = (group) => html("option", { value: page.groups.indexOf(group) }, `${named(group)}, ${titled(group)}`);
  const part = (panel) => html("optgroup", { label: titled(panel) }, ...panel.groups.map(option));
  select.replaceChildren(...panels.map(part));
  select.disabled = !panels.length;
  if (!panels.length) return null;
  const kept = [...select.options].some((one) => one.value === before);
  select.value = kept ? before : page.groups.indexOf(panels[0].groups.at(-1));
  return page.groups[Number(select.value)];
}

function matrix() {
  const group = picked("which", shown());
  if (!group) return fill("matrix", []);
  const rows = group.matrix.map((cells, task) =>
    html("tr", {}, html("th", { scope: "row" }, `after ${task + 1}`), ...cells.map(heated)));
  fill("matrix", [heatMap("", `${named(group)}, ${titled(group)}`, group.matrix.length, [], rows)]);
}

function forgetting() {
  byId("forgetting").hidden = !page.groups.some((group) => group.drops.length);
  const panels = shown().map((panel) => ({ ...panel, groups: panel.groups.filter((group) => group.drops.length) }));
  const maps = panels.filter((panel) => panel.groups.length).map((panel) => {
    const n = Math.max(...panel.groups.map((group) => group.drops.length));
    const rows = panel.groups.map((group) => {
      const cells = Array.from({ length: n }, (_, j) => (group.drops[j] ? heated(group.drops[j].mean) : html("td")));
      return html("tr", {}, who(group), ...cells, html("td", { class: "mean" }, group.summary.forgetting.text));
    });
    return heatMap("losses", titled(panel), n, ["mean"], rows);
  });
  fill("forgetting", maps);
}

/** Each class with a bar of its accuracy, the best first. */
function bars({ names, accuracy }) {
  const known = accuracy.map((found, place) => ({ found, name: names[place] })).filter(({ found }) => found);
  known.sort((a, b) => b.found.mean - a.found.mean);
  const many = names.length > FIGURES, short = many || known.every(({ found }) => found.interval === null);
  const item = ({ found, name }) => html("li", { title: `${name}: ${found.text}` },
    html("span", { class: "class" }, name),
    html("span", { class: "share", style: `--share: ${100 * found.mean}%` }),
    html("span", {}, short ? percent(found.mean) : found.text));
  const list = html("ol", { class: many ? "bars many" : "bars" }, ...known.map(item));
  return html("div", { class: "tall", role: "region", "aria-label": "Accuracy by class", tabindex: 0 }, list);
}

/** What is in a confusion, as cells: rows are what the images are, columns what they are taken for. */
function confusions({ names, confusion }) {
  return confusion.flatMap((numbers, row) => {
    const counts = numbers.filter((_, place) => place % 2), all = counts.reduce((sum, count) => sum + count, 0);
    return counts.map((count, place) => {
      const column = numbers[2 * place], share = count / all;
      const short = `${names[row]} ${row === column ? "right" : `as ${names[column]}`}: ${percent(share)} %`;
      return { row, column, share, short, text: `${short} (${count} of ${all})` };
    });
  });
}

const tint = (cell) => (cell.row === cell.column ? "hit" : "miss");

function confusionTable({ names, begins }, cells) {
  const look = (place) => (begins.includes(place) ? "begins" : null);
  const filled = names.map(() => names.map(() => html("td")));
  for (const cell of cells) {
    const td = filled[cell.row][cell.column];
    td.classList.add(tint(cell));
    td.setAttribute("style", `--share: ${100 * Math.sqrt(cell.share)}%`);
    td.title = cell.text;
    td.append((100 * cell.share).toFixed(0));
  }
  const head = (scope, place) => {
    const name = html("span", { class: "class" }, names[place]);
    return html("th", { scope, class: look(place), title: names[place] }, name);
  };
  const row = (tds, place) => html("tr", {}, head("row", place), ...tds);
  const heads = html("thead", {}, html("tr", {}, html("td"), ...names.map((_, place) => head("col", place))));
  const table = html("table", { class: "heat confusion" }, heads, html("tbody", {}, ...filled.map(row)));
  return scrolling("What each class is taken for", table);
}

/** A square of n by n cells without figures; a tooltip tells them. */
function confusionPicture(figure, { names, begins }, cells, width) {
  const n = names.length, named = Math.min(110, LETTER * Math.max(...names.map((name) => name.length)) + 8);
  const room = Math.min(width, WIDEST), left = (room - named - 14) / n >= 11 ? named + 14 : 14;
  const side = (room - left) / n, size = side * n;
  const levels = new Map();
  for (const cell of cells) {
    const key = `${tint(cell)} ${Math.ceil(LEVELS * cell.share ** 0.4)}`; // so that a single image can still be seen
    levels.set(key, `${levels.get(key) ?? ""}M${cell.column} ${cell.row}h1v1h-1z`);
  }
  const squares = [...levels].map(([key, d]) => {
    const [look, level] = key.split(" ");
    return svg("path", { class: look, d, "fill-opacity": level / LEVELS });
  });
  const place = `translate(${left} 0) scale(${side})`;
  const lines = begins.map((at) => `M${at} 0V${n}M0 ${at}H${n}`).join("");
  const frame = svg("path", { class: "frame", d: `M0 0H${n}V${n}H0z${lines}` });
  const mark = svg("path", { class: "mark-cell", d: "" });
  const labels = left === 14 ? [] : names.map((name, row) =>
    svg("text", { class: "small", x: left - 4, y: (row + 0.5) * side + 3.5, "text-anchor": "end" },
      name.length > 16 ? `${name.slice(0, 15)}…` : name));
  const words = [
    svg("text", { x: left + size / 2, y: size + 16, "text-anchor": "middle" }, "predicted as"),
    svg("text", { x: -size / 2, y: 10, "text-anchor": "middle", transform: "rotate(-90)" }, "class"),
  ];
  const box = { width: room, height: size + 22, viewBox: `0 0 ${room} ${size + 22}`, "aria-hidden": "true" };
  const image = svg("svg", box, svg("g", { transform: place }, ...squares, frame, mark), ...labels, ...words);
  const spoken = `What each of ${n} classes is taken for. Arrow keys move from cell to cell.`;
  const roles = { role: "application", "aria-roledescription": "heat map", "aria-label": spoken };
  const plot = html("div", { class: "plot", tabindex: 0, ...roles }, image);
  figure.append(plot);
  const middle = (at) => (at + 0.5) * side;
  const points = cells.map((cell) =>
    ({ ...cell, series: cell.row, px: left + middle(cell.column), py: middle(cell.row) }));
  pointing(plot, points, (point) => mark.setAttribute("d", point ? `M${point.column} ${point.row}h1v1h-1z` : ""));
}

function mistakes(cells) {
  const worst = cells.filter((cell) => tint(cell) === "miss").sort((a, b) => b.share - a.share).slice(0, MISTAKES);
  return html("div", {}, html("h3", {}, "Most often taken for another"),
    html("ol", { class: "mistakes" }, ...worst.map((cell) => html("li", {}, cell.short))));
}

function classes() {
  byId("classes").hidden = !page.groups.some((group) => group.classes);
  const panels = shown().map((panel) => ({ ...panel, groups: panel.groups.filter((group) => group.classes) }));
  const group = picked("whose", panels.filter((panel) => panel.groups.length));
  if (!group) return fill("classes", []);
  const found = group.classes, cells = confusions(found);
  if (found.names.length <= FIGURES) return fill("classes", [bars(found), confusionTable(found, cells)]);
  const figure = html("figure", {});
  fill("classes", [bars(found), figure, mistakes(cells)]);
  confusionPicture(figure, found, cells, figure.clientWidth);
}

function protocol() {
  const groups = [...new Set(shown().flatMap((panel) => panel.groups))];
  fill("protocol", groups.map((group) => {
    const where = ` ${titled(group)}, ${group.n} ${group.n === 1 ? "run" : "runs"}`;
    const facts = group.protocol.flatMap(([term, text]) => [html("dt", {}, term), html("dd", {}, text)]);
    return html("details", {}, html("summary", {}, html("b", {}, named(group)), where), html("dl", {}, ...facts));
  }));
}

function draw() {
  const rows = (panels) => panels.reduce((sum, panel) => sum + panel.groups.length, 0);
  byId("shown").textContent = `${rows(shown())} of ${rows(page.panels)} rows shown`;
  byId("tip").hidden = true;
  summary();
  curves("curves", (group) => group.curve, "tasks learned", (task) => `after task ${task}`);
  curves("anytime", (group) => group.anytime, "steps", (step) => `step ${step}`);
  curves("prequential", (group) => group.prequential, "steps", (step) => `up to step ${step}`);
  matrix();
  forgetting();
  classes();
  cost();
  protocol();
}

function theme(dark) {
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", dark);
}

const system = matchMedia("(prefers-color-scheme: dark)");
let before = innerWidth;
theme(system.matches);
system.addEventListener("change", (event) => theme(event.matches));
byId("theme").addEventListener("click", (event) => theme(event.target.getAttribute("aria-pressed") !== "true"));
byId("which").addEventListener("change", matrix);
byId("whose").addEventListener("change", classes);
addEventListener("resize", () => {
  if (before !== innerWidth) draw();
  before = innerWidth;
});
byId("about").textContent = page.about.join(" ");
byId("filter").open = innerWidth > 900;
choice("Streams", "stream", page.streams, (stream) => [stream]);
choice("Memories", "memory", page.memories, (memory) => [memory ? String(memory) : "none"]);
choice("Methods", "series", [...page.series.keys()], (series) => [swatch(series), page.series[series]]);
draw();
