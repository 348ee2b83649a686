// A click on a heading sorts its table: by number if the column has numbers, else by text; again: the other way.
"use strict";

function key(row, place) {
  const text = row.cells[place].textContent.trim();
  const number = Number.parseFloat(text.replace(/,/g, ""));
  return Number.isNaN(number) ? text : number;
}

function sortBy(table, place, descending) {
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((a, b) => {
    const [left, right] = [key(a, place), key(b, place)];
    if (typeof left !== typeof right) return typeof left === "number" ? -1 : 1; // no figure: always last
    const order = typeof left === "number" ? left - right : left.localeCompare(right);
    return descending ? -order : order;
  });
  body.append(...rows);
}

addEventListener("DOMContentLoaded", () => {
  for (const head of document.querySelectorAll("table thead th")) {
    const button = document.createElement("button");
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const table = head.closest("table");
      const descending = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortBy(table, head.cellIndex, descending);
    });
  }
});
