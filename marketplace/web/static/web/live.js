// Live numbers of the staff's pages. Without this script the page shows those of its loading.
"use strict";

const board = document.querySelector("[data-live]");
const TONES = {
  live: "good", draining: "warn", drained: "warn", silent: "bad", revoked: "bad", waiting: "warn",
  healthy: "good", short: "warn", starting: "warn", asleep: "", late: "bad", blind: "bad", down: "bad",
};

const DECIMALS = new Set(["tokens_per_second", "wait_s", "arrivals_per_s", "refused_per_s"]);

function shown(cell, value) {
  if (value === null) return "–";
  if (cell.dataset.field === "last_seen_at") return value.slice(11, 19);
  if (DECIMALS.has(cell.dataset.field)) return `${value.toFixed(1)}${cell.dataset.unit ?? ""}`;
  return `${value}${cell.dataset.unit ?? ""}`;
}

// A pool's fields, those of its classes and of its scaling, by the names that its cells have.
function fieldsOf(cell, pool) {
  const row = cell.closest("[data-class]");
  if (row) return pool.classes.find((one) => one.name === row.dataset.class) ?? {};
  return cell.closest("[data-scaling]") ? pool.scaling ?? {} : pool;
}

function fill(cell, fields) {
  if (!(cell.dataset.field in fields)) return;
  cell.textContent = shown(cell, fields[cell.dataset.field]);
  if (cell.dataset.field === "state") cell.className = `tag ${TONES[fields.state] ?? ""}`;
}

function update(numbers) {
  const lines = new Map(numbers.replicas.map((line) => [line.name, line]));
  for (const row of board.querySelectorAll("[data-replica]")) {
    const line = lines.get(row.dataset.replica);
    if (line) for (const cell of row.querySelectorAll("[data-field]")) fill(cell, line);
  }
  const pools = new Map(numbers.pools.map((pool) => [pool.name, pool]));
  for (const card of board.querySelectorAll("[data-pool]")) {
    const pool = pools.get(card.dataset.pool);
    if (!pool) continue;
    for (const cell of card.querySelectorAll("[data-field]")) fill(cell, fieldsOf(cell, pool));
    for (const bar of card.querySelectorAll("[data-bar]")) bar.setAttribute("width", pool[bar.dataset.bar] ?? 0);
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
