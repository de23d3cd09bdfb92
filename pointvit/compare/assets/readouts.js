"use strict";
// Figures that answer a pointer, a finger and the arrow keys: a mark on the drawing, and the numbers in words.
for (const reading of document.querySelectorAll(".reading[data-panels]")) {
  const panels = JSON.parse(reading.dataset.panels);
  const stage = reading.querySelector(".wide"), svg = stage.querySelector("svg"), words = reading.querySelector("output");
  const mark = document.createElement("div");
  mark.className = "mark";
  mark.hidden = true;
  stage.append(mark);
  let at = null; // [panel, column, row]

  const nearest = (places, value) =>
    places.reduce((best, place, i) => (Math.abs(place - value) < Math.abs(places[best] - value) ? i : best), 0);

  function show(panel, column, row) {
    at = [panel, column, row];
    const { box: [left, top, right, bottom], x, y, texts } = panels[panel];
    const { width, height } = svg.getBoundingClientRect();
    const cell = y ? [Math.abs(x[1] - x[0]) || right - left, Math.abs(y[1] - y[0]) || bottom - top] : [0, bottom - top];
    const middle = y ? y[row] : (top + bottom) / 2;
    mark.hidden = false;
    mark.classList.toggle("cell", Boolean(y));
    mark.style.left = `${(x[column] - cell[0] / 2) * width}px`;
    mark.style.top = `${(middle - cell[1] / 2) * height}px`;
    mark.style.width = `${cell[0] * width}px`;
    mark.style.height = `${cell[1] * height}px`;
    words.textContent = y ? texts[row][column] : texts[column];
  }

  function point(event) {
    const frame = svg.getBoundingClientRect();
    const across = (event.clientX - frame.left) / frame.width, down = (event.clientY - frame.top) / frame.height;
    const panel = panels.findIndex(({ box: [left, top, right, bottom] }) =>
      across >= left - 0.02 && across <= right + 0.02 && down >= top - 0.02 && down <= bottom + 0.02);
    if (panel < 0) return;
    const { x, y } = panels[panel];
    show(panel, nearest(x, across), y ? nearest(y, down) : 0);
  }
  stage.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") point(event); });
  stage.addEventListener("click", point);

  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  stage.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    let [panel, column, row] = at || [0, -step[0], 0];
    if (step[1] && !panels[panel].y) return; // up and down scroll the page
    event.preventDefault();
    column += step[0];
    row += step[1];
    if (column < 0) column = panel > 0 ? panels[--panel].x.length - 1 : 0;
    if (column >= panels[panel].x.length) [panel, column] = panel + 1 < panels.length ? [panel + 1, 0] : [panel, column - 1];
    const { y } = panels[panel];
    show(panel, column, y ? Math.max(0, Math.min(y.length - 1, row)) : 0);
    mark.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}
