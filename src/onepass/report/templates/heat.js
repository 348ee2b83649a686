// Heat maps: the accuracy matrix, forgetting by task, and classes taken for others.
const FIGURES = 20; // classes up to which a confusion is a table of figures, and beyond which it is a picture
const LEVELS = 16, WIDEST = 640, MISTAKES = 12; // of that picture, and of the list beside it

const heated = (share) => html("td", { style: `--share: ${Math.max(0, Math.min(100, 100 * share))}%` }, percent(share));

function heatMap(kind, caption, n, last, rows) {
  const texts = ["", ...Array.from({ length: n }, (_, task) => `task ${task + 1}`), ...last];
  const heads = html("tr", {}, ...texts.map((text) => html(text ? "th" : "td", text ? { scope: "col" } : {}, text)));
  const table = html("table", { class: `heat ${kind}` }, html("caption", {}, html("div", {}, caption)), html("thead", {}, heads));
  table.append(html("tbody", {}, ...rows));
  return scrolling(caption, table);
}

/** The group that is chosen in a list of those of the panels: if none is any more, the first panel's best. */
function picked(id, panels) {
  const select = byId(id), before = select.value;
  const option = (group) => html("option", { value: page.groups.indexOf(group) }, `${named(group)}, ${titled(group)}`);
  const part = (panel) => html("optgroup", { label: titled(panel) }, ...panel.groups.map(option));
  select.replaceChildren(...panels.map(part));
  select.disabled = !panels.length;
  if (!panels.length) return null;
  const kept = [...select.options].some((one) => one.value === before);
  const best = () => panels[0].groups.find((group) => panels[0].ranks.get(group)) ?? panels[0].groups[0];
  select.value = kept ? before : page.groups.indexOf(best());
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
  byId("forgetting").hidden = !has((group) => group.drops.length);
  const maps = having((group) => group.drops.length).map((panel) => {
    const n = Math.max(...panel.groups.map((group) => group.drops.length));
    const rows = panel.groups.map((group) => {
      const cells = Array.from({ length: n }, (_, j) => (group.drops[j] ? heated(group.drops[j].mean) : html("td")));
      return html("tr", {}, who(panel, group), ...cells, html("td", { class: "mean" }, group.summary.forgetting.text));
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
  const kind = (place) => (begins.includes(place) ? "begins" : null);
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
    return html("th", { scope, class: kind(place), title: names[place] }, name);
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
      shortened(name, 16)));
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
  byId("classes").hidden = !has((group) => group.classes);
  const group = picked("whose", having((one) => one.classes));
  if (!group) return fill("classes", []);
  const found = group.classes, cells = confusions(found);
  if (found.names.length <= FIGURES) return fill("classes", [bars(found), confusionTable(found, cells)]);
  const figure = html("figure", {});
  fill("classes", [bars(found), figure, mistakes(cells)]);
  confusionPicture(figure, found, cells, figure.clientWidth);
  figure.append(saving(figure, `Confusion of classes: ${named(group)}, ${titled(group)}`));
}

