// Charts of curves and of points, with a tooltip for the pointer and the keyboard.
const DASHES = ["", "7 3", "1.5 3", "9 3 1.5 3"];
const CIRCLE = "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", DIAMOND = "M0-5L4.6 0L0 5L-4.6 0z";
const SHAPES = [CIRCLE, "M-3.6-3.6h7.2v7.2h-7.2z", "M0-4.6L4.4 3.4H-4.4z", DIAMOND];
const COLOURS = 6;
const DIRECT = 420, LONG = 22; // the width of a chart and the length of a name up to which curves carry their names
const LETTER = 6.7, LINE = 14, ROW = 18; // of a chart's small print

/** A look is a number, "reference" or "grey": see looksOf. */
const tinted = (look) =>
  look === "grey" ? "var(--grey)" : look === "reference" ? "var(--ink)" : `var(--c${look % COLOURS})`;
const turn = (look) => (Number.isInteger(look) ? Math.floor(look / COLOURS) % DASHES.length : 0);
const layer = (look, series, ...children) => {
  const kind = look === "grey" ? "series grey" : "series";
  return svg("g", { class: kind, style: `color: ${tinted(look)}`, "data-series": series }, ...children);
};
const mark = (look, x, y) => svg("path", { class: "mark", d: SHAPES[turn(look)], transform: `translate(${x} ${y})` });
const stroke = (look, d) => svg("path", { d, "stroke-dasharray": look === "reference" ? "3 3" : DASHES[turn(look)] });
const swatch = (look) => {
  const size = { class: "swatch", width: 26, height: 12, "aria-hidden": "true" };
  return svg("svg", size, layer(look, -1, stroke(look, "M0 6H26"), mark(look, 13, 6)));
};

const ceiling = (values) => Math.min(1, Math.ceil(Math.max(0.01, ...values) * 10 + 0.2) / 10);

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
  list.forEach((figure, place) => {
    paint(figure, panels[place], widths[place]);
    figure.append(saving(figure, `${byId(`${id}-head`).textContent}: ${titled(panels[place])}`));
  });
}

/** Axes, between them what `layers` draws, and below them a list of [look, name].
 * Points are { x, y, series, text }: the places of the tooltip. */
function chart(figure, panel, { width, height, right, x, top, ticks, log, words, layers, listed, points }) {
  const box = { left: 46, right: width - right, top: 8, bottom: height - 42 };
  const scale = log ? Math.log : Number, span = scale(x[1]) - scale(x[0]);
  const px = (at) => box.left + ((scale(at) - scale(x[0])) / span) * (box.right - box.left);
  const py = (at) => box.bottom - (at / top) * (box.bottom - box.top);
  const rules = steps(0, top, 5).flatMap((tick, place, list) => [
    svg("path", { class: tick ? "rule" : "axis", d: `M${box.left} ${py(tick)}H${box.right}` }),
    svg("text", { x: box.left - 8, y: py(tick) + 4, "text-anchor": "end" },
      Math.round(100 * tick) + (place === list.length - 1 ? " %" : "")),
  ]);
  const under = (at, y, text) => svg("text", { x: at, y, "text-anchor": "middle" }, text);
  const marks = ticks.map((tick) => under(px(tick), box.bottom + 18, tick.toLocaleString("en")));
  const below = under((box.left + box.right) / 2, height - 4, words);
  const drawn = layers(px, py, box), [list, more] = legend(listed(), width, height);
  const size = { height: height + more, viewBox: `0 0 ${width} ${height + more}`, "aria-hidden": "true" };
  const image = svg("svg", size, ...rules, ...marks, below, ...drawn, ...list);
  const spoken = `${titled(panel)}: accuracy in per cent by ${words}. Arrow keys move from point to point.`;
  const roles = { role: "application", "aria-roledescription": "chart", "aria-label": spoken };
  const plot = html("div", { class: "plot", tabindex: 0, ...roles }, image);
  figure.append(plot);
  pointing(plot, points.map((point, place) => ({ ...point, px: px(point.x), py: py(point.y) + place * 1e-6 })));
}

