// The page is drawn whole whenever something is chosen.
function protocol() {
  const groups = [...new Set(shown().flatMap((panel) => panel.groups))];
  fill("protocol", groups.map((group) => {
    const where = ` ${titled(group)}, ${group.n} ${group.n === 1 ? "run" : "runs"}`;
    const facts = group.protocol.flatMap(([term, text]) => [html("dt", {}, term), html("dd", {}, text)]);
    return html("details", {}, html("summary", {}, html("b", {}, named(group)), where), html("dl", {}, ...facts));
  }));
}

const WORDS = 24; // letters from which the cells of a column are sentences

/** Tables and figures of the paper that the stored runs make up; the filter leaves them as they are. */
function paper() {
  byId("paper").hidden = !page.paper.length;
  fill("paper", page.paper.map(({ title, image, tables }) => html("article", {},
    html("h3", {}, title),
    image ? scrolling(title, html("img", { src: `data:image/svg+xml;base64,${image}`, alt: title })) : null,
    ...tables.map(plain))));
}

function plain({ title, heads, rows, notes }) {
  const wordy = heads.map((_, place) => rows.some((cells) => cells[place][0].length > WORDS));
  const look = (place, bold) => (bold ? "best" : wordy[place] ? "words" : null);
  const line = (scope, cells) => html("tr", {}, ...cells.map(([text, bold], place) =>
    html(scope || !place ? "th" : "td", { scope: scope || (place ? null : "row"), class: look(place, bold) }, text)));
  const table = html("table", { class: "wide plain" },
    html("thead", {}, line("col", heads.map((text) => [text]))), html("tbody", {}, ...rows.map((cells) => line("", cells))));
  return html("div", {}, scrolling(title, table), ...notes.map((note) => html("p", { class: "muted note" }, note)));
}

function draw() {
  const words = address();
  if (words !== location.hash.slice(1) && (words || location.hash.includes("="))) {
    history.replaceState(null, "", `${location.pathname}${location.search}${words && "#"}${words}`);
  }
  for (const box of document.querySelectorAll("#filter input")) box.checked = chosen[box.name].has(box.value);
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
byId("link").addEventListener("click", () => copy(location.href, "Link"));
byId("latex").addEventListener("click", () => copy(latex(), "LaTeX"));
choice("Streams", "stream", (name) => name);
choice("Memories", "memory", (name) => (name === "0" ? "none" : name));
choice("Methods", "method", (name) => name);
choice("Columns", "column", (name) => columns.find(([column]) => column === name)[1]);
addEventListener("hashchange", () => {
  follow(location.hash.slice(1));
  draw();
});
follow(location.hash.slice(1));
paper();
draw();
