// Arrow keys press the buttons of the pair that is being judged, unless somebody types.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.repeat) return;
  if (event.target.closest("input, textarea, select")) return;
  const button = document.querySelector(`#judge button[data-key="${event.key}"]`);
  if (!button) return;
  event.preventDefault();
  button.click();
});
