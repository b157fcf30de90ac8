// Copy buttons. They are hidden until this runs, because without it they could do nothing.
"use strict";

for (const button of document.querySelectorAll("[data-copy]")) {
  const label = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      // No clipboard (plain HTTP, or refused): select the text, so that one key press copies it.
      getSelection().selectAllChildren(source);
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => (button.textContent = label), 2500);
  });
}

// Tables whose cells stand under each other on narrow screens (components.css): each cell gets its column's name.
// Roles keep them tables for screen readers. Without this they scroll sideways.
function stackTables() {
  for (const table of document.querySelectorAll(".table-wrap > table:not(.stacked)")) {
    const names = [...table.querySelectorAll("thead th")].map((one) => one.textContent.trim());
    if (names.length < 2) continue;
    table.setAttribute("role", "table");
    table.tHead.setAttribute("role", "rowgroup");
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      let column = 0;
      for (const cell of row.cells) {
        const head = cell.closest("thead") ? "columnheader" : cell.tagName === "TH" ? "rowheader" : "cell";
        cell.setAttribute("role", head);
        if (head === "cell" && names[column]) cell.dataset.label = names[column];
        const empty = !cell.textContent.trim() && !cell.querySelector("input, select, button, svg, img");
        cell.classList.toggle("blank", empty);
        column += cell.colSpan;
      }
    }
    for (const body of table.tBodies) body.setAttribute("role", "rowgroup");
    table.classList.add("stacked");
  }
}
stackTables();
document.addEventListener("htmx:afterSettle", stackTables);

if (!CSS.supports("selector(::details-content)") && matchMedia("(min-width: 60rem)").matches) {
  for (const menu of document.querySelectorAll(".dash-menu")) menu.open = true;
}
