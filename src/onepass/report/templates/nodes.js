"use strict";
// Nodes of the page. Text enters as text nodes only, never as markup.
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
const button = (text, click, more = {}) => html("button", { type: "button", click, ...more }, text);
const scrolling = (label, table) =>
  html("div", { class: "scroll", role: "region", "aria-label": label, tabindex: 0 }, table);
const percent = (value) => (100 * value).toFixed(1);
const shortened = (text, letters) => (text.length > letters ? `${text.slice(0, letters - 1)}…` : text);
