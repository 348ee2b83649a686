// The summary: a row for each group, best first, in the columns that are chosen.
const STRIP = 132; // the width of the intervals
const LATEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
Object.assign(LATEX, { "±": "$\\pm$", "†": "$^\\dagger$", "–": "--", "<": "$<$", ">": "$>$" });

const letter = (number) => String.fromCharCode(97 + (number % 26));
const difference = (panel, group) => panel.differences[page.groups.indexOf(group)];
const below = (group, panel) =>
  panel.floor && group.trains && charted(group) && final(group).mean < final(panel.floor).mean;
const visible = () => columns.filter(([column]) => chosen.column.has(column));

/** In what all rows of a panel with a printed figure differ from the paper's. */
function shared(panel) {
  const [first = [], ...others] = panel.groups.filter((group) => group.printed).map((group) => group.printed.differs);
  return first.filter((what) => others.every((differs) => differs.includes(what)));
}

/** In what else a row does; what its name says is left out. */
function otherwise(panel, group) {
  const known = [...shared(panel), ...named(group).split(", ")];
  return (group.printed?.differs ?? []).filter((what) => !known.includes(what)).join(", ");
}

const ways = (panel) => [...new Set(panel.groups.map((group) => otherwise(panel, group)).filter(Boolean))];

/** What stands in a cell: its text, whether it is bold, and the letter of a note. */
function content(panel, group, column) {
  if (column === "n" || column === "megabytes") return { text: String(group[column]) };
  const special = { paper: group.printed, difference: difference(panel, group) };
  const found = column in special ? special[column] : group.summary[column];
  if (!found) return { text: "–" };
  const way = column === "paper" ? ways(panel).indexOf(otherwise(panel, group)) : -1;
  const bold = found.real || (column === "final_accuracy" && group === panel.best);
  return { text: found.text, bold, note: way < 0 ? "" : letter(way) };
}

function sorted(panel) {
  const of = {
    "": (group) => group.series,
    n: (group) => group.n,
    megabytes: (group) => (group.megabytes === "n/a" ? null : Number(group.megabytes)),
    paper: (group) => group.printed?.mean,
    difference: (group) => difference(panel, group)?.mean,
  };
  const by = of[sorting.column] ?? ((group) => group.summary[sorting.column]?.mean);
  return [...panel.groups].sort((a, b) => {
    const [u, v] = [by(a) ?? null, by(b) ?? null];
    return u === null || v === null ? (u === null) - (v === null) : sorting.sign * (u - v);
  });
}

const notes = (panel) => [
  ...(chosen.column.has("paper") ? differences(panel) : []),
  ...(panel.groups.some((group) => below(group, panel))
    ? [["†", `ends below ${named(panel.floor)}, which trains no network`]] : []),
];

function differences(panel) {
  const all = shared(panel).join(", ");
  return [...(all ? [["", `not the paper’s: ${all}`]] : []), ...ways(panel).map((way, number) => [letter(number), way])];
}

function summary() {
  const heads = html("thead", {}, html("tr", {}, ...[["", "method"], ...visible()].map(head)));
  const bodies = shown().map(body);
  const table = html("table", { class: "wide" }, heads, ...bodies);
  fill("summary", bodies.length ? [scrolling("Summary table", table)] : []);
}

function head([column, text]) {
  if (column === "strip") return html("th", { scope: "col", class: "strip" }, text);
  const now = sorting.column === column;
  const order = now ? (sorting.sign > 0 ? "ascending" : "descending") : null;
  const click = () => {
    Object.assign(sorting, { column, sign: now ? -sorting.sign : column ? -1 : 1 });
    draw();
    document.querySelector("#summary [aria-sort] button").focus();
  };
  return html("th", { scope: "col", "aria-sort": order }, button(text, click));
}

function body(panel) {
  const note = ([mark, text]) => html("small", {}, ...(mark ? [html("sup", {}, mark), " "] : []), text);
  const title = html("div", {}, html("span", {}, titled(panel)), ...notes(panel).map(note));
  const names = visible().map(([column]) => column);
  const heading = html("tr", { class: "head" }, html("th", { scope: "rowgroup", colspan: names.length + 1 }, title));
  const means = panel.groups.flatMap((group) => [final(group), group.printed]).filter(Boolean);
  const top = ceiling(means.map((one) => one.mean + one.interval));
  const scale = names.includes("strip") && means.length
    ? html("tr", { class: "scale" }, html("td"), ...names.map((name) => html("td", {}, name === "strip" ? ruler(top) : null)))
    : null;
  const cell = (group, column) => {
    if (column === "strip") return html("td", {}, charted(group) ? strip(panel, group, top) : null);
    const { text, bold, note: mark } = content(panel, group, column);
    return html("td", { class: bold ? "best" : text === "–" ? "none" : null }, text, mark ? html("sup", {}, mark) : null);
  };
  const row = (group) => html("tr", {}, who(panel, group), ...names.map((column) => cell(group, column)));
  return html("tbody", {}, ...[heading, scale].filter(Boolean), ...sorted(panel).map(row));
}

