// What is chosen, how each row looks, and the link that keeps both.
const page = JSON.parse(byId("data").textContent);
const TOP = 5; // ranks in colour
const NARROW = 700; // the width below which the first choice of columns is that of a phone
const PHONE = ["final_accuracy", "forgetting"];
const MORE = ["backward_transfer", "forward_transfer", "learning_accuracy", "lowest_class", "average_anytime"];
MORE.push("worst_case", "prequential"); // in the list of columns, and not shown at first

const has = (of) => page.groups.some(of);
const columns = [
  ...page.columns.slice(0, 1),
  ["strip", "interval"],
  ...(has((group) => group.printed) ? [["paper", "paper"]] : []),
  ...(page.baseline ? [["difference", `minus ${page.baseline} (seeds)`]] : []),
  ...page.columns.slice(1),
  ...(has((group) => group.megabytes !== "n/a") ? [["megabytes", "MB held"]] : []),
  ["n", "runs"],
];
/** All that can be chosen, by name: a link stays right when the page is made again with more runs. */
const all = {
  stream: page.streams,
  memory: page.memories.map(String),
  method: page.series,
  column: columns.map(([column]) => column),
};
const usual = () => ({
  ...Object.fromEntries(Object.entries(all).map(([kind, names]) => [kind, new Set(names)])),
  column: new Set(all.column.filter((name) => (innerWidth < NARROW ? PHONE.includes(name) : !MORE.includes(name)))),
});
const FIRST = { column: "final_accuracy", sign: -1 };
const sorting = { ...FIRST };
const coloured = new Map(); // series that were given a colour, or lost it, by hand
let chosen = usual();

const named = (group) => page.series[group.series];
const titled = (panel) => panel.stream + (panel.memory ? `, memory ${panel.memory}` : "");
const final = (group) => group.summary.final_accuracy;
const charted = (group) => final(group) !== null; // others predict by weights that the rest of the page is not about

/** The panels that are chosen, each with its chosen groups, their ranks and their looks. */
function shown() {
  const filled = page.panels
    .filter((panel) => chosen.stream.has(panel.stream) && chosen.memory.has(String(panel.memory)))
    .map((panel) => {
      const every = panel.groups.map((place) => page.groups[place]);
      const ranks = new Map(every.map((group, place) => [group, panel.ranks[place]]));
      const groups = every.filter((group) => chosen.method.has(named(group)));
      const looks = looksOf(groups, ranks);
      return { ...panel, groups, ranks, looks, best: page.groups[panel.best], floor: floor(every) };
    });
  return filled.filter((panel) => panel.groups.length);
}

/** The same panels with those of their groups that have something to draw. */
const having = (of) =>
  shown().map((panel) => ({ ...panel, groups: panel.groups.filter(of) })).filter((panel) => panel.groups.length);

/** The best of the groups that train no network; all others that end below it are marked. */
const floor = (groups) => groups.find((group) => !group.trains && charted(group));

const slots = new Map(); // of series: so that a method has one colour in all panels, where that tells it apart

/** A number for each group in colour: the first ranks, the baseline and what was chosen. Others are grey. */
function looksOf(groups, ranks) {
  const looks = new Map(), taken = new Set();
  for (const group of groups) {
    const { series } = group, first = ranks.get(group) !== null && ranks.get(group) <= TOP;
    const lit = coloured.get(series) ?? (first || group.reference || named(group) === page.baseline);
    if (!lit || group.reference) {
      looks.set(group, lit ? "reference" : "grey");
      continue;
    }
    let slot = slots.get(series);
    if (slot === undefined || taken.has(slot)) for (slot = 0; taken.has(slot); ) slot += 1;
    taken.add(slot);
    if (!slots.has(series)) slots.set(series, slot);
    looks.set(group, slot);
  }
  return looks;
}

const lit = (panel, group) => panel.looks.get(group) !== "grey";

function colour(panel, group) {
  coloured.set(group.series, !lit(panel, group));
  draw();
}

/** What differs from the page as it opens, as the part of an address after its #. */
function address() {
  const first = usual(), words = new URLSearchParams();
  for (const kind of Object.keys(all)) {
    if (all[kind].every((name) => chosen[kind].has(name) === first[kind].has(name))) continue;
    const names = all[kind].filter((name) => chosen[kind].has(name));
    for (const name of names.length ? names : [""]) words.append(kind, name);
  }
  for (const [series, on] of coloured) words.append(on ? "colour" : "grey", page.series[series]);
  if (sorting.column !== FIRST.column || sorting.sign !== FIRST.sign) {
    words.set("sort", (sorting.sign < 0 ? "-" : "") + sorting.column);
  }
  return String(words);
}

function follow(hash) {
  if (hash && !hash.includes("=")) return; // a place on the page
  const words = new URLSearchParams(hash), sort = words.get("sort");
  chosen = usual();
  for (const kind of Object.keys(all)) if (words.has(kind)) chosen[kind] = new Set(words.getAll(kind));
  coloured.clear();
  for (const [kind, on] of [["colour", true], ["grey", false]]) {
    for (const name of words.getAll(kind)) if (page.series.includes(name)) coloured.set(page.series.indexOf(name), on);
  }
  Object.assign(sorting, sort === null ? FIRST : { column: sort.replace(/^-/, ""), sign: sort[0] === "-" ? -1 : 1 });
}

/** A list of boxes for one kind of choice; `label` is what stands beside each. */
function choice(title, kind, label) {
  const box = (name) => html("label", {}, html("input", {
    type: "checkbox",
    name: kind,
    value: name,
    change: ({ target }) => set([name], target.checked),
  }), label(name));
  const set = (names, on) => {
    for (const name of names) on ? chosen[kind].add(name) : chosen[kind].delete(name);
    draw();
  };
  const every = (text, on) => button(text, () => set(all[kind], on), { "aria-label": `${text} ${title.toLowerCase()}` });
  const buttons = html("div", {}, every("All", true), every("None", false));
  const parts = [html("legend", {}, title), buttons, ...all[kind].map(box)];
  document.querySelector("#filter form").append(html("fieldset", {}, ...parts));
}
