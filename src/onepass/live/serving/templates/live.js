"use strict";
// Asks this server alone. Text enters as text nodes only, never as markup.
const EVERY = 1000, SLOWLY = 5000; // milliseconds
const MATRIX = 25, MISTAKES = 20; // classes up to which the confusion is a table; lines of it otherwise
const SHOWN = innerWidth < 640 ? 30 : 108; // samples of the memory
const byId = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
};
const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 0 : 1)} %`);
const state = { after: 0, facts: null, names: [], label: null, picture: null, drawn: false, inverted: false, held: "" };

// The token comes in the address after #, which is sent to nobody; it stays in this tab.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("onepass-token", given);
  history.replaceState(null, "", location.pathname);
}
class Refused extends Error {
  constructor(status, reason) { super(reason); this.status = status; }
}
const ask = async (path, options = {}) => {
  const token = sessionStorage.getItem("onepass-token");
  const headers = { ...(token ? { Authorization: `Bearer ${token}` } : {}), ...options.headers };
  const answer = await fetch(path, { ...options, headers });
  const found = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, found.error);
  return found;
};
const send = (path, method, body, headers = {}) =>
  ask(path, { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers } });

const notice = (text) => { byId("notice").textContent = text; byId("notice").hidden = !text; };
const troubles = (facts) => {
  if (facts.save_failure) return `The model cannot be saved: ${facts.save_failure}`;
  if (facts.drift && facts.drift.side < 0) {
    const { recent, low, high } = facts.drift;
    return `Drift: recent accuracy is ${percent(recent)}, below its band of ${percent(low)} to ${percent(high)}.`;
  }
  return "";
};

const bar = (name, share, text) => {
  const fill = make("i");
  fill.style.width = `${100 * (share || 0)}%`;
  return make("li", {}, make("span", { class: "class", title: name }, name), make("span", { class: "share" }, fill), text);
};
const fact = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
const showFacts = (facts) => {
  byId("method").textContent = `${facts.method}${facts.net ? `, ${facts.net}` : ""}${facts.read_only ? ", read-only" : ""}`;
  byId("facts").replaceChildren(
    fact("samples", facts.samples.toLocaleString("en")), fact("classes", facts.classes.length),
    fact("recent accuracy", percent(facts.accuracy)), fact("in memory", `${facts.memory[0]} / ${facts.memory[1]}`),
    fact("queued", facts.queue.waiting), fact("saved", facts.saved ? "yes" : "not yet"));
  notice(troubles(facts));
};
const showClasses = (facts) => {
  byId("known").replaceChildren(...facts.classes.map((row) => {
    const count = make("small", {}, ` ${row.samples.toLocaleString("en")} learned`);
    return bar(String(row.name), row.accuracy, make("span", {}, percent(row.accuracy), count));
  }));
  if (!facts.classes.length) byId("known").append(make("li", { class: "empty" }, "No class so far: teach the first."));
  const names = facts.classes.map((row) => String(row.name));
  if (names.join("\n") === state.names.join("\n")) return;
  state.names = names;
  byId("names").replaceChildren(...names.map((name) => make("option", { value: name })));
  const chosen = byId("which").value;
  byId("which").replaceChildren(make("option", { value: "" }, "all"), ...names.map((n) => make("option", { value: n }, n)));
  byId("which").value = names.includes(chosen) ? chosen : "";
};
const showConfusion = (facts) => {
  const names = facts.classes.map((row) => row.name);
  const total = new Map(), cells = new Map();
  for (const [label, predicted, n] of facts.confusion) {
    total.set(label, (total.get(label) || 0) + n);
    cells.set(JSON.stringify([label, predicted]), n);
  }
  if (!cells.size) {
    byId("matrix").replaceChildren(make("p", { class: "empty" }, "Nothing was predicted before learning so far."));
    return;
  }
  if (names.length > MATRIX) {
    const wrong = facts.confusion.filter(([a, b]) => a !== b).sort((a, b) => b[2] - a[2]).slice(0, MISTAKES);
    byId("confusion-note").textContent = "The most frequent recent mistakes.";
    byId("matrix").replaceChildren(make("ul", { class: "bars" },
      ...wrong.map(([a, b, n]) => bar(`${a} as ${b}`, n / total.get(a), `${n} of ${total.get(a)}`))));
    return;
  }
  const rows = names.map((label) => make("tr", {}, make("th", { scope: "row", title: label }, String(label)),
    ...names.map((predicted) => {
      const n = cells.get(JSON.stringify([label, predicted])) || 0;
      const cell = make("td", label === predicted ? { class: "right" } : {}, n ? String(n) : "");
      cell.style.setProperty("--share", `${n ? 15 + (85 * n) / total.get(label) : 0}%`);
      return cell;
    })));
  const head = make("tr", {}, make("th"), ...names.map((name) => make("th", { scope: "col", title: name }, String(name))));
  byId("matrix").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
};

const tile = (row, ...text) => make("li", { "data-number": row.number ?? null },
  row.thumbnail ? make("img", { src: row.thumbnail, alt: `a sample of ${row.label}` }) : make("div", { class: "blank" }), ...text);
const said = (event) => {
  if (event.kind !== "learned") return make("span", { class: "muted" }, event.kind);
  if (event.predicted === null) return make("span", { class: "muted" }, "the first");
  const right = event.predicted === event.label;
  return make("span", { class: right ? "hit" : "miss" }, right ? `✓ ${percent(event.probability)}` : `✗ said ${event.predicted}`);
};
const showEvents = ({ events, kept }) => {
  const list = byId("events"), held = new Set(kept.map(String));
  list.querySelector(".empty")?.remove();
  for (const event of events) {
    state.after = Math.max(state.after, event.number);
    list.prepend(tile(event, make("b", { title: event.label ?? "" }, String(event.label ?? "")), said(event)));
  }
  for (const node of [...list.children]) if (!held.has(node.dataset.number)) node.remove();
  if (!list.children.length) list.append(make("li", { class: "empty" }, "Waiting for samples"));
};
const showMemory = ({ held, room, found, samples }) => {
  const pictures = samples.some((row) => row.thumbnail);
  byId("filter").hidden = !held;
  byId("memory-note").textContent = !held
    ? "This model keeps statistics and no samples: there is nothing here to show, or to lose."
    : `${held.toLocaleString("en")} of ${room.toLocaleString("en")} places are taken.` +
      (pictures ? ` Shown: ${samples.length} of ${found}.` : " They are features, which are no pictures.");
  const seen = JSON.stringify(samples.map((row) => [row.id, row.label]));
  if (seen === state.held) return; // so that nobody's focus is lost
  state.held = seen;
  const can = !state.facts?.read_only;
  byId("held").replaceChildren(...(pictures ? samples : []).map((row) => tile(row, make("b", {}, String(row.label)),
    can && row.id ? make("button", { type: "button", title: `Forget this sample of ${row.label}`, click: () => forget(row.id) }, "forget") : null)));
};
const forget = async (id) => {
  try {
    await ask(`/v1/samples/${encodeURIComponent(id)}`, { method: "DELETE" });
    await refreshMemory();
  } catch (error) { notice(error.message); }
};
const refreshMemory = async () =>
  showMemory(await ask(`/v1/memory?limit=${SHOWN}${byId("which").value ? `&class=${encodeURIComponent(byId("which").value)}` : ""}`));

const refresh = async () => {
  const [facts, events] = await Promise.all([ask("/v1/classes"), ask(`/v1/events?after=${state.after}`)]);
  facts.classes.sort((a, b) => String(a.name).localeCompare(String(b.name), "en", { numeric: true }));
  state.facts = facts;
  showFacts(facts); showClasses(facts); showConfusion(facts); showEvents(events);
  byId("learn").disabled = facts.read_only;
  byId("try").hidden = facts.shape.length !== 3;
};
const repeat = (action, pause) => {
  const once = async () => {
    try {
      if (!document.hidden) await action();
    } catch (error) {
      notice(error.status === 401 ? "Open the address that onepass serve printed: it holds the token." :
        error.status ? error.message : "The server does not answer. Trying again.");
    }
    setTimeout(once, pause);
  };
  once();
};

// The pad: strokes, or a picture.
const pad = byId("pad"), pen = pad.getContext("2d");
const wipe = () => {
  pen.fillStyle = state.inverted ? "#fff" : "#000";
  pen.fillRect(0, 0, pad.width, pad.height);
  Object.assign(state, { drawn: false, picture: null, box: null, strokes: state.strokes || [] });
};
const clear = () => { wipe(); byId("odds").replaceChildren(); byId("verdict").textContent = "Nothing to see yet"; byId("taught").textContent = ""; };
const place = (event) => {
  const box = pad.getBoundingClientRect();
  return [((event.clientX - box.left) * pad.width) / box.width, ((event.clientY - box.top) * pad.height) / box.height];
};
let last = null, asking = 0;
const stroke = ([x, y]) => {
  Object.assign(pen, { lineWidth: 26, lineCap: "round", lineJoin: "round", strokeStyle: state.inverted ? "#000" : "#fff" });
  pen.beginPath(); pen.moveTo(...(last || [x, y])); pen.lineTo(x, y); pen.stroke();
  last = [x, y];
  const b = state.box || { left: x, right: x, top: y, bottom: y };
  state.box = { left: Math.min(b.left, x), right: Math.max(b.right, x), top: Math.min(b.top, y), bottom: Math.max(b.bottom, y) };
  state.drawn = true;
};
pad.addEventListener("pointerdown", (event) => {
  if (state.picture) clear();
  byId("taught").textContent = "";
  pad.setPointerCapture(event.pointerId);
  last = null; stroke(place(event)); event.preventDefault();
});
pad.addEventListener("pointermove", (event) => { if (last && event.buttons) stroke(place(event)); });
pad.addEventListener("pointerup", () => { last = null; predict(); });
byId("clear").addEventListener("click", clear);
byId("ink").addEventListener("click", () => {
  state.inverted = !state.inverted;
  byId("ink").setAttribute("aria-pressed", state.inverted);
  clear();
});
// Digits fill their frame, so a drawing is cut to its strokes; a picture is sent as it is, up to a size.
const content = () => {
  if (state.picture) return state.picture;
  const { left, right, top, bottom } = state.box, side = Math.max(right - left, bottom - top) + 30;
  const cut = Object.assign(document.createElement("canvas"), { width: 128, height: 128 }), to = cut.getContext("2d");
  to.fillStyle = state.inverted ? "#fff" : "#000";
  to.fillRect(0, 0, 128, 128);
  to.drawImage(pad, (left + right - side) / 2, (top + bottom - side) / 2, side, side, 0, 0, 128, 128);
  return cut.toDataURL("image/png").split(",")[1];
};
const open = async (file) => {
  const picture = await createImageBitmap(file);
  clear();
  const scale = Math.max(pad.width / picture.width, pad.height / picture.height);
  const size = [picture.width * scale, picture.height * scale];
  pen.drawImage(picture, (pad.width - size[0]) / 2, (pad.height - size[1]) / 2, ...size);
  state.picture = pad.toDataURL("image/png").split(",")[1];
  await predict();
};
const tryOpen = (file) => open(file).catch(() => { byId("verdict").textContent = "That is no picture that a browser can read"; });
byId("file").addEventListener("change", (event) => { if (event.target.files[0]) tryOpen(event.target.files[0]); event.target.value = ""; });
pad.addEventListener("dragover", (event) => { event.preventDefault(); pad.classList.add("over"); });
pad.addEventListener("dragleave", () => pad.classList.remove("over"));
pad.addEventListener("drop", (event) => {
  event.preventDefault(); pad.classList.remove("over");
  if (event.dataTransfer.files[0]) tryOpen(event.dataTransfer.files[0]);
});
const predict = async () => {
  if (!state.drawn && !state.picture) return;
  const number = ++asking;
  try {
    const found = await send("/v1/predict", "POST", { items: [{ image: content() }], top: 5 });
    if (number !== asking) return;
    const best = found.predictions[0].classes;
    byId("verdict").textContent = `${best[0].class}, ${percent(best[0].probability)}${found.calibrated ? "" : " (not calibrated yet)"}`;
    byId("odds").replaceChildren(...best.map((row) => bar(String(row.class), row.probability, make("span", {}, percent(row.probability)))));
  } catch (error) {
    byId("verdict").textContent = error.status === 409 ? "No class is known yet: teach the first" : error.message;
  }
};
const wait = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });
byId("teach").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = byId("label").value.trim(), taught = byId("taught");
  if (!text) return;
  if (!state.drawn && !state.picture) { taught.textContent = "Draw or choose a picture first."; return; }
  const known = state.facts?.classes.find((row) => String(row.name) === text);
  const numbers = state.facts?.classes.length && typeof state.facts.classes[0].name === "number";
  const label = known ? known.name : numbers && text !== "" && Number.isFinite(+text) ? +text : text;
  try {
    const found = await send("/v1/learn", "POST", { items: [{ image: content(), label }] }, { "Idempotency-Key": crypto.randomUUID?.() ?? String(Math.random()) });
    taught.textContent = "Queued";
    let batch = found;
    for (let tries = 0; batch.state === "queued" && tries < 100; tries++) {
      await wait(100);
      batch = await ask(`/v1/batches/${found.batch}`);
    }
    taught.textContent = batch.state === "learned" ? `Learned as ${text}` : batch.state === "failed" ? `Not learned: ${batch.error}` : "Still queued";
    await wait(250); // until it is published
    await refresh();
    await predict();
  } catch (error) { taught.textContent = error.message; }
});

byId("theme").addEventListener("click", () => theme(!dark()));
const dark = () => byId("theme").getAttribute("aria-pressed") === "true";
const theme = (on) => {
  byId("theme").setAttribute("aria-pressed", on);
  document.documentElement.style.colorScheme = on ? "dark" : "light";
};
theme(matchMedia("(prefers-color-scheme: dark)").matches);
byId("which").addEventListener("change", () => { refreshMemory().catch((error) => notice(error.message)); });
wipe();
repeat(refresh, EVERY);
repeat(refreshMemory, SLOWLY);