/** A row's name, as a button that gives it a colour, with its rank before it. */
function who(panel, group) {
  const look = { class: "name", "aria-pressed": String(lit(panel, group)), title: "colour or grey in all charts" };
  const name = button(named(group) + (below(group, panel) ? " †" : ""), () => again(panel, group), look);
  const rank = html("span", { class: "rank" }, String(panel.ranks.get(group) ?? ""));
  return html("th", { scope: "row" }, html("div", { class: "who" }, rank, swatch(panel.looks.get(group)), name));
}

function again(panel, group) {
  const text = document.activeElement.textContent, inside = document.activeElement.closest("section").id;
  colour(panel, group);
  [...document.querySelectorAll(`#${inside} .name`)].find((name) => name.textContent === text)?.focus();
}

const across = (top) => (share) => 4 + ((STRIP - 8) * Math.max(0, Math.min(top, share))) / top;
const marks = (top) => steps(0, top, 4);

function ruler(top) {
  const x = across(top);
  const text = (tick) => svg("text", { x: x(tick), y: 10, "text-anchor": "middle" }, String(Math.round(100 * tick)));
  return svg("svg", { class: "bar", width: STRIP, height: 13 }, ...marks(top).map(text));
}

/** Ours and the paper's mean with their intervals, on one scale for the panel. */
function strip(panel, group, top) {
  const x = across(top), paper = group.printed, look = panel.looks.get(group);
  const rule = (tick) => svg("path", { class: tick ? "rule" : "axis", d: `M${x(tick)} 0V18` });
  const reach = (one, y) => svg("path", { d: `M${x(one.mean - one.interval)} ${y}H${x(one.mean + one.interval)}` });
  const place = (one, y) => `translate(${x(one.mean)} ${y})`;
  const spot = (one, y, kind, d) => [reach(one, y), svg("path", { class: kind, d, transform: place(one, y) })];
  const theirs = paper ? spot(paper, 5, "hollow", DIAMOND) : [], ours = spot(final(group), paper ? 13 : 9, "mark", CIRCLE);
  const size = { class: "bar", width: STRIP, height: 18, "aria-hidden": "true" };
  return svg("svg", size, ...marks(top).map(rule), layer(look, group.series, ...theirs, ...ours));
}

const escaped = (text) => text.replace(/[\\{}$&%#_~^±†–<>]/g, (sign) => LATEX[sign] ?? `\\${sign}`);

const raised = (mark) => (mark ? `${mark === "†" ? escaped(mark) : `$^{${mark}}$`} ` : "");

/** The table as it is shown, for a LaTeX document with booktabs. */
function latex() {
  const list = visible().filter(([column]) => column !== "strip");
  const line = (cells) => `${cells.join(" & ")} \\\\`;
  const wide = (text) => `\\multicolumn{${list.length + 1}}{l}{${text}} \\\\`;
  const panels = shown().flatMap((panel) => [
    "\\midrule",
    wide(`\\emph{${escaped(titled(panel))}}`),
    ...sorted(panel).map((group) => line([
      escaped(named(group) + (below(group, panel) ? " †" : "")),
      ...list.map(([column]) => {
        const { text, bold, note } = content(panel, group, column);
        return (bold ? `\\textbf{${escaped(text)}}` : escaped(text)) + (note ? `$^{${note}}$` : "");
      }),
    ])),
    ...notes(panel).map(([mark, text]) => wide(`\\footnotesize ${raised(mark)}${escaped(text)}`)),
  ]);
  return [
    "% \\usepackage{booktabs}; mean ± 95 % interval over runs, in per cent",
    `\\begin{tabular}{l${"r".repeat(list.length)}}`,
    "\\toprule",
    line(["method", ...list.map(([, text]) => escaped(text))]),
    ...panels,
    "\\bottomrule",
    "\\end{tabular}",
    "",
  ].join("\n");
}
