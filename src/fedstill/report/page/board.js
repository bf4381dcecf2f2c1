"use strict";
/* The leaderboard: heads that sort, numbers that show their command. */
document.querySelectorAll("table.board").forEach((table) => {
  const body = table.tBodies[0];
  table.tHead.querySelectorAll("th").forEach((head, place) => {
    head.style.cursor = "pointer";
    head.title = "sort";
    head.addEventListener("click", () => {
      const down = head.dataset.down === "1";
      head.dataset.down = down ? "" : "1";
      const of = (row) => { const cell = row.cells[place]; return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value); };
      const compare = (a, b) => { const x = of(a), y = of(b); return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)); };
      [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(a, b)).forEach((row) => body.append(row));
    });
  });
});
document.addEventListener("click", (event) => {
  const cell = event.target.closest("td[data-command]");
  const shown = document.getElementById("command");
  if (cell && shown) { shown.querySelector("pre").textContent = cell.dataset.command; shown.scrollIntoView({ block: "nearest" }); }
});
