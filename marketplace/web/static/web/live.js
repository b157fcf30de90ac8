// Live numbers of the staff's pages. Without this script the page shows those of its loading.
"use strict";

const board = document.querySelector("[data-live]");
const TONES = { live: "good", draining: "warn", drained: "warn", silent: "bad", revoked: "bad", waiting: "warn" };

function shown(cell, value) {
  if (value === null) return "–";
  if (cell.dataset.field === "last_seen_at") return value.slice(11, 19);
  if (cell.dataset.field === "tokens_per_second") return value.toFixed(1);
  return `${value}${cell.dataset.unit ?? ""}`;
}

function update(numbers) {
  const lines = new Map(numbers.replicas.map((line) => [line.name, line]));
  for (const row of board.querySelectorAll("[data-replica]")) {
    const line = lines.get(row.dataset.replica);
    if (!line) continue;
    for (const cell of row.querySelectorAll("[data-field]")) {
      cell.textContent = shown(cell, line[cell.dataset.field]);
      if (cell.dataset.field === "state") cell.className = `tag ${TONES[line.state] ?? ""}`;
    }
  }
  for (const cell of board.querySelectorAll("[data-count]")) cell.textContent = numbers[cell.dataset.count];
}

if (board) {
  const source = new EventSource(board.dataset.live);
  const note = document.querySelector("[data-live-note]");
  source.addEventListener("numbers", (event) => {
    update(JSON.parse(event.data));
    if (note) note.hidden = false;
  });
  source.addEventListener("error", () => {
    if (note) note.hidden = true;
  });
  source.addEventListener("over", () => source.close());
}