/** Names below a chart, in as many columns as there is room for; they are part of the picture that is saved. */
function legend(items, width, top) {
  if (!items.length) return [[], 0];
  const room = 36 + LETTER * Math.max(...items.map(([, text]) => text.length));
  const columns = Math.max(1, Math.floor(width / room)), rows = Math.ceil(items.length / columns);
  const drawn = items.map(([look, text], place) => {
    const at = `translate(${Math.floor(place / rows) * (width / columns)} ${top + 12 + ROW * (place % rows)})`;
    const name = svg("text", { class: "name", x: 34, y: 4 }, shortened(text, Math.floor((width - 34) / LETTER)));
    return svg("g", { class: "key", transform: at }, layer(look, -1, stroke(look, "M0 0H26"), mark(look, 13, 0)), name);
  });
  return [drawn, ROW * rows + 8];
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

function line(look, group, curve, px, py, box) {
  const spots = (values) => values.map((at, place) => `${px(curve.x[place]).toFixed(1)} ${py(at).toFixed(1)}`);
  const way = (values) =>
    curve.x.length > 1 ? `M${spots(values).join("L")}` : `M${box.left} ${py(values[0])}H${box.right}`;
  const low = curve.interval.map((spread, place) => Math.max(0, curve.mean[place] - spread));
  const high = curve.interval.map((spread, place) => Math.min(1, curve.mean[place] + spread));
  const band = `M${[...spots(high), ...spots(low).reverse()].join("L")}Z`;
  const marked = look !== "grey" && 1 < curve.x.length && curve.x.length <= 30 ? curve.mean : [];
  return layer(
    look,
    group.series,
    low.length > 1 ? svg("path", { class: "band", d: band }) : null,
    ...curve.runs.map((run) => svg("path", { class: "single", d: way(run) })),
    stroke(look, way(curve.mean)),
    ...marked.map((at, place) => mark(look, px(curve.x[place]), py(at))),
  );
}

/** Names at the ends of their curves, moved apart. */
function ends(panel, groups, of, px, py, box) {
  const gap = Math.min(LINE, (box.bottom - box.top) / groups.length);
  const list = groups.map((group) => ({ group, from: py(of(group).mean.at(-1)) })).sort((a, b) => a.from - b.from);
  list.forEach((one, place) => (one.at = place ? Math.max(one.from, list[place - 1].at + gap) : one.from));
  list.reduceRight((limit, one) => (one.at = Math.min(one.at, limit)) - gap, box.bottom);
  return list.map(({ group, from, at }) => {
    const look = panel.looks.get(group), start = of(group).x.length > 1 ? px(of(group).x.at(-1)) + 6 : box.right;
    const lead = svg("path", { class: "lead", d: `M${start} ${from}L${box.right + 16} ${at}` });
    const text = svg("text", { class: "name", x: box.right + 31, y: at + 4 }, named(group));
    return layer(look, group.series, lead, mark(look, box.right + 22, at), text);
  });
}

function spots(group, curve, last, when) {
  return curve.mean.map((y, place) => {
    const lone = curve.x.length === 1, spread = curve.interval.length ? ` ± ${percent(curve.interval[place])}` : "";
    const text = `${named(group)}, ${lone ? "all classes at once" : when(curve.x[place])}: ${percent(y)}${spread}`;
    return { x: lone ? last : curve.x[place], y, series: group.series, text };
  });
}

/** Groups in colour, which have names, and all groups with the grey ones first, below the others. */
function layered(panel) {
  const bright = panel.groups.filter((group) => lit(panel, group));
  return [bright, [...panel.groups.filter((group) => !lit(panel, group)), ...[...bright].reverse()]];
}

function curves(id, of, words, when) {
  byId(id).hidden = !has(of);
  figures(id, having(of), (figure, panel, width) => {
    const { groups } = panel, found = groups.map(of), [bright, order] = layered(panel);
    const longest = Math.max(0, ...bright.map((group) => named(group).length));
    const direct = width >= DIRECT && longest <= LONG;
    const height = Math.max(250, Math.min(420, width * 0.62), direct ? LINE * bright.length + 50 : 0);
    const x = [Math.min(...found.map((curve) => curve.x[0])), Math.max(2, ...found.map((curve) => curve.x.at(-1)))];
    if (x[0] === x[1]) x[0] = 0;
    const ticks = steps(x[0], x[1], Math.min(x[1] - x[0], width / 80));
    const top = ceiling(found.flatMap((curve) => [...curve.mean, ...curve.runs.flat()]));
    const points = groups.flatMap((group) => spots(group, of(group), x[1], when));
    const begins = found.find((curve) => curve.begins?.length)?.begins ?? [];
    const layers = (px, py, box) => [
      ...begins.map((at) => svg("path", { class: "begin", d: `M${px(at)} ${box.top}V${box.bottom}` })),
      ...order.map((group) => line(panel.looks.get(group), group, of(group), px, py, box)),
      ...(direct ? ends(panel, bright, of, px, py, box) : []),
    ];
    const key = (group) => [panel.looks.get(group), `${percent(of(group).mean.at(-1))} ${named(group)}`];
    const listed = () => (direct ? [] : bright.map(key));
    const right = direct ? 36 + LETTER * longest : 24;
    chart(figure, panel, { width, height, right, x, top, ticks, words, layers, listed, points });
  });
}

function cost() {
  byId("cost").hidden = !has((group) => group.cost !== null);
  figures("cost", having((group) => group.cost !== null), (figure, panel, width) => {
    const { groups } = panel, costs = groups.map((group) => group.cost), [bright, order] = layered(panel);
    const x = [Math.min(...costs) / 1.4, Math.max(...costs) * 1.7];
    const ticks = [0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100].filter((tick) => x[0] < tick && tick < x[1]);
    const top = ceiling(groups.map((group) => final(group).mean + final(group).interval));
    const points = groups.map((group) => {
      const text = `${named(group)}: ${final(group).text} at ${group.cost} times ER’s FLOPs`;
      return { x: group.cost, y: final(group).mean, series: group.series, text };
    });
    let names = [];
    const layers = (px, py, box) => {
      const spot = (group) => {
        const { mean, interval } = final(group), ends = [mean + interval, mean - interval];
        return [px(group.cost), py(mean), ...ends.map((end) => py(Math.max(0, Math.min(1, end))))];
      };
      names = places(bright.map((group) => [spot(group), named(group)]), groups.map(spot), box);
      return order.map((group) => dot(panel.looks.get(group), group, spot(group), names[bright.indexOf(group)]));
    };
    const nameless = () => bright.filter((_, place) => !names[place]);
    const listed = () => nameless().map((group) => [panel.looks.get(group), named(group)]);
    const height = Math.max(280, Math.min(460, width * 0.75));
    const words = "FLOPs of a step over ER’s, log scale";
    chart(figure, panel, { width, height, right: 14, x, top, ticks, log: true, words, layers, listed, points });
  });
}

function dot(look, group, [x, y, high, low], at) {
  const text = at ? svg("text", { class: "name", x: at[0], y: at[1] }, named(group)) : null;
  return layer(look, group.series, svg("path", { class: "single", d: `M${x} ${high}V${low}` }), mark(look, x, y), text);
}

/** Where each name has room beside all other names, points and intervals; null where nowhere. */
function places(wanted, spots, box) {
  const taken = spots.flatMap(([x, y, high, low]) => [[x - 5, y - 5, x + 5, y + 5], [x - 1, high, x + 1, low]]);
  return wanted.map(([[x, y], text]) => {
    const width = LETTER * text.length, left = -9 - width;
    const beside = [0, -10, 10, -18, 18].flatMap((down) => [[9, 4 + down], [left, 4 + down]]);
    for (const [right, down] of beside) {
      const [l, t, r, b] = [x + right, y + down - 10, x + right + width, y + down + 3];
      const free = taken.every((other) => r < other[0] || l > other[2] || b < other[1] || t > other[3]);
      if (!free || l < box.left || r > box.right + 12 || t < box.top || b > box.bottom) continue;
      taken.push([l, t, r, b]);
      return [x + right, y + down];
    }
    return null;
  });
}
