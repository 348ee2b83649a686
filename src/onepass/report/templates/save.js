// What can be taken from the page: pictures, the table for LaTeX, and a link.
const KEPT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity"];
KEPT.push("stroke-linejoin", "font-family", "font-size", "vector-effect");
const TITLE = 30, SHARP = 2; // the height of a picture's title, and the pixels of a PNG for each of the page

/** A chart with its title and its colours of now, which other programs can draw. */
function standalone(image, title) {
  const copy = image.cloneNode(true), [theirs, ours] = [image, copy].map((root) => [...root.querySelectorAll("*")]);
  theirs.forEach((node, place) => {
    const style = getComputedStyle(node);
    if (style.display === "none") return ours[place].remove();
    ours[place].removeAttribute("class");
    ours[place].setAttribute("style", KEPT.map((name) => `${name}: ${style.getPropertyValue(name)}`).join("; "));
  });
  const { width, height } = image.viewBox.baseVal, { fontFamily, color } = getComputedStyle(document.body);
  const ground = getComputedStyle(image.closest("section")).backgroundColor;
  const letters = Math.min(14, (1.9 * (width - 12)) / title.length);
  const head = svg("text", { x: 6, y: 20, style: `font: 600 ${letters}px ${fontFamily}; fill: ${color}` }, title);
  const body = svg("g", { transform: `translate(0 ${TITLE})` }, ...copy.childNodes);
  const size = { width, height: height + TITLE, viewBox: `0 0 ${width} ${height + TITLE}` };
  const whole = svg("svg", size, svg("rect", { width: "100%", height: "100%", fill: ground }), head, body);
  return { ...size, text: new XMLSerializer().serializeToString(whole) };
}

function download(name, blob) {
  const link = html("a", { download: name, href: URL.createObjectURL(blob) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Buttons that save the chart of a figure. */
function saving(figure, title) {
  const name = title.toLowerCase().replace(/[^a-z0-9.]+/g, "-").replace(/^-|-$/g, "");
  const drawn = () => standalone(figure.querySelector(".plot svg"), title);
  const blob = (text) => new Blob([text], { type: "image/svg+xml" });
  const png = async () => {
    const { width, height, text } = drawn(), image = new Image();
    image.src = URL.createObjectURL(blob(text));
    await image.decode();
    const canvas = html("canvas", { width: SHARP * width, height: SHARP * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(image.src);
    canvas.toBlob((found) => download(`${name}.png`, found));
  };
  const kind = (text, click) => button(text, click, { "aria-label": `Download as ${text}: ${title}` });
  return html("p", { class: "save" }, kind("SVG", () => download(`${name}.svg`, blob(drawn().text))), kind("PNG", png));
}

/** To the clipboard; where the browser has none for this page, as text to copy by hand. */
async function copy(text, what) {
  const say = (words) => (byId("copied").textContent = words);
  byId("copy").hidden = true;
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
  } catch {
    say(`${what}: copy it from here`);
    byId("copy").hidden = false;
    byId("copy").value = text;
    byId("copy").select();
  }
}
