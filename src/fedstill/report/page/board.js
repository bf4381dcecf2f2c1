"use strict";
/* The leaderboard: heads that sort, numbers that show their command. */
const valueOf = (cell) => (cell.dataset.value === undefined ? cell.textContent : cell.dataset.value === "" ? null : Number(cell.dataset.value));
const order = (x, y) => (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
const sortBy = (table, head, place) => {
  const down = head.getAttribute("aria-sort") === "ascending";
  table.tHead.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const known = [], missing = [];
  [...table.tBodies[0].rows].forEach((row) => (valueOf(row.cells[place]) === null ? missing : known).push(row));
  known.sort((a, b) => (down ? -1 : 1) * order(valueOf(a.cells[place]), valueOf(b.cells[place])));
  table.tBodies[0].append(...known, ...missing);  /* what was not run stands last, whichever way it is sorted */
};
const show = (cell) => {
  const shown = document.getElementById("command");
  shown.querySelector("pre").textContent = cell.dataset.command;
  shown.scrollIntoView({ block: "nearest" });
};
const pressed = (event) => event.key === "Enter" || event.key === " ";
document.querySelectorAll("table.board").forEach((table) => {
  table.tHead.querySelectorAll("th").forEach((head, place) => {
    head.tabIndex = 0;
    head.title = "sort";
    head.addEventListener("click", () => sortBy(table, head, place));
    head.addEventListener("keydown", (event) => { if (pressed(event)) { event.preventDefault(); sortBy(table, head, place); } });
  });
  table.querySelectorAll("td[data-command]").forEach((cell) => {
    cell.tabIndex = 0;
    cell.title = "show the command";
    cell.addEventListener("click", () => show(cell));
    cell.addEventListener("keydown", (event) => { if (pressed(event)) { event.preventDefault(); show(cell); } });
  });
});
